"""What can be wrong with checkpoints, and with what a job is restored from."""

from __future__ import annotations

from flinkray.core.errors import JobError


class StateRestoreError(JobError):
    """A job does not fit what it is to be restored from.  The text names the operator and the way
    out; nothing was restored."""
