"""Process functions: any number of results, side outputs, time; with keys also state and timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from flinkray.state.heap_handles import KeyContext
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    ProcessContext,
    TimeDomain,
    TimerContext,
    TimerService,
)
from flinkray.streaming.operators.keyed import KeyedFunctionOperator
from flinkray.streaming.operators.operator import FunctionOperator, OperatorState
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.timers import InternalTimerService


class KeyedTimerService(TimerService):
    """Timers of the current key."""

    __slots__ = ("_timers",)

    def __init__(self, timers: InternalTimerService) -> None:
        self._timers = timers

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.current_watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._timers.register_event_time_timer(None, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._timers.register_processing_time_timer(None, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers.delete_event_time_timer(None, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._timers.delete_processing_time_timer(None, timestamp)


class TimeOnlyService(TimerService):
    """Time where there is no key, and therefore no timers."""

    def __init__(self, time_service: ProcessingTimeService) -> None:
        self._time_service = time_service
        self.watermark = MIN_TIMESTAMP

    def current_processing_time(self) -> int:
        return self._time_service.now()

    def current_watermark(self) -> int:
        return self.watermark

    def _refuse(self, timestamp: int) -> None:
        raise StreamError("timers need a keyed stream; call key_by before process")

    register_event_time_timer = _refuse
    register_processing_time_timer = _refuse
    delete_event_time_timer = _refuse
    delete_processing_time_timer = _refuse


class RecordContext(ProcessContext):
    """About the record that is processed now."""

    __slots__ = ("_service", "record_timestamp")

    def __init__(self, service: TimerService) -> None:
        self._service = service
        self.record_timestamp: int | None = None

    def timestamp(self) -> int | None:
        return self.record_timestamp

    def timer_service(self) -> TimerService:
        return self._service


class KeyedRecordContext(TimerContext):
    """About the record or timer that is processed now, and its key."""

    __slots__ = ("_key_context", "_service", "domain", "record_timestamp")

    def __init__(self, key_context: KeyContext, service: TimerService) -> None:
        self._key_context = key_context
        self._service = service
        self.record_timestamp: int | None = None
        self.domain = TimeDomain.EVENT_TIME

    def timestamp(self) -> int | None:
        return self.record_timestamp

    def timer_service(self) -> TimerService:
        return self._service

    def get_current_key(self) -> Any:
        return self._key_context.key

    def time_domain(self) -> TimeDomain:
        return self.domain


Process = Callable[[Any, Any], Any]


def process_records(
    process: Process, context: Any, block: Block, records: Any
) -> tuple[list[Any], list[int] | None]:
    """All results of *process*, each with its record's timestamp.

    *records* is an iterator over the block's values that the caller keeps, so that an error can
    be traced to its record.
    """
    out: list[Any] = []
    extend = out.extend
    if block.timestamps is None:
        context.record_timestamp = None
        for value in records:
            results = process(value, context)
            if results is not None:
                extend(results)
        return out, None
    times: list[int] = []
    count = 0
    for value, timestamp in zip(records, block.timestamps, strict=True):
        context.record_timestamp = timestamp
        results = process(value, context)
        if results is not None:
            extend(results)
            added = len(out) - count
            if added:
                times.extend(repeat(timestamp, added))
                count += added
    return out, times


def process_keyed_records(
    process: Process,
    context: Any,
    key_context: KeyContext,
    keys: Sequence[Any],
    block: Block,
    records: Any,
) -> tuple[list[Any], list[int] | None]:
    """The same with the key set for each record."""
    out: list[Any] = []
    extend = out.extend
    if block.timestamps is None:
        context.record_timestamp = None
        for value, key_context.key in zip(records, keys, strict=True):
            results = process(value, context)
            if results is not None:
                extend(results)
        return out, None
    times: list[int] = []
    count = 0
    for value, key_context.key, timestamp in zip(records, keys, block.timestamps, strict=True):
        context.record_timestamp = timestamp
        results = process(value, context)
        if results is not None:
            extend(results)
            added = len(out) - count
            if added:
                times.extend(repeat(timestamp, added))
                count += added
    return out, times


class ProcessOperator(FunctionOperator):
    """A process function on a stream without keys."""

    def open(self) -> None:
        super().open()
        self._service = TimeOnlyService(self.context.time_service)
        self._record_context = RecordContext(self._service)
        self._process = self.method("process_element")

    def process_block(self, block: Block) -> None:
        records = iter(block.values)
        out, times = process_records(self._process, self._record_context, block, records)
        self.output.emit_results(out, times, block.origin)

    def process_watermark(self, timestamp: int) -> None:
        self._service.watermark = timestamp
        self.output.emit_watermark(timestamp)


class TimerResults:
    """Collects what timers put out, until it is emitted as one batch."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.timestamps: list[int] = []

    def add(self, results: Any, timestamp: int) -> None:
        if results is not None:
            before = len(self.values)
            self.values.extend(results)
            self.timestamps.extend(repeat(timestamp, len(self.values) - before))

    def take(self) -> tuple[list[Any], list[int]]:
        taken = self.values, self.timestamps
        self.values, self.timestamps = [], []
        return taken


class KeyedTimersOperator(KeyedFunctionOperator):
    """Base of keyed operators whose function has ``on_timer``.

    Results of event-time timers carry the timer's timestamp and come before the watermark that
    fired them; results of processing-time timers carry none.
    """

    def setup(self, context: Any, output: Any) -> None:
        super().setup(context, output)
        assert self.keyed_state is not None
        self.timers = InternalTimerService(
            context.time_service,
            self.keyed_state.context,
            self.on_event_time_timer,
            self.on_processing_time_timer,
        )
        self.timer_results = TimerResults()
        self.timer_service = KeyedTimerService(self.timers)
        self.record_context = self.make_context()

    def make_context(self) -> Any:
        """What the function is given as ``ctx``."""
        assert self.keyed_state is not None
        return KeyedRecordContext(self.keyed_state.context, self.timer_service)

    def on_event_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        context = self.record_context
        context.record_timestamp = timestamp
        context.domain = TimeDomain.EVENT_TIME
        self.timer_results.add(self.function.on_timer(timestamp, context), timestamp)

    def on_processing_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        context = self.record_context
        context.record_timestamp = None
        context.domain = TimeDomain.PROCESSING_TIME
        self.timer_results.add(self.function.on_timer(timestamp, context), timestamp)
        values, _ = self.timer_results.take()
        self.output.emit_results(values, None)

    def process_watermark(self, timestamp: int) -> None:
        self.timers.advance_watermark(timestamp)
        values, times = self.timer_results.take()
        self.output.emit_results(values, times)
        self.output.emit_watermark(timestamp)

    def snapshot(self, checkpoint_id: int) -> OperatorState:
        state = super().snapshot(checkpoint_id)
        timers = self.timers.snapshot(self.context.max_parallelism)
        return OperatorState(state.keyed, state.operator, timers)

    def restore(self, states: Sequence[OperatorState]) -> None:
        super().restore(states)
        assert self.keyed_state is not None
        for state in states:
            if state.timers is not None:
                self.timers.restore(dict(state.timers), self.keyed_state.key_groups)


class KeyedProcessOperator(KeyedTimersOperator):
    """A keyed process function."""

    def __init__(self, function: Any, keys: Keys) -> None:
        super().__init__(function, keys)
        self._process = self.method("process_element")

    def process_block(self, block: Block) -> None:
        keys = self.keys.of_block(block)
        records = iter(block.values)
        out, times = process_keyed_records(
            self._process, self.record_context, self.key_context, keys, block, records
        )
        self.output.emit_results(out, times, block.origin)
