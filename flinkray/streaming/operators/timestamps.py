"""Assigns timestamps and makes watermarks (Flink's TimestampsAndWatermarksOperator)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import reading_at
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.time.combined_watermarks import PartialWatermark, WatermarkMultiplexer
from flinkray.streaming.time.given_times import NO_TIMES, first_wrong, wrong_timestamp
from flinkray.streaming.time.watermark_alignment import AlignedMember
from flinkray.streaming.time.watermarks import (
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)


class _Emitter(WatermarkOutput):
    """Puts out watermarks that advance, and changes of the idle status. While no watermark may be
    put out (:attr:`TimestampsAndWatermarksOperator.is_held`), only the alignment group is told the
    watermark of the records that were read. That watermark may decrease when the source begins a
    split."""

    def __init__(self, operator: TimestampsAndWatermarksOperator) -> None:
        self._operator = operator
        self.last = MIN_TIMESTAMP
        self._idle = False

    def emit_watermark(self, timestamp: int) -> None:
        if self._operator.is_held:
            if timestamp > MIN_TIMESTAMP:
                self._operator.align(timestamp)
        elif timestamp > self.last:
            self.last = timestamp
            self.mark_active()
            self._operator.put_out_watermark(timestamp)

    def end(self) -> None:
        """Note that the input has ended: later watermarks of the generators are ignored. The
        operator itself puts out the last watermark."""
        self.last = MAX_TIMESTAMP
        self.mark_active()

    def mark_idle(self) -> None:
        if self._operator.is_held:
            self._operator.align(None)
        elif not self._idle:
            self._idle = True
            self._operator.put_out_status(True)

    def mark_active(self) -> None:
        if self._idle:
            self._idle = False
            self._operator.put_out_status(False)


class _TimeOfSplit:
    """The watermark generator of one split, or of all records without a split, with its output."""

    def __init__(self, generator: WatermarkGenerator, output: PartialWatermark, now: int) -> None:
        self.generator = generator
        self.output = output
        self.on_timestamps: Callable[[int], None] | None = getattr(generator, "on_timestamps", None)
        self.last_activity = now


class TimestampsAndWatermarksOperator(StreamOperator):
    """Assigns timestamps to records and puts out watermarks, as a watermark strategy says.

    Watermarks from upstream are dropped, except the last one, which ends the stream. If the source
    says which split a batch belongs to, each split has its own generator and its own idle time-out.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        progressive: bool = True,
        needs_timestamps: bool = True,
    ) -> None:
        self._strategy = strategy
        self._progressive = progressive
        """False in batch mode, which has no watermarks but the last one."""
        self._needs_timestamps = needs_timestamps and not strategy.passes_everything_on
        """Whether records without timestamps are refused. Otherwise they pass."""

    @property
    def is_aligned(self) -> bool:
        """Whether the source waits for slower sources (watermark alignment). If so, the operator
        must run in the source's task."""
        return self._progressive and self._strategy.alignment is not None

    @property
    def watermark(self) -> int:
        """The last watermark that was put out; may be read from any thread."""
        emitter: _Emitter | None = getattr(self, "_emitter", None)
        return MIN_TIMESTAMP if emitter is None else emitter.last

    @property
    def is_held(self) -> bool:
        """Whether watermarks must be held back until the source has read or begun further splits,
        whose records may be older."""
        return self._strategy.waits_for_splits and self.context.splits.are_awaited

    def open(self) -> None:
        self._begun = 0
        self._assign = self._strategy.create_assigner()
        self._column = self._strategy.timestamp_column
        self._emitter = _Emitter(self)
        self._combined = WatermarkMultiplexer(self._emitter)
        self._times: dict[str | None, _TimeOfSplit] = {}
        self._current = self._time_of(None)
        self._pending: Block | None = None
        self._done = 0
        self._place = 0
        interval = self.context.auto_watermark_interval
        if interval > 0 and self._progressive:
            self._every(interval, self._tick)
        self._member: AlignedMember | None = None
        alignment = self._strategy.alignment
        if alignment is not None and self._progressive and self.context.alignment is not None:
            self._member = self.context.alignment.join(alignment)
            self._every(alignment.update_interval, self._member.report)

    def _every(self, interval: int, action: Callable[[], None]) -> None:
        time_service = self.context.time_service

        def due(_: int) -> None:
            action()
            time_service.schedule(time_service.now() + interval, due)

        time_service.schedule(time_service.now() + interval, due)

    # --- splits -----------------------------------------------------------------------------------

    def _time_of(self, split_id: str | None) -> _TimeOfSplit:
        time = self._times.get(split_id)
        if time is None:
            now = self.context.time_service.now()
            generator = self._strategy.create_generator()
            time = _TimeOfSplit(generator, self._combined.register(split_id), now)
            self._times[split_id] = time
        return time

    def add_split(self, split_id: str) -> None:
        """Register a split. The operator's watermark does not advance before that of the split,
        even if no record of the split was read yet."""
        if split_id not in self._times:
            self._forget(None)
            self._time_of(split_id)

    def select_split(self, split_id: str | None) -> None:
        """Set the split that the following records belong to. None: no split."""
        self._current = self._time_of(split_id)

    def release_split(self, split_id: str) -> None:
        """Remove a split that has ended, for which watermarks need not wait any more. The
        operator's watermark does not go back."""
        time = self._times.get(split_id)
        if time is not None:
            time.generator.on_periodic_emit(time.output)
            if len(self._times) == 1:
                self._time_of(None)
            self._forget(split_id)

    def _follow_splits(self) -> None:
        """Make a new watermark generator if the source has begun another split meanwhile."""
        begun = self.context.splits.begun
        if begun == self._begun or not self._strategy.waits_for_splits:
            return
        self._begun = begun
        if None in self._times:
            self._forget(None)
            self._current = self._time_of(None)

    def _forget(self, split_id: str | None) -> None:
        if self._times.pop(split_id, None) is not None:
            self._combined.release(split_id)

    def _tick(self) -> None:
        self._combined.deferred(self._update_all)

    def _update_all(self) -> None:
        self._follow_splits()
        timeout = self._strategy.idle_timeout
        now = self.context.time_service.now()
        waits = self.context.source_waits
        for time in self._times.values():
            time.generator.on_periodic_emit(time.output)
            if timeout is None:
                continue
            if waits:
                time.last_activity = now  # a source that must wait is not idle
            elif now - time.last_activity >= timeout:
                time.output.mark_idle()

    # --- records ----------------------------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        self._follow_splits()
        timestamps = block.timestamps
        if self._assign is not None:
            assign = self._assign
            before = repeat(MIN_TIMESTAMP) if timestamps is None else timestamps
            pairs = zip(self.read(block), before, strict=False)
            timestamps = [assign(value, old) for value, old in pairs]
            wrong = first_wrong(timestamps)
            if wrong is not None:
                self.reading = reading_at(block, wrong)
                raise wrong_timestamp(timestamps[wrong])
            if set(map(type, timestamps)) != {int}:  # NumPy integers have their own arithmetic
                timestamps = list(map(index, timestamps))
        elif timestamps is None:
            if not self._needs_timestamps:
                self._active()
                self.output.emit(block)
                return
            raise StreamError(
                f"{self.context.name}: the records have no timestamps, and the watermark strategy "
                "has no timestamp assigner: add with_timestamp_assigner(...)"
            )
        stamped = Block(block.values, timestamps, None, block.origin)
        self._active()
        on_timestamps = self._current.on_timestamps
        if on_timestamps is not None:
            on_timestamps(max(timestamps))
            self.output.emit(stamped)
        else:
            self._generate_one_by_one(stamped, timestamps)

    def _active(self) -> None:
        if self._strategy.idle_timeout is not None:
            self._current.last_activity = self.context.time_service.now()
            self._current.output.mark_active()

    def _generate_one_by_one(self, block: Block, timestamps: Any) -> None:
        """Put out the records of a block, and each watermark right behind the record for which the
        generator makes it."""
        self._pending, self._done = block, 0
        generator, emitter = self._current.generator, self._current.output
        records = zip(self.read(block), timestamps, strict=True)
        for place, (value, timestamp) in enumerate(records, 1):
            self._place = place
            generator.on_event(value, timestamp, emitter)
        self._flush(len(block))
        self._pending = None

    def put_out_watermark(self, timestamp: int) -> None:
        if self._pending is not None:
            self._flush(self._place)
        if self._progressive:
            self.output.emit_watermark(timestamp)
            self.align(timestamp)

    def put_out_status(self, idle: bool) -> None:
        self.output.emit_status(idle)
        if self._member is not None:
            self._member.idle = idle

    def align(self, timestamp: int | None) -> None:
        """Report a watermark to the alignment group, in which sources wait for slower ones. None:
        the source is idle."""
        if self._member is not None:
            self._member.idle = timestamp is None
            if timestamp is not None:
                self._member.on_watermark(timestamp)

    def _flush(self, until: int) -> None:
        block, done = self._pending, self._done
        if block is None or until <= done:
            return
        assert block.timestamps is not None
        self._done = until
        self.output.emit(
            Block(block.values[done:until], block.timestamps[done:until], None, block.origin)
        )

    def process_columns(self, columns: Columns) -> None:
        self._follow_splits()
        on_timestamps = self._current.on_timestamps
        if on_timestamps is None or (self._column is None and self._assign is not None):
            self.process_block(columns.to_block())
            return
        timestamps = columns.timestamps
        if self._column is not None:
            timestamps = column_as_timestamps(columns.batch, self._column)
        if timestamps is None:
            if self._needs_timestamps:
                self.process_block(columns.to_block())
            else:
                self._active()
                self.output.emit_columns(columns)
            return
        if len(timestamps):
            self._active()
            on_timestamps(int(timestamps.max()))
        self.output.emit_columns(Columns(columns.batch, timestamps, columns.origin, columns.scalar))

    def process_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._emitter.end()
            self.output.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Ignore the status from upstream: this operator determines the status itself."""

    def finish(self) -> None:
        if self._progressive:
            self._combined.deferred(self._emit_all)
        if self._member is not None:
            self._member.leave()

    def _emit_all(self) -> None:
        for time in self._times.values():
            time.generator.on_periodic_emit(time.output)


_PARTS_OF_A_MILLISECOND = {"us": 1_000, "ns": 1_000_000}


def column_as_timestamps(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """Return a column of milliseconds or Arrow timestamps as int64 milliseconds.
    Raises StreamError: there is no such column, or it holds no times."""
    if name not in batch.schema.names:
        raise StreamError(f"no column {name!r} to read timestamps from: {batch.schema.names}")
    column = batch.column(name)
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind)):
        raise StreamError(f"column {name!r} holds {kind}, {NO_TIMES}")
    if column.null_count:
        raise StreamError(f"column {name!r} has {column.null_count} records without a timestamp")
    parts = _PARTS_OF_A_MILLISECOND.get(kind.unit, 1) if pa.types.is_timestamp(kind) else 1
    try:
        if pa.types.is_timestamp(kind) and kind.unit == "s":
            column = column.cast(pa.timestamp("ms", kind.tz))
        times: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise StreamError(f"column {name!r} holds what is no timestamp: {error}") from error
    return times if parts == 1 else times // parts
