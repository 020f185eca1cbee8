"""A whole cluster in the threads of one process, without Ray.

The masters, TaskExecutors and task processes are those of a cluster on Ray. A LocalNetwork connects
them, and simulated nodes with simulated placement groups take the place of Ray's. Tasks of streams
run in threads of this process. There are no Spark executors.
"""
