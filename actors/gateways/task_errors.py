"""Why a task cannot be run or cancelled."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class TaskError(FlinkRayError):
    """A task cannot be run, or has failed."""


class JobMasterAwayError(TaskError):
    """What a task asks its JobMaster cannot be asked now: it is lost, or is about to say what it
    takes over.  Ask again; the task ends if nobody comes."""

    retryable = True
