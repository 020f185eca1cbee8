"""Why a task cannot be run or cancelled."""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError


class TaskError(FlinkRayError):
    """A task cannot be run, or has failed."""
