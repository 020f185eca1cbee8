"""The states in which a program can be: a module of PyFlink's.

>>> JobStatus.SUSPENDED.is_terminal_state(), JobStatus.SUSPENDED.is_globally_terminal_state()
(True, False)
>>> JobStatus.RUNNING == "RUNNING"
True
"""

from flinkray.scheduler.shared.states import JobStatus

__all__ = ["JobStatus"]
