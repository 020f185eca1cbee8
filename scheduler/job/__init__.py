"""The life of a job: the decisions of a JobMaster."""
