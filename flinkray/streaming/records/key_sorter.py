"""Sorts the records of bounded inputs by key and time, in bounded memory.

Records are collected up to a limit, sorted, and written to a temporary file as a run. At the end
the runs are merged. Keys are ordered by their encodings, so the order is the same in every run of a
program.
"""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import IO, Any

from flinkray.core import cloud_pickle
from flinkray.state.key_encoding import EqualityChecks, encode_key
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block

DEFAULT_MEMORY = 128 << 20
"""Bytes, Flink's default of ``execution.sorted-inputs.memory``."""

_KNOWN_KEYS = 1 << 16
"""Number of keys whose encodings are cached."""

_CHUNK = 1024
"""Records that are written and read at once."""

_OVERHEAD = 200
"""Bytes of a record in memory in addition to the bytes of its pickled form."""

Entry = tuple[bytes, int, int, Any, Any, bool]
"""(encoded key, timestamp, input, key, value, whether the record has a timestamp)."""

_ORDER: Callable[[Entry], Any] = itemgetter(0, 1)


class KeySorter:
    """Takes blocks of several inputs and returns their records by key.
    *memory*: bytes of records kept in memory, estimated from one record of each block."""

    def __init__(self, memory: int = DEFAULT_MEMORY) -> None:
        self._memory = memory
        self._entries: list[Entry] = []
        self._size = 0
        self._runs: list[IO[bytes]] = []
        self._files = ExitStack()
        self._encodings: dict[Any, bytes] = {}
        self._checks = EqualityChecks(_KNOWN_KEYS)

    @property
    def number_of_runs(self) -> int:
        """The number of sorted runs so far, each in a temporary file."""
        return len(self._runs)

    def add(self, place: int, block: Block, keys: Any) -> None:
        """Add records of the input with number *place*, with their keys."""
        if not len(block):
            return
        times = block.timestamps
        stamped = times is not None
        for key, timestamp, value in zip(
            keys, times or [MIN_TIMESTAMP] * len(block), block.values, strict=True
        ):
            self._entries.append((self._encode(key), timestamp, place, key, value, stamped))
        self._size += (len(cloud_pickle.dumps(block.values[0])) + _OVERHEAD) * len(block)
        if self._size >= self._memory:
            self._spill()

    def _encode(self, key: Any) -> bytes:
        known = self._encodings.get(key)
        if known is None:
            known = encode_key(key)
            if not self._checks.has_to_look_at(key):
                if len(self._encodings) >= _KNOWN_KEYS:
                    self._encodings.clear()
                self._encodings[key] = known
        return known

    def _spill(self) -> None:
        self._entries.sort(key=_ORDER)
        run = tempfile.TemporaryFile(prefix="flinkray-sorted-")  # noqa: SIM115 - read in the end
        self._files.enter_context(run)
        self._runs.append(run)
        entries = iter(self._entries)
        while chunk := list(islice(entries, _CHUNK)):
            cloud_pickle.dump(chunk, run)  # values may have classes without a module
        run.seek(0)
        self._entries, self._size = [], 0

    def by_key(self) -> Iterator[tuple[Any, Iterator[Entry]]]:
        """Yield (key, its records in order of time) for each key. Records with the same time keep
        their order. Take all records of a key before the next key."""
        self._entries.sort(key=_ORDER)
        runs = [*map(_read, self._runs), iter(self._entries)]
        for _, entries in groupby(heapq.merge(*runs, key=_ORDER), key=itemgetter(0)):
            yield _with_key(entries)

    def close(self) -> None:
        self._files.close()
        self._runs.clear()
        self._entries.clear()


def _with_key(entries: Iterator[Entry]) -> tuple[Any, Iterator[Entry]]:
    first = next(entries)
    return first[3], chain((first,), entries)


def _read(run: IO[bytes]) -> Iterator[Entry]:
    while True:
        try:
            yield from pickle.load(run)
        except EOFError:
            return
