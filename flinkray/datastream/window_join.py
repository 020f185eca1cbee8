"""Joins and co-groups of two streams in windows (Flink's JoinedStreams and CoGroupedStreams)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from flinkray.datastream.connected_streams import two_input_stream
from flinkray.datastream.data_stream import DataStream, expect_function
from flinkray.datastream.windowed_stream import WindowedStream
from flinkray.streaming.columnar.window_operators import WindowJoinOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import MapFunction
from flinkray.streaming.functions.window_functions import WindowFunction
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.windowing.assigners import TumblingEventTimeWindows, WindowAssigner

if TYPE_CHECKING:
    from flinkray.core.durations import Duration, Time
    from flinkray.streaming.windowing.evictors import Evictor
    from flinkray.streaming.windowing.triggers import Trigger

_Windows = TypeVar("_Windows", bound="_TwoInWindows")


class _TwoStreams:
    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first, self._second = first, second


class JoinedStreams(_TwoStreams):
    """Two streams whose records are to be paired by key and window.

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

    def where(self, key_selector: Any) -> JoinKeys[WindowedJoin]:
        """The first stream's key: a KeySelector, a function, or the name of a field."""
        return JoinKeys(partial(WindowedJoin, self._first, self._second), key_selector)


class CoGroupedStreams(_TwoStreams):
    """Two streams whose records of a key and window are to be given to a function together.

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

    def where(self, key_selector: Any) -> JoinKeys[WindowedCoGroup]:
        """As of a join."""
        return JoinKeys(partial(WindowedCoGroup, self._first, self._second), key_selector)


class JoinKeys(Generic[_Windows]):
    """The keys of a join."""

    def __init__(
        self,
        in_windows: Callable[[Any, Any, WindowAssigner], _Windows],
        first_key: Any,
        second_key: Any = None,
    ) -> None:
        self._in_windows = in_windows
        self._first_key, self._second_key = first_key, second_key

    def equal_to(self, key_selector: Any) -> JoinKeys[_Windows]:
        """The second stream's key."""
        return JoinKeys(self._in_windows, self._first_key, key_selector)

    def window(self, assigner: WindowAssigner) -> _Windows:
        """The windows in which records meet."""
        if self._second_key is None:
            raise StreamError("a join needs both keys: where(...).equal_to(...)")
        return self._in_windows(self._first_key, self._second_key, assigner)


class _Tag(MapFunction[Any, Any]):
    """Says which stream a value is of."""

    def __init__(self, side: int) -> None:
        self._side = side

    def map(self, value: Any) -> Any:
        return self._side, value


class _TwoInWindows:
    """Two streams in windows."""

    def __init__(
        self, first: DataStream, second: DataStream, first_key: Any, second_key: Any, assigner: Any
    ) -> None:
        self._first, self._second = first, second
        self._keys = first_keys, second_keys = Keys(first_key), Keys(second_key)
        self._assigner = assigner

        def key_of(tagged: Any) -> Any:
            side, value = tagged
            return (second_keys if side else first_keys).of_value(value)

        self._key_of = key_of
        self._refinements: list[tuple[str, Any]] = []
        if not isinstance(assigner, WindowAssigner):
            raise TypeError(f"a WindowAssigner is needed, got {assigner!r}")

    def trigger(self: _Windows, trigger: Trigger) -> _Windows:
        """Evaluate windows when this says so; it sees pairs of the stream's number and value."""
        self._refinements.append(("trigger", trigger))
        return self

    def evictor(self: _Windows, evictor: Evictor) -> _Windows:
        """Leave records out when a window is evaluated."""
        self._refinements.append(("evictor", evictor))
        return self

    def allowed_lateness(self: _Windows, time_ms: int | Time | Duration) -> _Windows:
        """Keep windows for so long after their end; late records fire them again."""
        self._refinements.append(("allowed_lateness", time_ms))
        return self

    def _apply(
        self, name: str, function: _OfBoth, output_type: TypeInformation | None
    ) -> DataStream:
        tagged = [
            stream.map(_Tag(side)).name(f"Input{side + 1}")
            for side, stream in enumerate((self._first, self._second))
        ]
        windowed: WindowedStream = tagged[0].union(tagged[1]).key_by(self._key_of).window(
            self._assigner
        )  # fmt: skip
        for method, argument in self._refinements:
            getattr(windowed, method)(argument)
        return windowed.apply(function, output_type).name(
            f"{type(self._assigner).__name__}, {name}"
        )


class _OfBoth(WindowFunction[Any, Any, Any, Any]):
    """Divides the records of a window by stream again."""

    def __init__(self, function: Any, method: str) -> None:
        self._function = function
        self._method = method

    def open(self, runtime_context: Any) -> None:
        if hasattr(self._function, "open"):
            self._function.open(runtime_context)
        self._call = getattr(self._function, self._method, self._function)

    def close(self) -> None:
        if hasattr(self._function, "close"):
            self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, value in inputs:
            sides[side].append(value)
        return self._results(*sides)

    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        return self._call(first, second) or ()


class _OfPairs(_OfBoth):
    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        call = self._call
        return [call(one, other) for one in first for other in second]


class WindowedJoin(_TwoInWindows):
    """Pairs of records in windows."""

    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """One value for each pair, by a :class:`JoinFunction` or a function of two values; at the
        last moment of the window."""
        expect_function(function, "join", "a JoinFunction")
        return self._apply("Join", _OfPairs(function, "join"), output_type)

    def columns(self, right_suffix: str = "_right") -> DataStream:
        """The pairs as columns of both streams, without a Python object for each.

        For tumbling windows of event time, and keys that are names of columns.  Rows have the
        first stream's columns, those of the second without its key, ``window_start`` and
        ``window_end``; *right_suffix* is added to names of the second stream that the first has.

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
        assigner = self._assigner
        if not isinstance(assigner, TumblingEventTimeWindows) or self._refinements:
            raise StreamError(
                "a join of columns is for tumbling windows of event time, without triggers, "
                "evictors and lateness; use apply() for others"
            )
        first = self._first.key_by(self._keys[0].selector)
        second = self._second.key_by(self._keys[1].selector)
        operator = WindowJoinOperator(assigner.size, assigner.offset, *self._keys, right_suffix)
        name = f"{type(assigner).__name__}, Join columns"
        return two_input_stream(name, operator, first, second, None, True)


class WindowedCoGroup(_TwoInWindows):
    """Records of both streams by key and window."""

    def apply(self, function: Any, output_type: TypeInformation | None = None) -> DataStream:
        """Any number of values for the two lists of each key and window, of which one may be
        empty, by a :class:`CoGroupFunction` or a function of two lists."""
        expect_function(function, "co_group", "a CoGroupFunction")
        return self._apply("CoGroup", _OfBoth(function, "co_group"), output_type)
