"""What the committer of a sink is about to commit, where no checkpoint holds it.

A batch job whose committer is run again may have new results of its writers by then: those that
the first attempt has read can be lost with the process that had them.  Had it committed some of
them, the new ones would come on top.  So an attempt notes what it commits before it does, and every
later one commits what was noted.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pyarrow.fs

from flinkray.core import cloud_pickle, disk
from flinkray.core.errors import FlinkRayError
from flinkray.file_results.directory import ResultDirectory

_CRC_SIZE = 4


class CommitLogError(FlinkRayError):
    """What was noted cannot be read."""


class FileCommitLog:
    """In a directory of its own, at a path of this machine or a URI.

    Two attempts that are at work at the same time note one thing on file systems that link files,
    and on others the first to have finished by the time that the second looks.
    """

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self._path = f"{self._directory.path}/committables"

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        """Note these, unless others are noted already; returns those that are.  Blocks.

        Raises:
            OSError: the storage fails.
            CommitLogError: what is noted is damaged.
        """
        if not self._is_there():
            self._note(cloud_pickle.dumps(list(committables)))
        return self._read()

    def _is_there(self) -> bool:
        info = self._directory.files.get_file_info(self._path)
        return bool(info.type != pyarrow.fs.FileType.NotFound)

    def _note(self, payload: bytes) -> None:
        self._directory.create()
        content = crc32(payload).to_bytes(_CRC_SIZE, "little") + payload
        unfinished = f"{self._path}.{uuid.uuid4().hex}"
        if self._directory.is_local:
            self._note_locally(unfinished, content)
            return
        with self._directory.files.open_output_stream(unfinished) as stream:
            stream.write(content)
        if not self._is_there():
            self._directory.files.move(unfinished, self._path)

    def _note_locally(self, unfinished: str, content: bytes) -> None:
        with open(unfinished, "wb") as file:
            file.write(content)
        disk.sync(unfinished)
        try:
            os.link(unfinished, self._path)
        except FileExistsError:
            pass  # another attempt was first
        finally:
            os.unlink(unfinished)
        disk.sync_names(self._directory.path)

    def _read(self) -> Sequence[Any]:
        with self._directory.files.open_input_stream(self._path) as stream:
            content = stream.read()
        payload = content[_CRC_SIZE:]
        if crc32(payload).to_bytes(_CRC_SIZE, "little") != content[:_CRC_SIZE]:
            raise CommitLogError(
                f"{self._path}, where a sink has noted what it commits, is damaged: look what of "
                "it is visible, and start the job again without that"
            )
        noted: Sequence[Any] = pickle.loads(payload)
        return noted
