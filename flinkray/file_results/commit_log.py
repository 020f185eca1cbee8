"""A log of what the committer of a sink is about to commit, for jobs without checkpoints.

When the committer of a batch job runs again, its writers may have produced new results, since
results can be lost with their process. The first attempt may have committed some of the old ones.
So an attempt notes what it commits before it commits, and later attempts commit what was noted.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from flinkray.core import cloud_pickle, disk
from flinkray.core.errors import FlinkRayError, StoredFormatError
from flinkray.core.private_files import opener
from flinkray.file_results.result_files import ResultDirectory

_CRC_SIZE = 4
_NAME = "committables"


class CommitLogError(FlinkRayError):
    """Raised when the noted committables cannot be read."""


class FileCommitLog:
    """A commit log in its own directory, at a path of this machine or a URI.

    If two attempts run at the same time on a local file system, both use the note that was written
    first. On other storage the later attempt decides, and the earlier one commits nothing any more
    (:mod:`flinkray.ha.epoch_directory`).
    """

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self._path = f"{self._directory.path}/{_NAME}"

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        """Store *committables* in the log, or leave those that an earlier attempt has stored.
        Return the stored ones, which the caller then commits. Blocks.

        Raises:
            OSError: the storage fails.
            TakenOverError: a later attempt of the committer has taken over.
            CommitLogError: the note is damaged.
        """
        payload = cloud_pickle.dumps(list(committables))
        content = crc32(payload).to_bytes(_CRC_SIZE, "little") + payload
        if not self._directory.is_local:
            return self._decoded(self._settled_by_epoch(content))
        if not os.path.exists(self._path):
            self._note_locally(content)
        self._directory.sync_names()  # the attempt that noted may have died before it synchronised
        with open(self._path, "rb") as file:
            return self._decoded(file.read())

    def _settled_by_epoch(self, content: bytes) -> bytes:
        notes = self._directory.epochs(_NAME, (_NAME,))
        try:
            notes.take_over(b"an attempt of a committer")
            noted = notes.read(_NAME)
        except StoredFormatError as error:
            raise self._damaged() from error
        if noted is None:
            notes.write(_NAME, content)
            return content
        return noted

    def _note_locally(self, content: bytes) -> None:
        self._directory.create()
        unfinished = f"{self._path}.{uuid.uuid4().hex}"
        with open(unfinished, "wb", opener=opener) as file:
            file.write(content)
        disk.sync(unfinished)
        try:
            os.link(unfinished, self._path)
        except FileExistsError:
            pass  # another attempt was first
        finally:
            os.unlink(unfinished)

    def _decoded(self, content: bytes) -> Sequence[Any]:
        payload = content[_CRC_SIZE:]
        if crc32(payload).to_bytes(_CRC_SIZE, "little") != content[:_CRC_SIZE]:
            raise self._damaged()
        noted: Sequence[Any] = pickle.loads(payload)
        return noted

    def _damaged(self) -> CommitLogError:
        return CommitLogError(
            f"{self._path}, where a sink has noted what it commits, is damaged: look what of "
            "it is visible, and start the job again without that"
        )
