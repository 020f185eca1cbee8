"""The functions that users implement, also those of windows and of many records at once.

Functions run in the thread of their task, one record at a time, and each task has its own copy.
``open`` is called before the first record and ``close`` after the last one. Asynchronous functions
are in :mod:`flinkray.streaming.functions.async_functions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import pyarrow as pa
from typing_extensions import TypeVar

from flinkray.state.key_numbers import Slots
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.runtime_context import KeyedStateStore

if TYPE_CHECKING:
    from flinkray.state.descriptors import K, MapStateDescriptor, V
    from flinkray.state.interfaces import BroadcastState, ReadOnlyBroadcastState
    from flinkray.streaming.functions.runtime_context import RuntimeContext

# Type arguments that a program leaves out are Any.
T = TypeVar("T", default=Any)
IN = TypeVar("IN", contravariant=True, default=Any)
IN1 = TypeVar("IN1", contravariant=True, default=Any)
IN2 = TypeVar("IN2", contravariant=True, default=Any)
OUT = TypeVar("OUT", covariant=True, default=Any)
ACC = TypeVar("ACC", default=Any)
KEY = TypeVar("KEY", contravariant=True, default=Any)
W = TypeVar("W", contravariant=True, default=Any)

Tagged: TypeAlias = tuple[OutputTag[Any], Any]
"""A result for a side output: the tag of the side output, and the value."""


class Function:
    """Base class of all user functions."""

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:
        """Called once before the first record. Request state in this method.
        Only the methods of an AsyncFunction may be ``async def``."""
        return None

    def close(self) -> Awaitable[None] | None:
        """Called once after the last record, and when the task fails or is cancelled."""
        return None


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """A function that replaces each value of a stream by another value."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """Return the value that replaces *value* in the stream."""


class CoMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A function that replaces each value of two streams by another value; None is left out."""

    @abstractmethod
    def map1(self, value: IN1) -> OUT | None:
        """Return the value that replaces *value*, a value of the first of both streams."""

    @abstractmethod
    def map2(self, value: IN2) -> OUT | None:
        """Return the value that replaces *value*, a value of the second of both streams."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """A function that replaces each value of a stream by any number of values.
    Its method is a generator, or returns a list or None."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT | Tagged] | None:
        """Return the values that replace *value* in the stream; None or an empty list: none."""


class CoFlatMapFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A function that replaces each value of two streams by any number of values."""

    @abstractmethod
    def flat_map1(self, value: IN1) -> Iterable[OUT | Tagged] | None:
        """Return the values that replace *value*, a value of the first of both streams."""

    @abstractmethod
    def flat_map2(self, value: IN2) -> Iterable[OUT | Tagged] | None:
        """Return the values that replace *value*, a value of the second of both streams."""


class FilterFunction(Function, ABC, Generic[IN]):
    """A function that keeps the values of a stream for which ``filter`` returns true."""

    @abstractmethod
    def filter(self, value: IN) -> bool:
        """Return whether *value* stays in the stream."""


class ReduceFunction(Function, ABC, Generic[T]):
    """A function that combines two values into one; the operation must be associative."""

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """Return the combination of *value1*, the result for the values until now, and *value2*,
        the next value."""


class AggregateFunction(Function, ABC, Generic[IN, ACC, OUT]):
    """A function that adds values to an accumulator and computes the result from it."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return an empty accumulator."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return *accumulator* with *value* added: a new accumulator, or the same one after a
        change."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the aggregate's result for the values added to *accumulator* so far."""

    @abstractmethod
    def merge(self, acc_a: ACC, acc_b: ACC) -> ACC:
        """Return both accumulators combined. Needed where windows merge (sessions)."""


class KeySelector(Function, ABC, Generic[IN, OUT]):
    """A function that returns the key of a value."""

    @abstractmethod
    def get_key(self, value: IN) -> OUT:
        """Return the key of *value*: a hashable value, which is equal in every call for a value."""


class Partitioner(Function, ABC, Generic[KEY]):
    """A function that decides to which of *num_partitions* channels the records of a key go."""

    @abstractmethod
    def partition(self, key: KEY, num_partitions: int) -> int:
        """Return the number of the channel for the records of *key*, from 0."""


class NullByteKeySelector(KeySelector[Any, int]):
    """A key selector that returns the key 0 for every value."""

    def get_key(self, value: Any) -> int:
        return 0


class SinkFunction(Function, ABC, Generic[IN]):
    """A function that takes the values of a stream out of the job, one at a time."""

    @abstractmethod
    def invoke(self, value: IN) -> None:
        """Take one value out of the job, for example write it to a database."""


class TimeDomain(Enum):
    """The kinds of time for which timers can be set."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


class TimerService(ABC):
    """Gives a function the time, and sets timers for the current key.
    All times are milliseconds since the epoch."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the current watermark; the least possible time before the first watermark."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer for the current key, which fires when the watermark reaches *timestamp*.
        ``on_timer`` is called once for each key and timestamp."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer for the current key, which fires when processing time reaches
        *timestamp*. ``on_timer`` is called once for each key and timestamp."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the current key's event-time timer at *timestamp*, if there is one."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the current key's processing-time timer at *timestamp*, if there is one."""


class ProcessContext(ABC):
    """Context of the record that a process function processes."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Return the record's timestamp; None if the record has none."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Return the timer service. Timers can be registered only on keyed streams."""


class KeyedProcessContext(ProcessContext):
    """Context of the record that a process function of a keyed stream processes."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """Return the key of the record or timer."""


class TimerContext(KeyedProcessContext):
    """Context of a timer that fires; ``timestamp()`` returns the time of the timer."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """Return whether the timer is a timer of event time or of processing time."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """A function that returns any number of results for each value.
    It can ask for the time, and has side outputs: ``yield tag, value`` puts a value out there."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessContext) -> Iterable[OUT | Tagged] | None:
        """Return the results that the operator puts out for *value*; None: no results."""


class KeyedProcessFunction(Function, ABC, Generic[KEY, IN, OUT]):
    """A :class:`ProcessFunction` of a keyed stream, with keyed state and timers."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = TimerContext

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessContext) -> Iterable[OUT | Tagged] | None:
        """Return the results that the operator puts out for *value*; None: no results.
        State and timers are those of the key of *value*."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT | Tagged] | None:
        """Called when a timer that this function registered fires. Return its results."""
        return None


class CoProcessFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A function that returns any number of results for each value of two streams."""

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element1(self, value: IN1, ctx: ProcessContext) -> Iterable[OUT | Tagged] | None:
        """Return the results that are put out for *value*, a value of the first stream."""

    @abstractmethod
    def process_element2(self, value: IN2, ctx: ProcessContext) -> Iterable[OUT | Tagged] | None:
        """Return the results that are put out for *value*, a value of the second stream."""


class KeyedCoProcessFunction(Function, ABC, Generic[KEY, IN1, IN2, OUT]):
    """A function that returns any number of results for each value of two keyed streams.
    Both streams share keyed state and timers."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = TimerContext

    @abstractmethod
    def process_element1(
        self, value: IN1, ctx: KeyedProcessContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results that are put out for *value*, a value of the first stream."""

    @abstractmethod
    def process_element2(
        self, value: IN2, ctx: KeyedProcessContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results that are put out for *value*, a value of the second stream."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT | Tagged] | None:
        """Called when a timer that this function registered fires. Return its results."""
        return None


class BaseBroadcastContext(ABC):
    """Base class of the contexts of broadcast process functions.
    Gives the function the timestamp of the record, and the present time."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Return the record's timestamp; None if the record has none."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the current watermark; the least possible time before the first watermark."""


class BroadcastContext(BaseBroadcastContext):
    """Context of a broadcast element, for a function that can change broadcast state."""

    @abstractmethod
    def get_broadcast_state(
        self, state_descriptor: MapStateDescriptor[K, V]
    ) -> BroadcastState[K, V]:
        """Return the broadcast state of a descriptor, to read and change.
        It is equal in all subtasks only if every subtask changes it in the same way."""


class ReadOnlyBroadcastContext(BaseBroadcastContext):
    """Context of an element that is not broadcast, for a function that reads broadcast state."""

    @abstractmethod
    def get_broadcast_state(
        self, state_descriptor: MapStateDescriptor[K, V]
    ) -> ReadOnlyBroadcastState[K, V]:
        """Return the broadcast state of a descriptor, to read."""


class KeyedReadOnlyBroadcastContext(ReadOnlyBroadcastContext):
    """Context of an element of a keyed stream, for a function that can read broadcast state."""

    @abstractmethod
    def timer_service(self) -> TimerService:
        """Return the timer service, for timers of the current key."""

    @abstractmethod
    def get_current_key(self) -> Any:
        """Return the key of the record or timer."""


class BroadcastTimerContext(KeyedReadOnlyBroadcastContext):
    """Context of a timer of a broadcast process function that fires.
    ``timestamp()`` returns the time of the timer."""

    @abstractmethod
    def time_domain(self) -> TimeDomain:
        """Return whether the timer is a timer of event time or of processing time."""


class BaseBroadcastProcessFunction(Function):
    """Base class of both kinds of process functions with broadcast state."""

    BaseContext: TypeAlias = BaseBroadcastContext
    Context: TypeAlias = BroadcastContext
    ReadOnlyContext: TypeAlias = ReadOnlyBroadcastContext


class BroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[IN1, IN2, OUT]):
    """A function of a stream and a broadcast stream: any number of results for each value.
    Broadcast values can change broadcast state; for other values this state can be read."""

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: ReadOnlyBroadcastContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for a value of the stream. Broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: BroadcastContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for a broadcast value. Broadcast state can be changed.
        Every subtask gets every broadcast value."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, ABC, Generic[KEY, IN1, IN2, OUT]):
    """A function of a keyed stream and a broadcast stream: any number of results for each value.
    Broadcast values can change broadcast state. For values of the keyed stream this state can be
    read, and keyed state and timers can be used."""

    ReadOnlyContext: TypeAlias = KeyedReadOnlyBroadcastContext
    OnTimerContext: TypeAlias = BroadcastTimerContext

    @abstractmethod
    def process_element(
        self, value: IN1, ctx: KeyedReadOnlyBroadcastContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for a value of the stream. Broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: BroadcastContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for a broadcast value. Broadcast state can be changed.
        Every subtask gets every broadcast value."""

    def on_timer(self, timestamp: int, ctx: BroadcastTimerContext) -> Iterable[OUT | Tagged] | None:
        """Called when a timer that ``process_element`` registered fires. Return its results.
        Broadcast state can be read."""
        return None


class ProcessJoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A function that returns any number of results for each pair of an interval join."""

    @abstractmethod
    def process_element(self, left: IN1, right: IN2, ctx: Any) -> Iterable[OUT | Tagged] | None:
        """Return the results that the join puts out for a pair of records; None: no results.
        *ctx* has ``get_left_timestamp()``, ``get_right_timestamp()`` and ``get_timestamp()``, the
        later of the two."""


class JoinFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A function that returns one value for each pair of a window join."""

    @abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """Return the value for a pair. *first* is of the stream on which ``join`` was called."""


class CoGroupFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """A function of all records that two streams have for a key and window.
    It returns any number of results."""

    @abstractmethod
    def co_group(self, first: list[IN1], second: list[IN2]) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of both streams. One of the lists may be empty."""


WINDOW = TypeVar("WINDOW", covariant=True, default=Any)


class WindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """A function that returns the results of a window of one key."""

    @abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the key's window."""


class AllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """A function that returns the results of a window over the whole stream."""

    @abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the window."""


class WindowContext(ABC, Generic[WINDOW]):
    """Context of the window that a process window function processes."""

    @abstractmethod
    def window(self) -> WINDOW:
        """Return the window that is evaluated or cleared."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of the clock, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the current watermark; the least possible time before the first watermark."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Return state of this key and window. Clear it in ``clear``."""

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Return state of this key, which all its windows share."""


class ProcessWindowFunction(Function, ABC, Generic[IN, OUT, KEY, W]):
    """A function that returns the results of a window of one key, with state and time."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(
        self, key: KEY, context: WindowContext[W], elements: Iterable[IN]
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the key's window."""

    def clear(self, context: WindowContext[W]) -> None:
        """Called when the window is removed: clear its state."""


class ProcessAllWindowFunction(Function, ABC, Generic[IN, OUT, W]):
    """A function that returns the results of a window over the whole stream.
    It can use state and time."""

    Context: TypeAlias = WindowContext

    @abstractmethod
    def process(
        self, context: WindowContext[W], elements: Iterable[IN]
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for the records of the window."""

    def clear(self, context: WindowContext[W]) -> None:
        """Called when the window is removed: clear its state."""


class BatchContext(ABC):
    """Context of the batch that a :class:`KeyedBatchFunction` processes."""

    slots: Slots
    """For each row, the index (slot) of its key in array state."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[Any]:
        """All keys that the subtask has seen so far. The index of a key is its slot, as in
        ``slots``."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark in milliseconds; the least time before the first watermark."""


class KeyedBatchFunction(Function, ABC):
    """Gets whole Arrow batches, and for each row the index (slot) of its key in arrays of state.
    State comes from ``runtime_context.get_array_state`` and is read and written as NumPy arrays: no
    Python object is made for a record or a key."""

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Return the results for a batch: a record batch, a table, several of them, or None.
        If rows have timestamps, these are in the last column, ``$timestamp``. If the results have
        such a column, it gives their timestamps."""

    def on_watermark(self, timestamp: int, ctx: BatchContext) -> Any:
        """Return results that go before a watermark, in the form of :meth:`process_batch`.
        At the end of the input comes the last watermark, Java's greatest ``long``. ``ctx.slots`` is
        empty."""
        return None


class GroupContext(TimerContext):
    """Context of the records of one key that a :class:`KeyedGroupFunction` processes."""

    timestamps: Sequence[int] | None
    """The timestamps of the records; None if they have none. The results get the latest of them,
    which :meth:`timestamp` returns."""


class KeyedGroupFunction(Function, ABC, Generic[KEY, IN, OUT]):
    """Gets all records that a batch has for a key in one call, and so reads the key's state only
    once for them."""

    @abstractmethod
    def process_group(
        self, key: KEY, values: list[IN], ctx: GroupContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for *values*, records of *key* in the order in which they arrived."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT | Tagged] | None:
        """Called when a timer that this function registered fires. Return its results."""
        return None
