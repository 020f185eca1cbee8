"""A whole cluster in the threads of one process, without Ray.

The masters, TaskExecutors and task processes are those of a cluster on Ray; a LocalNetwork connects
them, and nodes that exist only on paper replace Ray's placement groups. Tasks of streams run in
threads of this process. There are no Spark executors.
"""
