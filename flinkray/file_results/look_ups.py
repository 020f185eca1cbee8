"""Notes by which a source learns that too many records wait for the table of a look-up.

A subtask of a look-up holds its records until the table is complete. It notes that too many records
wait, and later that none waits any more; notes are never taken back. Of each subtask only the notes
of the latest attempt count, so an attempt that was replaced without knowing it has no effect.
"""

from __future__ import annotations

import re

import pyarrow.fs

from flinkray.file_results.result_files import ResultDirectory

_VERSION = 1
_NOTE = re.compile(r"(.*)-(\d+)-(\d+)-(full|free)\.json")


class LookUpNotes:
    """Files with which the subtasks of one look-up operator say whether too many records wait.
    *location*: a path of this machine or a URI. All methods block, and raise OSError while the
    storage fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)

    def note(self, execution: str, subtask: int, attempt: int, *, is_full: bool) -> None:
        """Note that too many records of a subtask wait for the table (*is_full*), or that none
        waits any more.

        After an attempt has noted that none waits, its further notes have no effect. *execution*:
        id of the stream's present execution.
        """
        name = f"{execution}-{subtask}-{attempt}-{'full' if is_full else 'free'}.json"
        self._directory.write_json(name, {"version": _VERSION})

    def is_full(self, execution: str) -> bool:
        """Return whether too many records wait in at least one subtask.

        *execution*: id of the stream's present execution; notes of other executions do not count.
        """
        selector = pyarrow.fs.FileSelector(self._directory.path, allow_not_found=True)
        latest: dict[int, tuple[int, bool]] = {}
        for info in self._directory.files.get_file_info(selector):
            match = _NOTE.fullmatch(str(info.base_name))
            if match is not None and match[1] == execution:
                subtask, attempt, is_free = int(match[2]), int(match[3]), match[4] == "free"
                latest[subtask] = max(latest.get(subtask, (0, False)), (attempt, is_free))
        return any(not is_free for _, is_free in latest.values())
