"""The processes of a cluster, a folder for each; the module ``endpoint`` in it is the process itself."""
