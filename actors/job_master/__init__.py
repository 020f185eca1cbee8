"""The process that runs one job: the JobMaster."""
