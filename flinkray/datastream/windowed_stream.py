"""Windowed streams: what is done with the records of a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.datastream.data_stream import DataStream, expect_function
from flinkray.streaming.columnar.window_aggregate import (
    ColumnAggregate,
    WindowAggregateOperator,
)
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import AggregateFunction
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.windowing.aligned import make_window_operator
from flinkray.streaming.windowing.assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    AggregateContents,
    Apply,
    ListContents,
    PassOn,
    Process,
    ReduceContents,
    TimestampedContents,
    WindowContents,
    WindowEvaluation,
)
from flinkray.streaming.windowing.evictors import Evictor
from flinkray.streaming.windowing.operator import WindowSpec
from flinkray.streaming.windowing.triggers import EventTimeTrigger, Trigger

if TYPE_CHECKING:
    from flinkray.datastream.keyed_stream import KeyedStream

_Self = TypeVar("_Self", bound="_Windowed")


def count_assigner(size: int, slide: int) -> WindowAssigner:
    if slide:
        return CountSlidingWindowAssigner(size, slide)
    return CountTumblingWindowAssigner(size)


class _Windowed:
    """What windows of a key and windows of everything have in common."""

    _keyed = True

    def __init__(self, keyed_stream: KeyedStream, window_assigner: WindowAssigner) -> None:
        if not isinstance(window_assigner, WindowAssigner):
            raise TypeError(f"a WindowAssigner is needed, got {window_assigner!r}")
        self._stream = keyed_stream
        self._assigner = window_assigner
        self._trigger: Trigger | None = None
        self._evictor: Evictor | None = None
        self._lateness = 0
        self._late_tag: OutputTag[Any] | None = None

    def get_execution_environment(self) -> Any:
        """Where the program began."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """The type of the records in the windows."""
        return self._stream.get_type()

    def trigger(self: _Self, trigger: Trigger) -> _Self:
        """Evaluate windows when this says so, instead of the assigner's own trigger."""
        if not isinstance(trigger, Trigger):
            raise TypeError(f"a Trigger is needed, got {trigger!r}")
        self._trigger = trigger
        return self

    def evictor(self: _Self, evictor: Evictor) -> _Self:
        """Leave records out when a window is evaluated; all of them are kept until then."""
        self._evictor = evictor
        return self

    def allowed_lateness(self: _Self, time_ms: int | Time | Duration) -> _Self:
        """Keep windows for so long after their end; late records fire them again."""
        lateness = milliseconds(time_ms)
        if lateness < 0:
            raise ValueError(f"lateness must not be negative, got {lateness} ms")
        self._lateness = lateness
        return self

    def side_output_late_data(self: _Self, output_tag: OutputTag[Any]) -> _Self:
        """Where records go that come too late for all their windows; otherwise they are dropped."""
        self._late_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: Any,
        window_function: Any = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """One value of all records; a window function is given just that one."""
        expect_function(reduce_function, "reduce", "a ReduceFunction")
        if output_type is None and window_function is None:
            output_type = self._stream._stream.type_info
        return self._evaluated(
            "Reduce", ReduceContents(reduce_function), window_function, output_type
        )

    def aggregate(
        self,
        aggregate_function: AggregateFunction[Any, Any, Any],
        window_function: Any = None,
        accumulator_type: TypeInformation | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """The result of an accumulator; a window function is given just that one."""
        if not isinstance(aggregate_function, AggregateFunction):
            raise TypeError(f"an AggregateFunction is needed, got {aggregate_function!r}")
        contents = AggregateContents(aggregate_function)
        return self._evaluated("Aggregate", contents, window_function, output_type)

    def apply(self, window_function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """A WindowFunction (AllWindowFunction on window_all) over all records."""
        wanted = WindowFunction if self._keyed else AllWindowFunction
        if not isinstance(window_function, wanted):
            raise TypeError(f"apply needs a {wanted.__name__} here, got {window_function!r}")
        return self._evaluated("Window", ListContents(), window_function, output_type)

    def process(
        self, process_window_function: Any, output_type: TypeInformation | None = None
    ) -> DataStream:
        """A ProcessWindowFunction (ProcessAllWindowFunction on window_all) over all records."""
        wanted = ProcessWindowFunction if self._keyed else ProcessAllWindowFunction
        if not isinstance(process_window_function, wanted):
            raise TypeError(
                f"process needs a {wanted.__name__} here, got {process_window_function!r}"
            )
        return self._evaluated("Window", ListContents(), process_window_function, output_type)

    def map_batches(self, func: Any) -> DataStream:
        """Calls *func* with an Arrow record batch of all rows of a window (with ``window_start``
        and ``window_end``); it returns a batch, a table, several, or None.

        On windows of a keyed stream a batch has the rows of all keys of a subtask.  For tumbling
        windows of event time.

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
        assigner = self._assigner
        refined = self._trigger or self._evictor or self._lateness or self._late_tag
        if not isinstance(assigner, TumblingEventTimeWindows) or refined:
            raise StreamError(
                "functions of batches are for tumbling windows of event time, without triggers, "
                "evictors, lateness and late side output; use process() for others"
            )
        operator = WindowBatchesOperator(func, assigner.size, assigner.offset, self._stream._keys)
        title = f"{type(assigner).__name__}, MapBatches"
        return self._stream._then_keyed(
            title, operator, None, non_parallel=not self._keyed, sort_keys=None
        )

    def _evaluated(
        self,
        name: str,
        contents: WindowContents,
        window_function: Any,
        output_type: TypeInformation | None,
    ) -> DataStream:
        evaluation = self._evaluation(window_function)
        if self._evictor is not None:
            if not isinstance(contents, ListContents):
                raise StreamError("evictors go with apply and process, which see all records")
            contents = TimestampedContents()
        spec = WindowSpec(
            self._assigner,
            self._trigger or self._assigner.get_default_trigger(),
            contents,
            evaluation,
            self._evictor,
            self._lateness,
            self._late_tag,
        )
        operator = make_window_operator(spec, self._stream._keys)
        title = f"{type(self._assigner).__name__}, {name}"
        return self._stream._then_keyed(title, operator, output_type, non_parallel=not self._keyed)

    def _evaluation(self, function: Any) -> WindowEvaluation:
        if function is None:
            return PassOn()
        if isinstance(function, WindowFunction | AllWindowFunction):
            return Apply(function, isinstance(function, WindowFunction))
        if isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction):
            return Process(function, isinstance(function, ProcessWindowFunction))
        raise TypeError(f"a window function is needed, got {function!r}")


class WindowedStream(_Windowed):
    """The windows of each key.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> numbers = env.from_collection([1, 2, 3, 4]).key_by(lambda x: x % 2)
    >>> numbers.count_window(2).reduce(lambda a, b: a + b).execute_and_collect(limit=2)
    [4, 6]
    """

    def aggregate_columns(self, **aggregates: str | tuple[str, str]) -> DataStream:
        """Aggregates of columns, without a Python object for each record.

        ``total=("amount", "sum"), n="count"``; there are count, sum, min, max and mean.  Results
        are rows with the key, ``window_start``, ``window_end`` and the aggregates.  For tumbling
        and sliding windows of event time on streams that are keyed by a column's name.

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
        assigner = self._assigner
        if not isinstance(assigner, TumblingEventTimeWindows | SlidingEventTimeWindows):
            raise StreamError(
                "aggregates of columns are for tumbling and sliding windows of event time, not "
                f"{type(assigner).__name__}"
            )
        own_trigger = self._trigger is None or type(self._trigger) is EventTimeTrigger
        if not own_trigger or self._evictor or self._lateness or self._late_tag:
            raise StreamError(
                "aggregates of columns have no triggers, evictors, lateness or late side output; "
                "use aggregate() for those"
            )
        columns = [
            ColumnAggregate(name, how)
            if isinstance(how, str)
            else ColumnAggregate(name, how[1], how[0])
            for name, how in aggregates.items()
        ]
        if not columns:
            raise StreamError("give at least one aggregate, such as n='count'")
        operator = WindowAggregateOperator(
            assigner.size, assigner.slide, assigner.offset, columns, self._stream._keys
        )
        title = f"{type(assigner).__name__}, Aggregate columns"
        return self._stream._then_keyed(title, operator, None, sort_keys=None)


class AllWindowedStream(_Windowed):
    """Windows over a whole stream, evaluated by one subtask."""

    _keyed = False
