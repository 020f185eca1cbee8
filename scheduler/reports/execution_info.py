"""Describes attempts of subtasks for clients, and encodes the attempts of a large job compactly,
for messages and storage."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from math import isnan, nan
from typing import Any, overload

from flinkray.core.message import message, register
from flinkray.core.schema import stored
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState


@stored("ExecutionInfo")
@message
class ExecutionInfo:
    """One attempt of a subtask, as clients see it.  Times are seconds since the epoch."""

    subtask_index: int
    attempt_number: int
    state: ExecutionState
    location: str | None
    """``<TaskExecutor> bundle <i> on <node ip>``; None before the attempt has a slot."""
    executor_actor_id: str | None = None
    executor_pid: int | None = None
    start_time: float | None = None
    end_time: float | None = None
    state_timestamps: dict[str, float] = field(default_factory=dict)
    """ExecutionState name -> seconds since the epoch when it was entered."""
    failure: str | None = None
    io_metrics: IOMetrics | None = None
    """I/O metrics of the attempt.
    None if the task is no stream task, has not begun, or its process no longer reports metrics."""


FEW = 100
"""Number of executions up to which they are not converted to a table."""

_LEVEL = 1

_WATERMARK = "input_watermark"
_NO_WATERMARK = -(1 << 63)
"""Stands for no watermark.  No task reports this number; any other 64-bit number is a watermark."""


@stored("TextColumn")
@message
class _Texts:
    """A column of optional texts; each distinct text is stored once."""

    distinct: tuple[str, ...]
    numbers: bytes
    """Compressed number per row: 0 for None, n + 1 for the distinct text n."""

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> _Texts:
        known: dict[str | None, int] = {None: 0}
        numbers = _ints(known.setdefault(text, len(known)) for text in texts)
        return cls(tuple(text for text in known if text is not None), numbers)

    def rows(self) -> list[str | None]:
        texts = (None, *self.distinct)
        return [texts[number] for number in _ints_back(self.numbers)]


_METRICS_IN_VERSION_1 = (
    "records_in", "records_out", "bytes_in", "bytes_out", "busy_ms", "back_pressured_ms", "idle_ms"
)  # fmt: skip


def _from_version_1(values: dict[str, Any]) -> dict[str, Any]:
    """Convert a stored ExecutionTable of version 1, in which the columns of I/O metrics had no
    names."""
    columns = values.get("io_metrics", ())
    named = dict(zip(_METRICS_IN_VERSION_1, columns, strict=False))
    return {**values, "io_metrics": named}


@stored("ManyExecutions", version=2, migrations={1: _from_version_1})
@register
@dataclass(frozen=True)
class ExecutionTable(Sequence[ExecutionInfo]):
    """A sequence of executions in packed form, which is unpacked when an element is first read. A
    process that only passes the table on does not unpack it."""

    size: int
    subtasks: bytes
    attempts: bytes
    states: _Texts
    locations: _Texts
    actor_ids: _Texts
    pids: bytes
    """Process id + 1; 0 for None."""
    start_times: bytes
    end_times: bytes
    timestamps: dict[str, bytes]
    """State name -> time when each execution entered the state."""
    failures: _Texts
    io_metrics: dict[str, bytes] = field(default_factory=dict)
    """Name of a field of IOMetrics -> number + 1; 0 for None.
    Watermarks are stored unchanged.  Empty: no execution has metrics."""
    _unpacked: list[ExecutionInfo] = field(
        init=False, default_factory=list, compare=False, repr=False
    )

    @classmethod
    def of(cls, executions: Sequence[ExecutionInfo]) -> ExecutionTable:
        states = dict.fromkeys(name for e in executions for name in e.state_timestamps)
        return cls(
            len(executions),
            _ints(e.subtask_index for e in executions),
            _ints(e.attempt_number for e in executions),
            _Texts.of(e.state.name for e in executions),
            _Texts.of(e.location for e in executions),
            _Texts.of(e.executor_actor_id for e in executions),
            _ints(0 if e.executor_pid is None else e.executor_pid + 1 for e in executions),
            _times(e.start_time for e in executions),
            _times(e.end_time for e in executions),
            {name: _times(e.state_timestamps.get(name) for e in executions) for name in states},
            _Texts.of(e.failure for e in executions),
            _metrics([e.io_metrics for e in executions]),
        )

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> ExecutionInfo: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ExecutionInfo]: ...

    def __getitem__(self, index: int | slice) -> ExecutionInfo | Sequence[ExecutionInfo]:
        return self._rows()[index]

    def __iter__(self) -> Iterator[ExecutionInfo]:
        return iter(self._rows())

    def _rows(self) -> list[ExecutionInfo]:
        if not self._unpacked and self.size:
            self._unpacked.extend(self._unpack())
        return self._unpacked

    def _unpack(self) -> Iterator[ExecutionInfo]:
        names = tuple(self.timestamps)
        columns = [_times_back(column) for column in self.timestamps.values()]
        rows = zip(
            _ints_back(self.subtasks),
            _ints_back(self.attempts),
            self.states.rows(),
            self.locations.rows(),
            self.actor_ids.rows(),
            _ints_back(self.pids),
            _times_back(self.start_times),
            _times_back(self.end_times),
            zip(*columns, strict=True) if columns else [()] * self.size,
            self.failures.rows(),
            _metrics_back(self.io_metrics) if self.io_metrics else [None] * self.size,
            strict=True,
        )
        for (
            subtask, attempt, state, location, actor_id, pid, start, end, times, failure, metrics
        ) in rows:  # fmt: skip
            assert state is not None
            entered = {name: at for name, at in zip(names, times, strict=True) if at is not None}
            yield ExecutionInfo(
                subtask, attempt, ExecutionState[state], location, actor_id,
                pid - 1 if pid else None, start, end, entered, failure, metrics,
            )  # fmt: skip


def packed(
    executions: tuple[ExecutionInfo, ...],
) -> tuple[ExecutionInfo, ...] | ExecutionTable:
    """Return the executions unchanged if there are few, otherwise as an :class:`ExecutionTable`."""
    return executions if len(executions) <= FEW else ExecutionTable.of(executions)


def _ints(values: Iterable[int]) -> bytes:
    return _compressed(array("q", values))


def _ints_back(data: bytes) -> array[int]:
    return _decompressed("q", data)


def _metrics(every: Sequence[IOMetrics | None]) -> dict[str, bytes]:
    if not any(every):
        return {}
    numbers = {it.name: [getattr(one, it.name, None) for one in every] for it in fields(IOMetrics)}
    return {
        name: _ints(
            (_NO_WATERMARK if number is None else number)
            if name == _WATERMARK
            else (0 if number is None else number + 1)
            for number in column
        )
        for name, column in numbers.items()
    }


def _metrics_back(columns: dict[str, bytes]) -> Iterator[IOMetrics | None]:
    counts = [name for name in columns if name != _WATERMARK]
    rows = zip(*(_ints_back(columns[name]) for name in counts), strict=True)
    if _WATERMARK in columns:
        watermarks: Iterable[int] = _ints_back(columns[_WATERMARK])
    else:
        watermarks = repeat(_NO_WATERMARK)
    for row, watermark in zip(rows, watermarks, strict=False):
        numbers: list[Any] = [number - 1 if number else None for number in row]
        at = None if watermark == _NO_WATERMARK else watermark
        known = dict(zip(counts, numbers, strict=True))
        yield IOMetrics(**known, input_watermark=at) if any(row) else None


def _times(values: Iterable[float | None]) -> bytes:
    return _compressed(array("d", (nan if value is None else value for value in values)))


def _times_back(data: bytes) -> list[float | None]:
    return [None if isnan(value) else value for value in _decompressed("d", data)]


def _compressed(column: array[int] | array[float]) -> bytes:
    data = column.tobytes()
    width = column.itemsize
    return zlib.compress(b"".join(data[place::width] for place in range(width)), _LEVEL)


def _decompressed(kind: str, data: bytes) -> array:  # type: ignore[type-arg]
    column = array(kind)
    ordered = zlib.decompress(data)
    size, width = len(ordered) // column.itemsize, column.itemsize
    mixed = bytearray(len(ordered))
    for place in range(width):
        mixed[place::width] = ordered[place * size : (place + 1) * size]
    column.frombytes(bytes(mixed))
    return column
