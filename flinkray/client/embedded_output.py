"""Writes to standard output what jobs print, also in the processes of an embedded cluster."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from flinkray.core.captured_output import OUTPUT_OF_JOBS, printed


def write_text(text: str) -> None:
    """Write a text to standard output at once. Characters that standard output cannot show are
    escaped. If there is no standard output, the text is dropped, as ``print`` does."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


log = logging.getLogger(__name__)

INTERVAL = 0.1
"""Seconds between two reads of the files."""


class EmbeddedOutput:
    """Thread that copies the output of jobs from the files of a local Ray session to standard
    output, in whole lines."""

    def __init__(self, logs: str, write: Callable[[str], None] = write_text) -> None:
        """Start the thread. *logs*: the ``logs`` folder of Ray's session."""
        self._logs = Path(logs)
        self._write = write
        self._positions: dict[Path, int] = {}
        """Number of bytes read of each file, by the path of the link's target.

        A later process may have the same name: its link replaces the link of the earlier process.
        """
        self._clear: Callable[[], None] = lambda: None
        self._is_broken = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="embedded output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def clear_before(self, clear: Callable[[], None]) -> None:
        """Set a function to be called before output is written, to remove a progress line."""
        self._clear = clear

    def show(self) -> None:
        """Write all whole lines that are in the files now; returns when they are written."""
        with self._lock:
            self._show(is_end=False)

    def close(self) -> None:
        """Show the remaining output, with an unfinished last line, and stop the thread."""
        self._stopping.set()
        self._thread.join()
        with self._lock:
            self._show(is_end=True)

    def _follow(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self.show()

    def _show(self, *, is_end: bool) -> None:
        if self._is_broken:
            return
        for link in sorted(self._logs.glob(OUTPUT_OF_JOBS)):
            self._positions.setdefault(link.resolve(), 0)
        for file in self._positions:
            text = self._new_text(file, is_end=is_end)
            if not text:
                continue
            self._clear()
            try:
                self._write(text)
            except (OSError, ValueError) as error:  # a closed pipe, a closed file
                log.warning("what jobs print is not shown any more: %s", error)
                self._is_broken = True
                return

    def _new_text(self, file: Path, *, is_end: bool) -> str:
        begin = self._positions[file]
        try:
            if file.stat().st_size <= begin:
                return ""
            with file.open("rb") as opened:
                opened.seek(begin)
                data = opened.read()
        except FileNotFoundError:  # Ray has removed it
            return ""
        whole = len(data) if is_end else data.rfind(b"\n") + 1
        self._positions[file] = begin + whole
        return printed(data[:whole]).decode("utf-8", "replace")
