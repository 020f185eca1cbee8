"""Batches of a bounded input that have to wait, in bounded memory."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from typing import IO

from flinkray.core import cloud_pickle
from flinkray.streaming.records.elements import Block, Records

_OVERHEAD = 64
"""Bytes that a record takes in memory beyond what its pickled form has."""


class KeptBatches:
    """Takes batches, and gives them back in their order.

    Args:
        memory: bytes that are kept outside of a temporary file, estimated from one record of each
            block.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._batches: list[Records] = []
        self._size = 0
        self._file: IO[bytes] | None = None

    @property
    def has_file(self) -> bool:
        """They did not fit into memory."""
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
            cloud_pickle.dump(batch, self._file)  # values may be of classes that have no module
        self._batches, self._size = [], 0

    def take(self) -> Iterator[Records]:
        """All of them; to be called once, in the end."""
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
        """Delete them."""
        self._batches = []
        if self._file is not None:
            self._file.close()
            self._file = None
