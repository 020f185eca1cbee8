"""The processes of a cluster, a folder for each; its module ``endpoint`` is the process itself."""
