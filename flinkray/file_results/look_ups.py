"""Notes of tasks whose records wait for a table: too many records wait, or none any more.

A note is never taken back. Of each subtask only the notes of the latest attempt count, so an
attempt that was replaced without knowing it has no effect.
"""

from __future__ import annotations

import re

import pyarrow.fs

from flinkray.file_results.result_files import ResultDirectory

_VERSION = 1
_NOTE = re.compile(r"(.*)-(\d+)-(\d+)-(full|free)\.json")


class LookUpNotes:
    """Files with which the subtasks of one look-up operator say whether too many records wait.
    *location*: a path of this machine or a URI.
    All methods block, and raise OSError while the storage fails.
    """

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)

    def note(self, execution: str, subtask: int, attempt: int, *, is_full: bool) -> None:
        """Note that too many records of a subtask wait for the table (*is_full*), or none any more.
        After an attempt has noted that none waits, its further notes have no effect.
        """
        name = f"{execution}-{subtask}-{attempt}-{'full' if is_full else 'free'}.json"
        self._directory.write_json(name, {"version": _VERSION})

    def is_full(self, execution: str) -> bool:
        """Return whether the notes say that too many records wait in at least one subtask."""
        selector = pyarrow.fs.FileSelector(self._directory.path, allow_not_found=True)
        latest: dict[int, tuple[int, bool]] = {}
        for info in self._directory.files.get_file_info(selector):
            match = _NOTE.fullmatch(str(info.base_name))
            if match is not None and match[1] == execution:
                subtask, attempt, is_free = int(match[2]), int(match[3]), match[4] == "free"
                latest[subtask] = max(latest.get(subtask, (0, False)), (attempt, is_free))
        return any(not is_free for _, is_free in latest.values())
