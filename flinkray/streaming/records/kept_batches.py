"""Keeps batches of a bounded input that have to wait, in bounded memory."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from typing import IO

from flinkray.core import cloud_pickle
from flinkray.streaming.records.elements import Block, Records

_OVERHEAD = 64
"""Bytes of a record in memory in addition to the bytes of its pickled form."""


class KeptBatches:
    """Stores batches and returns them in their order.

    Args:
        memory: bytes kept in memory before a temporary file is used, estimated from one record of
            each block.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._batches: list[Records] = []
        self._size = 0
        self._file: IO[bytes] | None = None

    @property
    def has_file(self) -> bool:
        """Whether batches were written to a file because they exceeded the memory."""
        return self._file is not None

    def add(self, batch: Records) -> None:
        if not len(batch):
            return
        if isinstance(batch, Block):
            self._size += (len(cloud_pickle.dumps(batch.values[0])) + _OVERHEAD) * len(batch)
        else:
            self._size += batch.batch.nbytes
        self._batches.append(batch)
        if self._size >= self._memory:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="flinkray-kept-")  # noqa: SIM115 - read later
        for batch in self._batches:
            cloud_pickle.dump(batch, self._file)  # values may have classes without a module
        self._batches, self._size = [], 0

    def take(self) -> Iterator[Records]:
        """Yield all batches and close. Call this once, at the end."""
        if self._file is not None:
            self._file.seek(0)
            while True:
                try:
                    batch = pickle.load(self._file)
                except EOFError:
                    break
                yield batch
        yield from self._batches
        self.close()

    def close(self) -> None:
        """Delete all batches."""
        self._batches = []
        if self._file is not None:
            self._file.close()
            self._file = None
