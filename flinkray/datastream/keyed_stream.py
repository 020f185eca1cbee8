"""KeyedStream: records of one key are together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from flinkray.datastream.data_stream import DataStream, expect_function
from flinkray.datastream.data_stream_sink import DataStreamSink
from flinkray.datastream.field_aggregates import FieldReduce, PickBy, Position
from flinkray.streaming.columnar.keyed_aggregate import (
    BatchKeyedAggregateOperator,
    KeyedAggregateOperator,
)
from flinkray.streaming.columnar.local_aggregate import LocalAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import Function, KeyedProcessFunction
from flinkray.streaming.operators.basic import FilterOperator, FlatMapOperator, MapOperator
from flinkray.streaming.operators.keyed import (
    BatchReduceOperator,
    KeyedFilterOperator,
    KeyedFlatMapOperator,
    KeyedMapOperator,
    ReduceOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.process import KeyedProcessOperator
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.type_inference import type_of_result
from flinkray.streaming.records.typeinfo import TypeInformation, Types

if TYPE_CHECKING:
    from flinkray.datastream.interval_join import IntervalJoin
    from flinkray.datastream.windowed_stream import WindowedStream


def _unsupported(what: str) -> Any:
    def refuse(self: KeyedStream, *args: Any, **kwargs: Any) -> NoReturn:
        raise StreamError(f"{what} is not supported on a KeyedStream: call it before key_by")

    refuse.__doc__ = "Not supported on a keyed stream: raises StreamError."
    return refuse


class KeyedStream(DataStream):
    """A stream with keys.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> pairs = env.from_collection([("a", 1), ("b", 5), ("a", 2)])
    >>> pairs.key_by(lambda pair: pair[0]).sum(1).execute_and_collect(limit=3)
    [('a', 1), ('b', 5), ('a', 3)]
    """

    def __init__(
        self, origin: DataStream, keys: Keys, key_type: TypeInformation | None = None
    ) -> None:
        super().__init__(origin._env, origin._by_key(keys))
        self._origin = origin
        self._keys = keys
        self._key_type = key_type

    # --- functions ------------------------------------------------------------------------------

    def map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """As on any stream; a MapFunction may use keyed state."""
        expect_function(func, "map", "a MapFunction")
        output_type = output_type or type_of_result(getattr(func, "map", func))
        if isinstance(func, Function):
            return self._then_keyed("Map", KeyedMapOperator(func, self._keys), output_type)
        return self._then("Map", MapOperator(func), output_type)

    def flat_map(self, func: Any, output_type: TypeInformation | None = None) -> DataStream:
        """As on any stream; a FlatMapFunction may use keyed state."""
        expect_function(func, "flat_map", "a FlatMapFunction")
        if isinstance(func, Function):
            operator = KeyedFlatMapOperator(func, self._keys)
            return self._then_keyed("FlatMap", operator, output_type)
        return self._then("FlatMap", FlatMapOperator(func), output_type)

    def filter(self, func: Any) -> DataStream:
        """As on any stream; a FilterFunction may use keyed state."""
        expect_function(func, "filter", "a FilterFunction")
        known = self._stream.type_info
        if isinstance(func, Function):
            operator = KeyedFilterOperator(func, self._keys)
            return self._then_keyed("Filter", operator, known, typed=False)
        return self._then("Filter", FilterOperator(func), known, typed=False)

    def process(  # type: ignore[override]
        self, func: KeyedProcessFunction[Any, Any, Any], output_type: Any = None
    ) -> DataStream:
        """State and timers of the record's key, any number of results, side outputs."""
        if not isinstance(func, KeyedProcessFunction):
            raise TypeError(f"process on a keyed stream needs a KeyedProcessFunction, got {func!r}")
        operator = KeyedProcessOperator(func, self._keys)
        return self._then_keyed("KEYED PROCESS", operator, output_type)

    def reduce(self, func: Any) -> DataStream:
        """The reduced value of the key, after every record; in batch mode at the end only."""
        expect_function(func, "reduce", "a ReduceFunction")
        return self._reduced("Keyed Reduce", ReduceOperator(func, self._keys), func)

    def _reduced(self, name: str, operator: StreamOperator, func: Any) -> DataStream:
        stream = self._then_keyed(name, operator, self._stream.type_info, typed=False)
        stream._transformation.batch_operator = BatchReduceOperator(func, self._keys)
        return stream

    def sum(self, position_to_sum: Position = 0) -> DataStream:
        """Rolling sum of a field, by position or name; the other fields are the first record's.

        With ``key_by("name")`` and a field's name, streams of columns stay columns."""
        return self._rolling("sum", position_to_sum)

    def min(self, position_to_min: Position = 0) -> DataStream:
        """Rolling minimum of a field; NaN is greater than every number."""
        return self._rolling("min", position_to_min)

    def max(self, position_to_max: Position = 0) -> DataStream:
        """Rolling maximum of a field; NaN is greater than every number."""
        return self._rolling("max", position_to_max)

    def min_by(self, position_to_min_by: Position = 0) -> DataStream:
        """The record with the least field so far; of equals the first."""
        func = PickBy("min", position_to_min_by)
        return self._reduced("Keyed MinBy", ReduceOperator(func, self._keys), func)

    def max_by(self, position_to_max_by: Position = 0) -> DataStream:
        """The record with the greatest field so far; of equals the first."""
        func = PickBy("max", position_to_max_by)
        return self._reduced("Keyed MaxBy", ReduceOperator(func, self._keys), func)

    def _rolling(self, how: str, position: Position) -> DataStream:
        func = FieldReduce(how, position)
        operator: ReduceOperator
        if isinstance(position, str) and self._keys.field is not None:
            operator = KeyedAggregateOperator(how, position, func, self._keys)
            stream = self._reduced(f"Keyed {how.capitalize()}", operator, func)
            stream._transformation.batch_operator = BatchKeyedAggregateOperator(
                how, position, func, self._keys
            )
            stream._transformation.local_operator = LocalAggregateOperator(
                how, position, self._keys
            )
            return stream
        operator = ReduceOperator(func, self._keys)
        return self._reduced(f"Keyed {how.capitalize()}", operator, func)

    # --- windows and joins ----------------------------------------------------------------------

    def window(self, window_assigner: Any) -> WindowedStream:
        """Windows of each key."""
        from flinkray.datastream.windowed_stream import WindowedStream

        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of so many records of a key; with *slide*, a new one every so many."""
        from flinkray.datastream.windowed_stream import WindowedStream, count_assigner

        return WindowedStream(self, count_assigner(size, slide))

    def interval_join(self, other: KeyedStream) -> IntervalJoin:
        """Pairs of records of a key whose times differ by no more than bounds."""
        from flinkray.datastream.interval_join import IntervalJoin

        return IntervalJoin(self, other)

    # --- the stream -----------------------------------------------------------------------------

    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> KeyedStream:
        """Other keys instead."""
        return self._origin.key_by(key_selector, key_type)

    def union(self, *streams: DataStream) -> DataStream:
        """The records of this and other streams, without keys."""
        return self._origin.union(*(_values(stream) for stream in streams))

    def add_sink(self, sink_func: Any) -> DataStreamSink:
        """As on any stream."""
        return self._origin.add_sink(sink_func)

    def sink_to(self, sink: Any) -> DataStreamSink:
        """As on any stream."""
        return self._origin.sink_to(sink)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """As on any stream."""
        return self._origin.print(sink_identifier)

    def get_key_type(self) -> TypeInformation:
        """The declared type of the keys; pickled bytes where none is known."""
        return self._key_type or Types.PICKLED_BYTE_ARRAY()

    shuffle = _unsupported("shuffle")
    rebalance = _unsupported("rebalance")
    rescale = _unsupported("rescale")
    broadcast = _unsupported("broadcast")
    forward = _unsupported("forward")
    partition_custom = _unsupported("partition_custom")
    name = _unsupported("name")
    get_name = _unsupported("get_name")
    uid = _unsupported("uid")
    set_uid_hash = _unsupported("set_uid_hash")
    set_parallelism = _unsupported("set_parallelism")
    set_max_parallelism = _unsupported("set_max_parallelism")
    set_description = _unsupported("set_description")
    force_non_parallel = _unsupported("force_non_parallel")
    set_buffer_timeout = _unsupported("set_buffer_timeout")
    start_new_chain = _unsupported("start_new_chain")
    disable_chaining = _unsupported("disable_chaining")
    slot_sharing_group = _unsupported("slot_sharing_group")

    def _then_keyed(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        settings.setdefault("sort_keys", (self._keys,))
        return self._then(name, operator, output_type, typed, keyed=True, **settings)


def _values(stream: DataStream) -> DataStream:
    return stream._origin if isinstance(stream, KeyedStream) else stream
