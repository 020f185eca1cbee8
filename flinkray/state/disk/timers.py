"""A timer queue that keeps the earliest timers in memory and later ones on the disk.

The *horizon* is the first timer on the disk, by time and then by order of registration. When too
many timers are in memory, the later half is written; when none is left, the next ones are read. A
timer on the disk has two rows: one by time, in the order of firing, and one by key group, which
says whether the timer exists and which snapshots read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from flinkray.state.disk.changes import DiskStore
from flinkray.state.disk.rocksdb import Pair, after
from flinkray.state.disk.rows import PlaceCodec, table_prefix, with_exact, without_exact
from flinkray.state.heap_tables import HeapTimerQueue, TableCapture
from flinkray.state.key_group_assignment import KeyGroupAssigner
from flinkray.state.table import TimerQueue

MOST_IN_MEMORY = 100_000

_AT = struct.Struct(">QQ")
"""Format of a time with an order of registration."""
_TIME = struct.Struct(">Q")
_SIGN = 1 << 63
_MIDDLE = 1 << 62
"""The first order of registration, in the middle of the range.
Timers written later may have to be put before others of the same time."""

Timer = tuple[int, Any, Any]


class DiskTimerQueue(TimerQueue):
    """A timer queue in memory and on the disk; see the module's docstring. Its rows are in the
    engine's tables *number* (by key group) and *number* + 1 (by time). *most*: largest number of
    timers in memory."""

    def __init__(
        self,
        number: int,
        store: DiskStore,
        assign: KeyGroupAssigner,
        most: int = MOST_IN_MEMORY,
    ) -> None:
        self.number = number
        self.codec = PlaceCodec(number, True, assign)
        self._by_time = table_prefix(number + 1)
        self._store = store
        self._most = most
        self._memory = HeapTimerQueue()
        self._in_memory = 0
        self._on_disk = 0
        self._horizon: tuple[int, int] | None = None
        """(time, order) of the first timer on the disk; None if there are none."""
        self._next = _MIDDLE

    def add(self, timestamp: int, key: Any, namespace: Any) -> bool:
        horizon = self._horizon
        if horizon is None or timestamp < horizon[0]:
            if not self._memory.add(timestamp, key, namespace):
                return False
            self._in_memory += 1
            if self._in_memory > self._most:
                self._write_later_half()
            return True
        timer = key, namespace
        if timestamp == horizon[0] and self._memory.has(timestamp, timer):
            return False
        index = self._index(timestamp, timer)
        if self._store.engine.get(index) is not None:
            return False
        batch = self._store.engine.batch()
        self._put(batch, timestamp, self._next, timer, index)
        self._store.engine.write(batch)
        self._next += 1
        self._on_disk += 1
        return True

    def discard(self, timestamp: int, key: Any, namespace: Any) -> None:
        self.claim(timestamp, (key, namespace))

    def first(self) -> int | None:
        timestamp = self._memory.first()
        while timestamp is None and self._horizon is not None:
            self._read_next()
            timestamp = self._memory.first()
        return timestamp

    def at(self, timestamp: int, most: int | None = None) -> list[tuple[Any, Any]]:
        found = self._memory.at(timestamp, most)
        while (
            (most is None or len(found) < most)
            and self._horizon is not None
            and self._horizon[0] <= timestamp
        ):
            self._read_next()
            found = self._memory.at(timestamp, most)
        return found

    def claim(self, timestamp: int, timer: tuple[Any, Any]) -> bool:
        if self._memory.claim(timestamp, timer):
            self._in_memory -= 1
            return True
        if self._horizon is None or timestamp < self._horizon[0]:
            return False
        engine = self._store.engine
        index = self._index(timestamp, timer)
        row = engine.get(index)
        if row is None:
            return False
        batch = engine.batch()
        batch.delete(index)
        batch.delete(self._by_time + _AT.pack(timestamp + _SIGN, _order(row)))
        engine.write(batch)
        self._on_disk -= 1
        return True

    def __len__(self) -> int:
        return self._in_memory + self._on_disk

    def items(self) -> Iterable[Timer]:
        yield from self._memory.items()
        if self._horizon is not None:
            prefix = table_prefix(self.number)
            pairs = self._store.engine.scan_in_portions(prefix, after(prefix))
            yield from read_timers_of_rows(self.codec, pairs)

    def capture(self) -> TableCapture:
        return self._memory.capture()

    # --- between memory and disk --------------------------------------------------------------

    def _write_later_half(self) -> None:
        left = self._in_memory - self._most // 2
        batch = self._store.engine.batch()
        begin: tuple[int, int] | None = None
        written: list[tuple[int, list[tuple[Any, Any]]]] = []
        for timestamp in sorted(self._memory.times(), reverse=True):
            timers = self._memory.at(timestamp)[-left:]
            if self._horizon is not None and timestamp == self._horizon[0]:
                order = self._horizon[1] - len(timers)  # timers on the disk were registered later
            else:
                order = self._next
                self._next += len(timers)
            begin = timestamp, order
            for place, timer in enumerate(timers):
                self._put(batch, timestamp, order + place, timer, self._index(timestamp, timer))
            written.append((timestamp, timers))
            left -= len(timers)
            if not left:
                break
        self._store.engine.write(batch)
        for timestamp, timers in written:
            for timer in timers:
                self._memory.claim(timestamp, timer)
            self._in_memory -= len(timers)
            self._on_disk += len(timers)
        self._horizon = begin

    def _read_next(self) -> None:
        assert self._horizon is not None
        engine = self._store.engine
        timestamp, order = self._horizon
        first = self._by_time + _AT.pack(timestamp + _SIGN, order)
        batch = engine.batch()
        most = max(self._most // 2, 1)
        self._horizon = None
        number = 0
        for key, row in engine.scan(first, after(self._by_time)):
            due, order = _AT.unpack_from(key, 2)
            if number == most:
                self._horizon = due - _SIGN, order
                break
            exact, _, at = without_exact(row)
            index = row[at:]
            timer = self.codec.decode(index, 4 + _TIME.size, exact)
            self._memory.add(due - _SIGN, *timer)
            batch.delete(key)
            batch.delete(index)
            number += 1
        engine.write(batch)
        self._in_memory += number
        self._on_disk -= number

    def _index(self, timestamp: int, timer: tuple[Any, Any]) -> bytes:
        encoded = self.codec.encode(timer)
        return encoded[:4] + _TIME.pack(timestamp + _SIGN) + encoded[4:]

    def _put(
        self, batch: Any, timestamp: int, order: int, timer: tuple[Any, Any], index: bytes
    ) -> None:
        exact = self.codec.exact(timer)
        batch.put(index, with_exact(exact, _TIME.pack(order)))
        batch.put(self._by_time + _AT.pack(timestamp + _SIGN, order), with_exact(exact, index))


def _order(row: bytes) -> int:
    order: int
    (order,) = _TIME.unpack_from(row, len(row) - _TIME.size)
    return order


def read_timers_of_rows(codec: PlaceCodec, pairs: Iterable[Pair]) -> Iterator[Timer]:
    """Yield the timers in *pairs*, rows by key group. Timers of the same time are yielded in the
    order of registration."""
    for due, rows in groupby(pairs, lambda pair: pair[0][2 : 4 + _TIME.size]):
        timestamp = int.from_bytes(due[2:], "big") - _SIGN
        for key, row in sorted(rows, key=lambda pair: _order(pair[1])):
            exact, _, _ = without_exact(row)
            yield (timestamp, *codec.decode(key, 4 + _TIME.size, exact))
