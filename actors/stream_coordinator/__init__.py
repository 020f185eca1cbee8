"""The StreamCoordinator: the process that runs the enumerators of a stream job's sources.

Enumerators are user code. The process also knows where the job's results can be collected, and
keeps the lines that tasks print until the client has read them.
"""

__all__ = ["endpoint"]
