"""The processes of a cluster, one folder each.
The module ``endpoint`` of a folder is the process's endpoint.
"""
