"""Windows of a stream, and the functions that evaluate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from flinkray.core.durations import Duration, Time
from flinkray.datastream.closeable_iterator import RecordBatchFunction
from flinkray.datastream.type_variables import K, R, T, U, W
from flinkray.datastream.window_operator_builder import WindowOperatorBuilder
from flinkray.streaming.functions.functions import (
    AggregateFunction,
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.signatures import expect_function, expect_kind
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.windowing.assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    AggregateContents,
    ListContents,
    ReduceContents,
    WindowContents,
)
from flinkray.streaming.windowing.evictors import Evictor
from flinkray.streaming.windowing.triggers import Trigger
from flinkray.streaming.windowing.window import CountWindow

if TYPE_CHECKING:
    from flinkray.datastream.keyed_stream import KeyedStream
    from flinkray.datastream.stream import DataStream


_Self = TypeVar("_Self", bound="InWindows")

_Evaluates: TypeAlias = (
    WindowFunction[U, R, K, W]
    | ProcessWindowFunction[U, R, K, W]
    | AllWindowFunction[U, R, W]
    | ProcessAllWindowFunction[U, R, W]
)
"""A window function of values of type U, which returns results of type R."""


def count_assigner(size: int, slide: int) -> WindowAssigner[Any, CountWindow]:
    if slide:
        return CountSlidingWindowAssigner(size, slide)
    return CountTumblingWindowAssigner(size)


class InWindows:
    """Base of windowed streams, joins and co-groups: methods for trigger, evictor and lateness."""

    _builder: WindowOperatorBuilder

    def trigger(self: _Self, trigger: Trigger) -> _Self:
        """Evaluate windows when this trigger fires, instead of the assigner's own trigger."""
        self._builder.trigger(trigger)
        return self

    def evictor(self: _Self, evictor: Evictor) -> _Self:
        """Set an evictor, which removes records when a window is evaluated.
        All records are kept until then."""
        self._builder.evictor(evictor)
        return self

    def allowed_lateness(self: _Self, time_ms: int | Time | Duration) -> _Self:
        """Keep windows for this time (milliseconds, if a number) after their end. A late record
        then makes its window fire again."""
        self._builder.allowed_lateness(time_ms)
        return self


class _Windowed(InWindows, Generic[T, K, W]):
    """Common base of WindowedStream and AllWindowedStream: settings and functions of windows."""

    _keyed = True

    def __init__(
        self, keyed_stream: KeyedStream[T, K], window_assigner: WindowAssigner[Any, W]
    ) -> None:
        self._stream = keyed_stream
        self._builder = WindowOperatorBuilder(window_assigner, keyed_stream._stream.type_info)

    def get_execution_environment(self) -> Any:
        """Return the environment that the program began with."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """Return the type of the records that are put into the windows."""
        return self._stream.get_type()

    def side_output_late_data(self: _Self, output_tag: OutputTag[Any]) -> _Self:
        """Send records that are too late for all their windows to a side output.
        Without a side output these records are dropped."""
        self._builder.side_output_late_data(output_tag)
        return self

    @overload
    def reduce(self, reduce_function: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]: ...
    # For pyright: (word, 1) has the type tuple[str, Literal[1]], which no sum of records has.
    @overload
    def reduce(
        self: _Windowed[tuple[Any, ...], Any, Any],
        reduce_function: Callable[[T, T], tuple[Any, ...]] | ReduceFunction[tuple[Any, ...]],
    ) -> DataStream[T]: ...
    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: _Evaluates[T, R, K, W],
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], Any] | ReduceFunction[Any],
        window_function: _Evaluates[Any, Any, K, W] | None = None,
        *,
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    @overload
    def reduce(
        self,
        reduce_function: Callable[[T, T], Any] | ReduceFunction[Any],
        window_function: _Evaluates[Any, Any, K, W] | None,
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def reduce(
        self,
        reduce_function: Any,
        window_function: Any = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Reduce the records of a window to one value.
        If there is a window function, it is given only this value."""
        expect_function(reduce_function, "reduce", "a ReduceFunction", 2)
        if output_type is None and window_function is None:
            output_type = self._stream._stream.type_info
        return self._evaluated(
            "Reduce", ReduceContents(reduce_function), window_function, output_type
        )

    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, Any, R],
        window_function: None = None,
        accumulator_type: TypeInformation | None = None,
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, Any, U],
        window_function: _Evaluates[U, R, K, W],
        accumulator_type: TypeInformation | None = None,
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, Any, U],
        window_function: _Evaluates[U, Any, K, W] | None = None,
        accumulator_type: TypeInformation | None = None,
        *,
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    @overload
    def aggregate(
        self,
        aggregate_function: AggregateFunction[T, Any, U],
        window_function: _Evaluates[U, Any, K, W] | None,
        accumulator_type: TypeInformation | None,
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Any = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Aggregate the records of a window with an accumulator.
        If there is a window function, it is given only the result."""
        expect_kind(aggregate_function, AggregateFunction, "an AggregateFunction is needed")
        contents = AggregateContents(aggregate_function)
        return self._evaluated("Aggregate", contents, window_function, output_type)

    def map_batches(self, func: RecordBatchFunction) -> DataStream[Row]:
        """Apply *func* to an Arrow record batch of all rows of a window.

        The batch has the columns ``window_start`` and ``window_end``, too. *func* returns a batch,
        a table, several of them, or None.

        On windows of a keyed stream, a batch has the rows of all keys of a subtask.  The windows
        must be tumbling windows of event time, without further settings.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
        >>> from flinkray.datastream.window import TumblingEventTimeWindows
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> table = pa.table({"v": [3, 9, 4], "t": [0, 3, 14]})
        >>> stamped = env.from_arrow(table).assign_timestamps_and_watermarks(
        ...     WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        ... )
        >>> windows = stamped.window_all(TumblingEventTimeWindows.of(10))
        >>> windows.map_batches(lambda rows: rows.sort_by("v").slice(0, 1)).execute_and_collect(1)
        [Row(v=3, t=0, window_start=0, window_end=10)]
        """
        expect_function(func, "map_batch", "an object with map_batch")
        operator = self._builder.build_batches(func, self._stream._keys)
        return self._then("MapBatches", operator, None, sort_keys=None)

    def _of_all(
        self, method: str, kind: type, window_function: Any, output_type: TypeInformation | None
    ) -> DataStream:
        """Apply a window function of class *kind* to all records of a window."""
        expect_kind(window_function, kind, f"{method} needs a {kind.__name__} here")
        return self._evaluated("Window", ListContents(), window_function, output_type)

    def _evaluated(
        self,
        name: str,
        contents: WindowContents,
        window_function: Any,
        output_type: TypeInformation | None,
    ) -> DataStream:
        operator = self._builder.build(contents, window_function, self._stream._keys)
        return self._then(name, operator, output_type)

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        **settings: Any,
    ) -> DataStream:
        title = self._builder.title(name)
        return self._stream._then_keyed(
            title, operator, output_type, non_parallel=not self._keyed, **settings
        )


class WindowedStream(_Windowed[T, K, W]):
    """A keyed stream whose records are divided into windows, for each key on its own.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> numbers = env.from_collection([1, 2, 3, 4]).key_by(lambda x: x % 2)
    >>> numbers.count_window(2).reduce(lambda a, b: a + b).execute_and_collect(limit=2)
    [4, 6]
    """

    @overload
    def apply(
        self, window_function: WindowFunction[T, R, K, W], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def apply(
        self,
        window_function: WindowFunction[T, Any, K, W],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def apply(
        self,
        window_function: WindowFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a WindowFunction to all records of a window."""
        return self._of_all("apply", WindowFunction, window_function, output_type)

    @overload
    def process(
        self, process_window_function: ProcessWindowFunction[T, R, K, W], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def process(
        self,
        process_window_function: ProcessWindowFunction[T, Any, K, W],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def process(
        self,
        process_window_function: ProcessWindowFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a ProcessWindowFunction to all records of a window."""
        kind = ProcessWindowFunction
        return self._of_all("process", kind, process_window_function, output_type)

    def aggregate_columns(self, **aggregates: str | tuple[str, str]) -> DataStream[Row]:
        """Aggregate columns of windows, without a Python object for each record.

        For example ``total=("amount", "sum"), n="count"``.  The aggregates are count, sum, min, max
        and mean.  Results are rows with the key, ``window_start``, ``window_end`` and the
        aggregates.  The windows must be tumbling or sliding windows of event time, and the stream
        must be keyed by a column's name.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
        >>> from flinkray.datastream.window import TumblingEventTimeWindows
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> table = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3], "t": [0, 3, 4]})
        >>> stamped = env.from_arrow(table).assign_timestamps_and_watermarks(
        ...     WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        ... )
        >>> windows = stamped.key_by("k").window(TumblingEventTimeWindows.of(5))
        >>> windows.aggregate_columns(total=("v", "sum"), n="count").execute_and_collect(limit=1)
        [Row(k='a', window_start=0, window_end=5, total=4, n=2)]
        """
        operator, local = self._builder.build_aggregates(aggregates, self._stream._keys)
        stream = self._then("Aggregate columns", operator, None, sort_keys=None)
        stream._transformation.local_operator = local
        stream._transformation.is_local_in_streams = True
        return stream


class AllWindowedStream(_Windowed[T, Any, W], Generic[T, W]):
    """A whole stream that is divided into windows, whatever its keys.
    One subtask evaluates them."""

    _keyed = False

    @overload
    def apply(
        self, window_function: AllWindowFunction[T, R, W], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def apply(
        self,
        window_function: AllWindowFunction[T, Any, W],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def apply(
        self,
        window_function: AllWindowFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply an AllWindowFunction to all records of a window."""
        return self._of_all("apply", AllWindowFunction, window_function, output_type)

    @overload
    def process(
        self, process_window_function: ProcessAllWindowFunction[T, R, W], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def process(
        self,
        process_window_function: ProcessAllWindowFunction[T, Any, W],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def process(
        self,
        process_window_function: ProcessAllWindowFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a ProcessAllWindowFunction to all records of a window."""
        kind = ProcessAllWindowFunction
        return self._of_all("process", kind, process_window_function, output_type)
