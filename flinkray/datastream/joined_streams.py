"""Joins and co-groups two streams, by window or by the difference of their times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.datastream.connected_streams import two_input_stream
from flinkray.datastream.inserted_functions import (
    KeyOfTagged,
    OfBoth,
    OfPairs,
)
from flinkray.datastream.type_variables import T1, T2, R
from flinkray.datastream.window_operator_builder import WindowOperatorBuilder
from flinkray.datastream.windowed_streams import InWindows
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    CoGroupFunction,
    JoinFunction,
    KeySelector,
    ProcessJoinFunction,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.signatures import expect_function, expect_kind
from flinkray.streaming.operators.basic import TagOperator
from flinkray.streaming.operators.interval_join import IntervalJoinOperator
from flinkray.streaming.records.keying import Keys, require_same_keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.windowing.assigners import (
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    ListContents,
)

if TYPE_CHECKING:
    from flinkray.datastream.keyed_stream import KeyedStream
    from flinkray.datastream.stream import DataStream


_Windows = TypeVar("_Windows", bound="_TwoInWindows")


class _TwoStreams(Generic[T1, T2]):
    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first, self._second = first, second


class JoinedStreams(_TwoStreams[T1, T2]):
    """Two streams whose records are paired by key and window.

    >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
    >>> from flinkray.datastream.window import TumblingEventTimeWindows
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    ...     lambda value, _: value[1]
    ... )
    >>> left = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(by_time)
    >>> right = env.from_collection([("a", 3), ("a", 12)]).assign_timestamps_and_watermarks(by_time)
    >>> pairs = (
    ...     left.join(right)
    ...     .where(lambda value: value[0])
    ...     .equal_to(lambda value: value[0])
    ...     .window(TumblingEventTimeWindows.of(10))
    ...     .apply(lambda first, second: (first[0], first[1], second[1]))
    ... )
    >>> pairs.execute_and_collect(limit=2)
    [('a', 1, 3)]
    """

    def where(
        self, key_selector: Callable[[T1], Any] | KeySelector[T1, Any] | str
    ) -> JoinKeys[WindowedJoin[T1, T2], T2]:
        """Set the first stream's key: a KeySelector, a function, or the name of a field."""
        return JoinKeys(partial(WindowedJoin, self._first, self._second), key_selector)


class CoGroupedStreams(_TwoStreams[T1, T2]):
    """Two streams whose records of a key and window are passed to a function together.

    >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
    >>> from flinkray.datastream.window import TumblingEventTimeWindows
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    ...     lambda value, _: value[1]
    ... )
    >>> left = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(by_time)
    >>> right = env.from_collection([("a", 3), ("a", 4)]).assign_timestamps_and_watermarks(by_time)
    >>> counts = (
    ...     left.co_group(right)
    ...     .where(lambda value: value[0])
    ...     .equal_to(lambda value: value[0])
    ...     .window(TumblingEventTimeWindows.of(10))
    ...     .apply(lambda first, second: [(len(first), len(second))])
    ... )
    >>> sorted(counts.execute_and_collect())
    [(1, 0), (1, 2)]
    """

    def where(
        self, key_selector: Callable[[T1], Any] | KeySelector[T1, Any] | str
    ) -> JoinKeys[WindowedCoGroup[T1, T2], T2]:
        """Set the first stream's key: a KeySelector, a function, or the name of a field."""
        return JoinKeys(partial(WindowedCoGroup, self._first, self._second), key_selector)


class JoinKeys(Generic[_Windows, T2]):
    """A join or co-group whose keys are set and whose windows are not set yet."""

    def __init__(
        self,
        in_windows: Callable[[Any, Any, WindowAssigner], _Windows],
        first_key: Any,
        second_key: Any = None,
    ) -> None:
        self._in_windows = in_windows
        self._first_key, self._second_key = first_key, second_key

    def equal_to(
        self, key_selector: Callable[[T2], Any] | KeySelector[T2, Any] | str
    ) -> JoinKeys[_Windows, T2]:
        """Set the second stream's key: a KeySelector, a function, or the name of a field."""
        return JoinKeys(self._in_windows, self._first_key, key_selector)

    def window(self, assigner: WindowAssigner) -> _Windows:
        """Set the windows in which records meet."""
        if self._second_key is None:
            raise StreamError("a join needs both keys: where(...).equal_to(...)")
        return self._in_windows(self._first_key, self._second_key, assigner)


class _TwoInWindows(InWindows, Generic[T1, T2]):
    """A join or co-group whose windows are set and whose function is not set yet. A trigger or
    evictor gets each record as the pair (number of the stream, value)."""

    def __init__(
        self,
        first: DataStream[T1],
        second: DataStream[T2],
        first_key: Any,
        second_key: Any,
        assigner: Any,
    ) -> None:
        self._first, self._second = first, second
        self._keys = Keys(first_key), Keys(second_key)
        types = first._stream.type_info, second._stream.type_info
        self._builder = WindowOperatorBuilder(assigner, *types)

    def _apply(
        self, name: str, function: OfBoth, output_type: TypeInformation | None
    ) -> DataStream:
        tagged = [
            stream._then(f"Input{side + 1}", TagOperator(side), None)
            for side, stream in enumerate((self._first, self._second))
        ]
        keyed = tagged[0].union(tagged[1]).key_by(KeyOfTagged(*self._keys))
        operator = self._builder.build(ListContents(), function, keyed._keys)
        return keyed._then_keyed(self._builder.title(name), operator, output_type)


class WindowedJoin(_TwoInWindows[T1, T2]):
    """Join of two streams in windows: all pairs of records of a key and a window."""

    @overload
    def apply(
        self, function: Callable[[T1, T2], R] | JoinFunction[T1, T2, R], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def apply(
        self,
        function: Callable[[T1, T2], Any] | JoinFunction[T1, T2, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Return the stream with one value for each pair of records.
        A :class:`JoinFunction` or a function of two values computes the value. The value's
        timestamp is the last moment of the window."""
        expect_function(function, "join", "a JoinFunction", 2)
        return self._apply("Join", OfPairs(function, "join"), output_type)

    def columns(self, right_suffix: str = "_right") -> DataStream[Row]:
        """Return the pairs as columns of both streams, without a Python object for each.

        The windows must be tumbling windows of event time, and the keys names of columns.  Rows
        have the first stream's columns, the second stream's columns without its key,
        ``window_start`` and ``window_end``.  *right_suffix* is added to the names of columns of the
        second stream that the first stream has, too.

        >>> import pyarrow as pa
        >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
        >>> from flinkray.datastream.window import TumblingEventTimeWindows
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
        >>> def stamped(**columns):
        ...     return env.from_arrow(pa.table(columns)).assign_timestamps_and_watermarks(by_time)
        >>> people = stamped(id=[7, 8], name=["Ada", "Max"], t=[1, 2])
        >>> sales = stamped(seller=[7, 7], item=["cup", "jar"], t=[5, 15])
        >>> pairs = (
        ...     people.join(sales)
        ...     .where("id")
        ...     .equal_to("seller")
        ...     .window(TumblingEventTimeWindows.of(10))
        ...     .columns()
        ... )
        >>> pairs.execute_and_collect(limit=2)
        [Row(id=7, name='Ada', t=1, item='cup', t_right=5, window_start=0, window_end=10)]
        """
        operator = self._builder.build_join(*self._keys, right_suffix)
        first = self._first.key_by(self._keys[0].selector)
        second = self._second.key_by(self._keys[1].selector)
        name = self._builder.title("Join columns")
        return two_input_stream(name, operator, first, second, None, True)


class WindowedCoGroup(_TwoInWindows[T1, T2]):
    """Co-group of two streams in windows: two lists of records for each key and window."""

    @overload
    def apply(
        self,
        function: Callable[[list[T1], list[T2]], Iterable[R] | None] | CoGroupFunction[T1, T2, R],
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def apply(
        self,
        function: Callable[[list[T1], list[T2]], Iterable[Any] | None]
        | CoGroupFunction[T1, T2, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Return the stream with any number of values for each key and window.
        A :class:`CoGroupFunction`, or a function of two lists, computes the values from the records
        of the first and of the second stream. One list may be empty."""
        expect_function(function, "co_group", "a CoGroupFunction", 2)
        return self._apply("CoGroup", OfBoth(function, "co_group"), output_type)


class IntervalJoin(Generic[T1, T2]):
    """Join of two keyed streams by time, before :meth:`between` sets the bounds of the times."""

    def __init__(self, left: KeyedStream[T1, Any], right: KeyedStream[T2, Any]) -> None:
        self._left = left
        self._right = right

    def between(
        self, lower_bound: Time | Duration | int, upper_bound: Time | Duration | int
    ) -> IntervalJoined[T1, T2]:
        """Set the bounds of the times (milliseconds, if numbers). A record of the right stream
        joins if ``left.time + lower <= right.time <= left.time + upper``."""
        return IntervalJoined(
            self._left, self._right, milliseconds(lower_bound), milliseconds(upper_bound)
        )


class IntervalJoined(Generic[T1, T2]):
    """Join of two keyed streams by the difference of their times, whose bounds are set."""

    def __init__(
        self, left: KeyedStream[T1, Any], right: KeyedStream[T2, Any], lower: int, upper: int
    ) -> None:
        self._left = left
        self._right = right
        self._lower = lower
        self._upper = upper
        self._late_left: OutputTag[Any] | None = None
        self._late_right: OutputTag[Any] | None = None

    def lower_bound_exclusive(self) -> IntervalJoined[T1, T2]:
        """Exclude the lower bound: ``<`` instead of ``<=``."""
        self._lower += 1
        return self

    def upper_bound_exclusive(self) -> IntervalJoined[T1, T2]:
        """Exclude the upper bound: ``<`` instead of ``<=``."""
        self._upper -= 1
        return self

    def side_output_left_late_data(self, output_tag: OutputTag[Any]) -> IntervalJoined[T1, T2]:
        """Send records of the left stream that come too late for the watermark to a side output."""
        self._late_left = output_tag
        return self

    def side_output_right_late_data(self, output_tag: OutputTag[Any]) -> IntervalJoined[T1, T2]:
        """Send records of the right stream that come too late for the watermark to a side
        output."""
        self._late_right = output_tag
        return self

    @overload
    def process(
        self, func: ProcessJoinFunction[T1, T2, R], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def process(
        self, func: ProcessJoinFunction[T1, T2, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def process(
        self,
        func: ProcessJoinFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a function with any number of results to each pair. A result gets the later
        timestamp of its two records."""
        expect_kind(func, ProcessJoinFunction, "a ProcessJoinFunction is needed")
        require_same_keys(self._left._keys, self._right._keys)
        operator = IntervalJoinOperator(
            func,
            self._lower,
            self._upper,
            self._left._keys,
            self._right._keys,
            self._late_left,
            self._late_right,
        )
        return two_input_stream(
            "Interval Join",
            operator,
            self._left,
            self._right,
            output_type,
            True,
            (self._left._keys, self._right._keys),
        )
