"""Waiting for a job on a terminal: progress, Ctrl-C once to cancel the job, twice to leave it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from typing import TextIO

from flinkray.client.cli_output import progress_text
from flinkray.client.job_handle import JobHandle
from flinkray.core.errors import JobStateError
from flinkray.scheduler.job_info import JobDetails
from flinkray.scheduler.states import JobStatus

INTERVAL = 0.5
"""Seconds between two looks at the job."""
_PLAIN_INTERVAL = 5.0
"""Seconds between two lines of mere progress where lines cannot be overwritten."""


class LeftRunning(Exception):  # noqa: N818 - no error: what the user asked for
    """Ctrl-C came a second time: the job was left as it was."""


class ProgressDisplay:
    """One updating line on a terminal; elsewhere a line per change of state and every 5 s."""

    def __init__(self, stream: TextIO, monotonic: Callable[[], float]) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._is_terminal = stream.isatty()
        self._shown = ""
        self._shown_state: tuple[object, ...] = ()
        self._shown_at = 0.0

    def show(self, details: JobDetails) -> None:
        text = progress_text(details)
        if text == self._shown:
            return
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]}\x1b[K")
        else:
            state = (details.status, details.restarts, details.pending_reason)
            now = self._monotonic()
            if state == self._shown_state and now - self._shown_at < _PLAIN_INTERVAL:
                return
            self._shown_state, self._shown_at = state, now
            self._stream.write(f"{text}\n")
        self._shown = text
        self._stream.flush()

    def message(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._is_terminal and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = ""


def wait_attached(handle: JobHandle, display: ProgressDisplay) -> tuple[JobStatus, bool]:
    """Wait for the job's end and show its progress.

    Returns how it ended, and whether Ctrl-C cancelled it.

    Raises:
        LeftRunning: Ctrl-C came again while the cancelled job was waited for.
    """
    try:
        status = handle.wait(on_progress=display.show, interval=INTERVAL)
    except KeyboardInterrupt:
        display.message(f"cancelling job {handle.job_id} (Ctrl-C again leaves at once)")
    else:
        display.clear()
        return status, False
    try:
        with contextlib.suppress(JobStateError):  # it ended at that moment; how, is asked next
            handle.cancel()
        status = handle.wait(on_progress=display.show, interval=INTERVAL)
    except KeyboardInterrupt:
        display.clear()
        raise LeftRunning from None
    display.clear()
    return status, True
