"""Errors that say why a task cannot be run or cancelled."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class TaskError(FlinkRayError):
    """Raised when a task cannot be run or cancelled, or has failed."""

    retryable = True


class JobMasterAwayError(TaskError):
    """Raised when a task's request needs the JobMaster, which cannot answer it now.
    The JobMaster is lost, or is taking over and has not decided which tasks continue. The task
    repeats the request, and ends if no JobMaster comes.
    """
