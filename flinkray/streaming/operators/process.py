"""Process functions: any number of results, side outputs, time; with keys also state, timers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flinkray.core.values import IMMUTABLE
from flinkray.state.table import KeyContext
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.functions import (
    ProcessContext,
    TimeDomain,
    TimerContext,
    TimerService,
)
from flinkray.streaming.operators.collector import Collector
from flinkray.streaming.operators.keyed import KeyedFunctionOperator
from flinkray.streaming.operators.operator import (
    FunctionOperator,
    OperatorContext,
    OperatorState,
    Output,
    StreamOperator,
)
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.time.given_times import timer_time
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.timers import InternalTimerService


class KeyedTimerService(TimerService):
    """Registers and deletes timers of the current key, and returns the time."""

    __slots__ = ("_timers",)

    def __init__(self, timers: InternalTimerService) -> None:
        self._timers = timers

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        return self._timers.current_watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._timers.register_event_time_timer(None, timer_time(timestamp))

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._timers.register_processing_time_timer(None, timer_time(timestamp))

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers.delete_event_time_timer(None, timer_time(timestamp))

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._timers.delete_processing_time_timer(None, timer_time(timestamp))


class TimeOnlyService(TimerService):
    """The timer service on streams without keys: returns the time, and refuses timers."""

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
    """Context of the record that is processed, on a stream without keys."""

    __slots__ = ("_service", "record_timestamp")

    def __init__(self, service: TimerService) -> None:
        self._service = service
        self.record_timestamp: int | None = None

    def timestamp(self) -> int | None:
        return self.record_timestamp

    def timer_service(self) -> TimerService:
        return self._service


class KeyedRecordContext(TimerContext):
    """Context of the record or timer that is processed, and of its key."""

    __slots__ = ("_key_context", "_own", "_service", "domain", "record_timestamp")

    def __init__(
        self, key_context: KeyContext, service: TimerService, own: Callable[[Any], Any]
    ) -> None:
        """Make the context of a keyed process function.
        *own* copies a key, so that the function may change the copy."""
        self._key_context = key_context
        self._own = own
        self._service = service
        self.record_timestamp: int | None = None
        self.domain = TimeDomain.EVENT_TIME

    def timestamp(self) -> int | None:
        return self.record_timestamp

    def timer_service(self) -> TimerService:
        return self._service

    def get_current_key(self) -> Any:
        key = self._key_context.key
        return key if type(key) in IMMUTABLE else self._own(key)

    def time_domain(self) -> TimeDomain:
        return self.domain


class TimelessOperator(FunctionOperator):
    """Base of operators of streams without keys, whose function can ask for the time but set no
    timers."""

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self.results = Collector(context, output)
        self.time = TimeOnlyService(context.time_service)

    def process_watermark(self, timestamp: int) -> None:
        self.time.watermark = timestamp
        self.output.emit_watermark(timestamp)


class ProcessOperator(TimelessOperator):
    """Runs a process function on a stream without keys."""

    def open(self) -> None:
        super().open()
        self._record_context = RecordContext(self.time)
        self._process = self.method("process_element")

    def process_block(self, block: Block) -> None:
        self.results.of_each(self._process, self.read(block), block, self._record_context)


class WithTimers(StreamOperator, ABC):
    """Mixin class of keyed operators that have timers, which fire in portions.
    Results of event-time timers have the timer's timestamp and are put out before the watermark
    that fired the timers. Results of processing-time timers have no timestamp. In the first
    operator of a task, mail is run between portions."""

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        assert self.keyed_state is not None
        self.key_context = self.keyed_state.context
        self.timers = InternalTimerService(
            context.time_service,
            self.keyed_state,
            self.on_event_time_timer,
            self.on_processing_time_timer,
            context.turn,
        )
        self.results = Collector(context, output)

    @abstractmethod
    def on_event_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None: ...

    @abstractmethod
    def on_processing_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None: ...

    def describe_occasion(self) -> str:
        firing = self.timers.firing
        if firing is None:
            return ""
        timestamp, key, _ = firing
        return f"the timer for {timestamp} of key {text_of(key)}"

    def process_watermark(self, timestamp: int) -> None:
        self.results.begin()
        while not self.timers.advance_watermark(timestamp):
            self.results.flush()
            if self.context.is_head:
                self.context.turn.leave(lambda: self.process_watermark(timestamp))
                return
            self.context.turn.pause()
        self.results.flush()
        self.fired_until(timestamp)

    def fired_until(self, timestamp: int) -> None:
        """Put out the watermark *timestamp*, because all event-time timers up to it have fired."""
        self.output.emit_watermark(timestamp)

    def restore(self, states: Sequence[OperatorState], checkpoint_id: int | None = None) -> None:
        super().restore(states, checkpoint_id)
        self.timers.resume()


class KeyedTimersOperator(WithTimers, KeyedFunctionOperator):
    """Base of keyed operators whose function has ``on_timer``."""

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self.timer_service = KeyedTimerService(self.timers)
        self.record_context = self.make_context()

    def make_context(self) -> Any:
        return KeyedRecordContext(self.key_context, self.timer_service, self.context.own)

    def process_keyed(
        self, process: Callable[[Any, Any], Any], keys: Sequence[Any], block: Block
    ) -> None:
        """Call *process* with each record of the block and its key, and put the results out."""
        self.results.of_each(
            process, self.read(block), block, self.record_context, keys, self.key_context
        )

    def on_event_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        context = self.record_context
        context.record_timestamp = timestamp
        context.domain = TimeDomain.EVENT_TIME
        self.results.add(self.function.on_timer(timestamp, context), timestamp)

    def on_processing_time_timer(self, timestamp: int, key: Any, namespace: Any) -> None:
        context = self.record_context
        context.record_timestamp = timestamp
        context.domain = TimeDomain.PROCESSING_TIME
        self.results.add(self.function.on_timer(timestamp, context), None)
        self.results.flush()


class KeyedProcessOperator(KeyedTimersOperator):
    """Runs a process function on a keyed stream."""

    def __init__(self, function: Any, keys: Keys) -> None:
        super().__init__(function, keys)
        self._process = self.method("process_element")

    def process_block(self, block: Block) -> None:
        self.process_keyed(self._process, self.keys.of_block(block), block)


class _GroupContext(KeyedRecordContext):
    __slots__ = ("timestamps",)

    def __init__(self, key_context: Any, service: TimerService, own: Callable[[Any], Any]) -> None:
        super().__init__(key_context, service, own)
        self.timestamps: list[int] | None = None


class KeyedGroupOperator(KeyedTimersOperator):
    """Calls a function once per key of a block. Results have the latest timestamp of the key."""

    _group: tuple[Any, int] | None = None
    """Key and number of records of the call that is running, for error messages."""

    def make_context(self) -> Any:
        return _GroupContext(self.key_context, self.timer_service, self.context.own)

    def process_block(self, block: Block) -> None:
        process, context, key_context = (
            self.function.process_group,
            self.record_context,
            self.key_context,
        )
        own = self.context.own
        keys = self.keys.of_block(block)
        groups = _by_key(keys, self.read(block))
        times = None if block.timestamps is None else _by_key(keys, block.timestamps)
        self.results.begin(block.origin)
        for key, values in groups.items():
            key_context.key = key
            context.timestamps = None if times is None else times[key]
            latest = context.record_timestamp = None if times is None else max(times[key])
            self._group = key, len(values)
            self.results.add(process(own(key), values, context), latest)
        self._group = None
        self.results.flush()

    def describe_occasion(self) -> str:
        if self._group is None:
            return super().describe_occasion()
        key, number = self._group
        return f"{number} records of key {text_of(key)}"


def _by_key(keys: Sequence[Any], things: Iterable[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for key, thing in zip(keys, things, strict=True):
        groups[key].append(thing)
    return groups
