"""The StreamCoordinator: the process that runs the user code of a whole stream job.

This code is the enumerators and master hooks of sources, the functions of global aggregates, and
the methods of output formats that are called once for all subtasks. The process also knows where
the job's results can be collected, and keeps the lines that tasks print until the client has read
them.
"""

__all__ = ["endpoint"]
