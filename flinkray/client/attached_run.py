"""Runs a job while the client waits for its end and shows its progress.
Ctrl-C cancels the job; a second Ctrl-C ends the waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from flinkray.client.cli_output import beginning, printable, progress_text
from flinkray.client.submission import SubmissionInterrupted
from flinkray.core.errors import JobNotFoundError, JobStateError
from flinkray.core.ids import JobID
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobProgress, JobResult

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.client.printed_lines import JobOutput

log = logging.getLogger(__name__)

INTERVAL = 0.5
"""Seconds between two looks at the job."""
_LOG_INTERVAL = 2.0
"""Seconds between two looks at a job whose progress is only logged."""
_LONG_WAIT = 5.0
"""Seconds of waiting for slots that are too long for a mere start of workers."""
_PLAIN_INTERVAL = 5.0
"""Seconds between two lines of mere progress where lines cannot be overwritten."""


class LeftRunning(Exception):  # noqa: N818 - no error: what the user asked for
    """Raised when Ctrl-C comes a second time: the client stops waiting, although the job that it
    has cancelled has not ended yet."""


class Progress(Protocol):
    """Interface of an object that shows the progress of a submitted job."""

    @property
    def interval(self) -> float:
        """The seconds between two requests for the job's progress, each followed by a call of
        :meth:`show`."""

    def submitted(self, job_id: JobID, name: str) -> None:
        """Show that the job was submitted."""

    def show(self, progress: JobProgress) -> None:
        """Show the job's present progress."""

    def message(self, text: str) -> None:
        """Show a line of text that later output does not overwrite."""

    def clear(self) -> None:
        """Remove what is displayed, because the job has ended or other output follows."""


class ProgressDisplay:
    """Shows a job's progress on *stream*.
    On a terminal one line is updated. Elsewhere a line is written for each change of state, and
    every 5 s.
    """

    interval = INTERVAL

    def __init__(self, stream: TextIO, monotonic: Callable[[], float]) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._is_terminal = stream.isatty()
        self._shown = ""
        self._shown_state: tuple[object, ...] = ()
        self._shown_at = 0.0
        self._warned = 0
        self._told_restarts = 0

    def submitted(self, job_id: JobID, name: str) -> None:
        self.message(f"submitted job {job_id} ({name})")

    def show(self, progress: JobProgress) -> None:
        for warning in progress.warnings[self._warned :]:
            self.message(f"warning: {warning}")
        self._warned = max(self._warned, len(progress.warnings))
        for number, cause in progress.restarts_after(self._told_restarts):
            self.message(f"warning: restart {number}, after a failure: {cause}")
        self._told_restarts = max(self._told_restarts, progress.restarts)
        text = progress_text(progress)
        if text == self._shown:
            return
        if self._is_terminal:
            shown = beginning(text, _columns_of_terminal(self._stream) - 1)
            self._stream.write(f"\r{shown}\x1b[K")
        else:
            counts = progress.restarts, progress.failovers
            state = (progress.status, counts, progress.pending_reason)
            now = self._monotonic()
            if state == self._shown_state and now - self._shown_at < _PLAIN_INTERVAL:
                return
            self._shown_state, self._shown_at = state, now
            self._stream.write(f"{text}\n")
        self._shown = text
        self._stream.flush()

    def message(self, text: str) -> None:
        """Show a line that is not overwritten."""
        self.clear()
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._is_terminal and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = ""


def _columns_of_terminal(stream: TextIO) -> int:
    """Return the width of the terminal that *stream* writes to, in columns. Python's own function
    looks at standard output, which may be closed or another terminal."""
    with contextlib.suppress(OSError):  # a stream without a file
        if "COLUMNS" not in os.environ and (columns := os.get_terminal_size(stream.fileno())[0]):
            return columns
    return shutil.get_terminal_size().columns


class ProgressLog:
    """Writes a job's progress to the log, for programs that decide themselves what they show.
    Changes are logged at INFO. Long waits for slots, and restarts with their causes, are logged at
    WARNING, which Python shows even if logging is not set up."""

    interval = _LOG_INTERVAL

    def __init__(self, monotonic: Callable[[], float], *, shows_failures: bool = True) -> None:
        """Create the log. *monotonic*: returns the time in seconds. *shows_failures*: whether
        restarts and warnings of the job are logged, too."""
        self._monotonic = monotonic
        self._shows_failures = shows_failures
        self._shown: tuple[object, ...] = ()
        self._waits_since: float | None = None
        self._warned_of: str | None = None
        self._warned_at = 0.0
        self._warned = 0
        self._told_restarts = 0

    def submitted(self, job_id: JobID, name: str) -> None:
        log.info("submitted job %s (%s)", job_id, name)

    def show(self, progress: JobProgress) -> None:
        if self._shows_failures:
            self._show_failures(progress)
        reason, now = progress.pending_reason, self._monotonic()
        if reason is None:
            self._waits_since = self._warned_of = None
            shown = progress.status, progress.restarts, progress.failovers
            if shown != self._shown:
                self._shown = shown
                log.info("%s: %s", progress.text, progress_text(progress))
            return
        if self._waits_since is None:
            self._waits_since = now
            log.info("%s waits for slots: %s", progress.text, reason)
        waited = now - self._waits_since
        if waited < _LONG_WAIT or reason == self._warned_of:
            return
        if self._warned_of is None or now - self._warned_at >= _PLAIN_INTERVAL:
            self._warned_of, self._warned_at = reason, now
            log.warning("%s waits for slots: %s", progress.text, reason)

    def _show_failures(self, progress: JobProgress) -> None:
        for warning in progress.warnings[self._warned :]:
            log.warning("%s: %s", progress.text, warning)
        self._warned = max(self._warned, len(progress.warnings))
        for number, cause in progress.restarts_after(self._told_restarts):
            log.warning("%s: restart %d, after a failure: %s", progress.text, number, cause)
        self._told_restarts = max(self._told_restarts, progress.restarts)

    def message(self, text: str) -> None:
        log.warning("%s", text)

    def clear(self) -> None:
        """Do nothing: a log has no line to remove."""


def run_attached(client: ClusterClient, job: JobGraph, display: Progress) -> tuple[JobResult, bool]:
    """Submit a job, wait for its end, and show its progress and what it prints.

    Returns the job's result whatever its status, and whether Ctrl-C cancelled the job.

    Raises:
        SubmissionInterrupted: (a KeyboardInterrupt) Ctrl-C came before the job was accepted.
        LeftRunning: Ctrl-C came again while the cancelled job was waited for.
        FlinkRayError: the job was not accepted.
    """
    from flinkray.client.client_session import session_of  # loads Ray
    from flinkray.client.printed_lines import NoOutput, submit_attached

    output: JobOutput = NoOutput()
    try:
        session_of(client).clear_before_output(display.clear)
        output = submit_attached(client, job, display.clear)
        display.submitted(job.job_id, job.name)
        return _wait(client, job.job_id, display, output), False
    except SubmissionInterrupted:
        raise
    except KeyboardInterrupt:  # wherever the interrupt came
        return _cancel(client, job.job_id, display, output), True
    finally:
        output.close()


def _wait(client: ClusterClient, job_id: JobID, display: Progress, output: JobOutput) -> JobResult:
    result = client.job(job_id).until_end(on_progress=display.show, interval=display.interval)
    output.finish()
    display.clear()
    return result


def _cancel(
    client: ClusterClient, job_id: JobID, display: Progress, output: JobOutput
) -> JobResult:
    try:
        display.message(f"cancelling job {job_id} (Ctrl-C again leaves at once)")
        with contextlib.suppress(JobStateError):  # the job has just ended
            client.job(job_id).cancel()
        return _wait(client, job_id, display, output)
    except JobNotFoundError:
        raise SubmissionInterrupted(f"job {job_id} was not submitted") from None
    except KeyboardInterrupt:
        display.clear()
        raise LeftRunning from None
