"""What users implement.  Functions run in the thread of their task, one record at a time, and a
task has its own copy of each; ``open`` comes before the first record and ``close`` after the last.
Those that await others are in :mod:`flinkray.streaming.functions.async_functions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from flinkray.state.descriptors import MapStateDescriptor
    from flinkray.state.interfaces import BroadcastState, ReadOnlyBroadcastState
    from flinkray.streaming.functions.runtime_context import RuntimeContext

IN = TypeVar("IN")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
ACC = TypeVar("ACC")
KEY = TypeVar("KEY")
W = TypeVar("W")


class Function:
    """Base of all user functions."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once before the first record: the place to ask for state."""

    def close(self) -> None:
        """Called once after the last record, and when the task fails or is cancelled."""


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """One value for each value."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """The new value."""


class CoMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """One value for each value of two streams; None is left out."""

    @abstractmethod
    def map1(self, value: IN1) -> OUT:
        """For a value of the first stream."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT:
        """For a value of the second stream."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """Any number of values for each value: a generator, a list, or None."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT] | None:
        """The new values."""


class CoFlatMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Any number of values for each value of two streams."""

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT] | None:
        """For a value of the first stream."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT] | None:
        """For a value of the second stream."""


class FilterFunction(Function, ABC, Generic[IN]):
    """Keeps the values for which it returns true."""

    @abstractmethod
    def filter(self, value: IN) -> bool:
        """Whether to keep the value."""


class ReduceFunction(Function, ABC, Generic[IN]):
    """Makes one value of two, associatively."""

    @abstractmethod
    def reduce(self, value1: IN, value2: IN) -> IN:
        """One value of two: the reduced one so far, and the next."""


class AggregateFunction(Function, ABC, Generic[IN, ACC, OUT]):
    """Adds values to an accumulator and makes the result of it."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """An accumulator with nothing in it."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with *value* in it: a new one, or the same, changed."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result as it stands."""

    @abstractmethod
    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """Needed where windows merge (sessions)."""


class KeySelector(Function, ABC, Generic[IN, KEY]):
    """The key of a value."""

    @abstractmethod
    def get_key(self, value: IN) -> KEY:
        """The key; it must be hashable, and the same each time."""


class Partitioner(Function, ABC, Generic[KEY]):
    """Which of *num_partitions* channels a key goes to, from 0."""

    @abstractmethod
    def partition(self, key: KEY, num_partitions: int) -> int:
        """The number of the channel."""


class NullByteKeySelector(KeySelector[Any, int]):
    """The same key for every value."""

    def get_key(self, value: Any) -> int:
        return 0


class SinkFunction(Function, ABC, Generic[IN]):
    """Takes values out of the job, one at a time."""

    @abstractmethod
    def invoke(self, value: IN) -> None:
        """Take one value."""


class TimeDomain(Enum):
    """What kind of time a timer is of."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class TimerService(ABC):
    """Time, and timers of the current key.  Times are milliseconds since the epoch."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The clock's time, milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The smallest possible number before the first watermark."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` when the watermark reaches *timestamp*; at most once per key and
        timestamp."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` when processing time reaches *timestamp*."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take a timer back; nothing happens if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take a timer back; nothing happens if there is none."""


class ProcessContext(ABC):
    """What a process function may ask about the record it is given."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """The record's timestamp; None if it has none."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Time, and timers where the stream is keyed."""


class KeyedProcessContext(ProcessContext):
    """The same on a keyed stream."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """The key of the record or timer."""


class TimerContext(KeyedProcessContext):
    """The same for a timer; ``timestamp()`` is the timer's."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """What kind of time the timer is of."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """Any number of values for each value, side outputs (``yield tag, value``) and time."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessContext) -> Iterable[OUT] | None:
        """Results for a value."""


class KeyedProcessFunction(Function, ABC, Generic[KEY, IN, OUT]):
    """A process function with keyed state and timers."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = TimerContext

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessContext) -> Iterable[OUT] | None:
        """Results for a value; state and timers are those of its key."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT] | None:
        """A timer that this function registered fires."""
        return None


class CoProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A process function of two streams."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: ProcessContext) -> Iterable[OUT] | None:
        """Results for a value of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: ProcessContext) -> Iterable[OUT] | None:
        """Results for a value of the second stream."""


class KeyedCoProcessFunction(Function, ABC, Generic[KEY, IN1, IN2, OUT]):
    """A process function of two keyed streams, with state and timers they share."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = TimerContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: KeyedProcessContext) -> Iterable[OUT] | None:
        """Results for a value of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: KeyedProcessContext) -> Iterable[OUT] | None:
        """Results for a value of the second stream."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT] | None:
        """A timer that this function registered fires."""
        return None


class BaseBroadcastContext(ABC):
    """Time, as far as both sides of a broadcast function know it."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """The record's timestamp; None if it has none."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The clock's time, milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The smallest possible number before the first watermark."""


class BroadcastContext(BaseBroadcastContext):
    """For an element of the broadcast side: broadcast state may be changed."""

    @abstractmethod
    def get_broadcast_state(
        self, state_descriptor: MapStateDescriptor[Any, Any]
    ) -> BroadcastState[Any, Any]:
        """The state of that descriptor, to read and change; the same in all subtasks only if
        every subtask changes it alike."""


class ReadOnlyBroadcastContext(BaseBroadcastContext):
    """For an element of the other side: broadcast state may be read."""

    @abstractmethod
    def get_broadcast_state(
        self, state_descriptor: MapStateDescriptor[Any, Any]
    ) -> ReadOnlyBroadcastState[Any, Any]:
        """The state of that descriptor, to read."""


class KeyedReadOnlyBroadcastContext(ReadOnlyBroadcastContext):
    """The same on a keyed stream."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Time, and timers of the key."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """The key of the record or timer."""


class BroadcastTimerContext(KeyedReadOnlyBroadcastContext):
    """The same for a timer; ``timestamp()`` is the timer's."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """What kind of time the timer is of."""


class BaseBroadcastProcessFunction(Function):
    """What the two process functions with broadcast state have in common."""

    BaseContext: TypeAlias = BaseBroadcastContext
    Context: TypeAlias = BroadcastContext
    ReadOnlyContext: TypeAlias = ReadOnlyBroadcastContext


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[IN1, IN2, OUT]):
    """A process function of a stream and a broadcast stream."""

    @abstractmethod
    def process_element(self, value: IN1, ctx: ReadOnlyBroadcastContext) -> Iterable[OUT] | None:
        """Results for a value; broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastContext) -> Iterable[OUT] | None:
        """Results for a value that every subtask is given; broadcast state can be changed."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[KEY, IN1, IN2, OUT]):
    """A process function of a keyed stream and a broadcast stream."""

    ReadOnlyContext: TypeAlias = KeyedReadOnlyBroadcastContext
    OnTimerContext: TypeAlias = BroadcastTimerContext

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: KeyedReadOnlyBroadcastContext
    ) -> Iterable[OUT] | None:
        """Results for a value; broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(self, value: IN2, ctx: BroadcastContext) -> Iterable[OUT] | None:
        """Results for a value that every subtask is given; broadcast state can be changed."""

    def on_timer(self, timestamp: int, ctx: BroadcastTimerContext) -> Iterable[OUT] | None:
        """A timer that ``process_element`` registered fires; broadcast state can be read."""
        return None


class ProcessJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Any number of values for each pair of an interval join."""

    @abstractmethod
    def process_element(self, left: IN1, right: IN2, ctx: Any) -> Iterable[OUT] | None:
        """*ctx* has ``get_left_timestamp()``, ``get_right_timestamp()`` and ``get_timestamp()``,
        the later of the two."""


class JoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """One value for each pair of a window join."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """*first* is of the stream that ``join`` was called on."""


class CoGroupFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Any number of values for the records of a key and window in two streams."""

    @abstractmethod
    def co_group(self, first: list[IN1], second: list[IN2]) -> Iterable[OUT] | None:
        """One of the lists may be empty."""
