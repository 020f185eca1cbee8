"""Streams that are partitioned by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, overload

import pyarrow as pa

from flinkray.datastream.connected_streams import looked_up
from flinkray.datastream.field_aggregates import FieldReduce, PickBy, Position
from flinkray.datastream.inserted_functions import (
    KeyAndValue,
)
from flinkray.datastream.joined_streams import IntervalJoin
from flinkray.datastream.operator_settings import DataStreamSink, QueryableStateStream
from flinkray.datastream.stream import DataStream
from flinkray.datastream.type_variables import K, R, T, U
from flinkray.datastream.windowed_streams import WindowedStream, count_assigner
from flinkray.state.descriptors import StateDescriptor, ValueStateDescriptor
from flinkray.streaming.columnar.arrow_batches import KeyAndValueOperator, KeyedBatchOperator
from flinkray.streaming.columnar.keyed_aggregate import (
    BatchKeyedAggregateOperator,
    KeyedAggregateOperator,
)
from flinkray.streaming.columnar.local_aggregate import LocalAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    IN,
    OUT,
    Function,
    KeyedBatchFunction,
    KeyedGroupFunction,
    KeyedProcessFunction,
    ReduceFunction,
)
from flinkray.streaming.functions.signatures import expect_function, expect_kind
from flinkray.streaming.operators.basic import MapOperator
from flinkray.streaming.operators.keyed import (
    BatchReduceOperator,
    QueryableStateOperator,
    ReduceOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.process import KeyedGroupOperator, KeyedProcessOperator
from flinkray.streaming.program.transformations import (
    OperatorTransformation,
)
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import RowTypeInfo, TypeInformation, Types
from flinkray.streaming.windowing.assigners import W, WindowAssigner
from flinkray.streaming.windowing.window import CountWindow

if TYPE_CHECKING:
    from flinkray.datastream.spark_table import SparkTable


def _summed(kind: TypeInformation | None, position: Position) -> TypeInformation | None:
    """Return the type of rows whose column *position* was summed: the sum is a long or a 64-bit
    float. All other columns keep their types."""
    if not isinstance(kind, RowTypeInfo) or position not in kind.field_names:
        return kind
    types, place = kind.get_field_types(), kind.get_field_index(str(position))
    if types[place] in (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG()):
        types[place] = Types.LONG()
    elif types[place] in (Types.FLOAT(), Types.DOUBLE()):
        types[place] = types[place].with_arrow(pa.float64())
    return RowTypeInfo(types, kind.field_names if kind.is_named else None)


def _unsupported(what: str) -> Any:
    def refuse(self: KeyedStream, *args: Any, **kwargs: Any) -> NoReturn:
        raise StreamError(f"{what} is not supported on a KeyedStream: call it before key_by")

    refuse.__doc__ = "Not supported on a keyed stream: raises StreamError."
    return refuse


class LooksUp(Protocol[IN, OUT]):
    """Interface of an object whose method ``look_up`` is called, in place of a function for
    :meth:`KeyedStream.look_up`."""

    def look_up(self, value: IN, row: Row | None, /) -> OUT: ...


class KeyedStream(DataStream[T], Generic[T, K]):
    """Stream of records of type T that is partitioned by keys of type K.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> pairs = env.from_collection([("a", 1), ("b", 5), ("a", 2)])
    >>> pairs.key_by(lambda pair: pair[0]).sum(1).execute_and_collect(limit=3)
    [('a', 1), ('b', 5), ('a', 3)]
    """

    _keys: Keys

    def __init__(self, origin: DataStream[T], keys: Keys) -> None:
        super().__init__(origin._env, origin._by_key(keys))
        self._origin = origin
        self._keys = keys

    # --- functions ------------------------------------------------------------------------------

    @overload  # type: ignore[override]
    def process(
        self, func: KeyedProcessFunction[K, T, R], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def process(
        self, func: KeyedProcessFunction[K, T, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def process(
        self, func: KeyedProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply a KeyedProcessFunction. The function has state and timers of the record's key, any
        number of results, and side outputs."""
        what = "process on a keyed stream needs a KeyedProcessFunction"
        expect_kind(func, KeyedProcessFunction, what)
        operator = KeyedProcessOperator(func, self._keys)
        return self._then_keyed("KEYED PROCESS", operator, output_type)

    @overload
    def process_groups(
        self, func: KeyedGroupFunction[K, T, R], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def process_groups(
        self, func: KeyedGroupFunction[K, T, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def process_groups(
        self, func: KeyedGroupFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply *func* to all records of a key in a batch, with one call.

        The effect is that of ``process``, but state is looked up once for these records. Results
        have the latest timestamp of these records.

        >>> from flinkray.datastream import KeyedGroupFunction, StreamExecutionEnvironment
        >>> class Count(KeyedGroupFunction):
        ...     def process_group(self, key, values, ctx):
        ...         yield key, len(values)
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> letters = env.from_collection("abaa").key_by(lambda letter: letter)
        >>> letters.process_groups(Count()).execute_and_collect(limit=2)
        [('a', 3), ('b', 1)]
        """
        what = "process_groups needs a KeyedGroupFunction"
        expect_kind(func, KeyedGroupFunction, what)
        operator = KeyedGroupOperator(func, self._keys)
        return self._then_keyed("KEYED GROUPS", operator, output_type)

    @overload
    def process_batches(
        self, func: KeyedBatchFunction, output_type: None = None
    ) -> DataStream[Row]: ...
    @overload
    def process_batches(
        self, func: KeyedBatchFunction, output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def process_batches(
        self, func: KeyedBatchFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply *func* to whole Arrow batches, with state in arrays: a number for each key.

        ``ctx.slots`` has, for each row of the batch, the index of the row's key in these arrays.
        Streams of Python values are converted to columns.

        >>> import numpy as np, pyarrow as pa
        >>> from flinkray.datastream import KeyedBatchFunction, StreamExecutionEnvironment
        >>> from flinkray.datastream.state import ArrayStateDescriptor
        >>> class Sums(KeyedBatchFunction):
        ...     def open(self, runtime_context):
        ...         self.sums = runtime_context.get_array_state(ArrayStateDescriptor("sum", int))
        ...
        ...     def process_batch(self, batch, ctx):
        ...         np.add.at(self.sums.values, ctx.slots, batch["x"].to_numpy())
        ...         return pa.record_batch({"k": batch["k"], "sum": self.sums.values[ctx.slots]})
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> table = pa.table({"k": ["a", "b", "a"], "x": [1, 2, 3]})
        >>> env.from_arrow(table).key_by("k").process_batches(Sums()).execute_and_collect(3)
        [Row(k='a', sum=4), Row(k='b', sum=2), Row(k='a', sum=4)]
        """
        what = "process_batches needs a KeyedBatchFunction"
        expect_kind(func, KeyedBatchFunction, what)
        operator = KeyedBatchOperator(func, self._keys, self._stream.type_info)
        return self._then_keyed("KEYED BATCHES", operator, output_type, sort_keys=None)

    @overload
    def reduce(self, func: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]: ...
    # For pyright: (word, 1) has the type tuple[str, Literal[1]], which no sum of records has.
    @overload
    def reduce(
        self: KeyedStream[tuple[Any, ...], Any],
        func: Callable[[T, T], tuple[Any, ...]] | ReduceFunction[tuple[Any, ...]],
    ) -> DataStream[T]: ...
    def reduce(self, func: Any) -> DataStream[T]:
        """Reduce the values of each key to one value. In streaming mode each record is followed by
        the result so far of its key; in batch mode each key has one result, at the end."""
        expect_function(func, "reduce", "a ReduceFunction", 2)
        return self._reduced("Keyed Reduce", ReduceOperator(func, self._keys), func)

    def _reduced(self, name: str, operator: StreamOperator, func: Any) -> DataStream[T]:
        stream = self._then_keyed(name, operator, self._stream.type_info, typed=False)
        stream._transformation.batch_operator = BatchReduceOperator(func, self._keys)
        return stream

    def sum(self, position_to_sum: Position = 0) -> DataStream[T]:
        """Compute the rolling sum of a field, by position or name. The other fields are the first
        record's. With ``key_by("name")`` and a field's name, streams of columns stay columns."""
        return self._rolling("sum", position_to_sum)

    def min(self, position_to_min: Position = 0) -> DataStream[T]:
        """Compute the rolling minimum of a field; NaN is greater than every number."""
        return self._rolling("min", position_to_min)

    def max(self, position_to_max: Position = 0) -> DataStream[T]:
        """Compute the rolling maximum of a field; NaN is greater than every number."""
        return self._rolling("max", position_to_max)

    def min_by(self, position_to_min_by: Position = 0) -> DataStream[T]:
        """Return, after each record, the record of its key with the least field so far. If several
        have the least field: the first of them."""
        func = PickBy("min", position_to_min_by)
        return self._reduced("Keyed MinBy", ReduceOperator(func, self._keys), func)

    def max_by(self, position_to_max_by: Position = 0) -> DataStream[T]:
        """Return, after each record, the record of its key with the greatest field so far. If
        several have the greatest field: the first of them."""
        func = PickBy("max", position_to_max_by)
        return self._reduced("Keyed MaxBy", ReduceOperator(func, self._keys), func)

    def _rolling(self, how: str, position: Position) -> DataStream[T]:
        func = FieldReduce(how, position)
        operator: ReduceOperator
        if isinstance(position, str) and self._keys.field is not None:
            operator = KeyedAggregateOperator(how, position, func, self._keys)
            stream = self._reduced(f"Keyed {how.capitalize()}", operator, func)
            if how == "sum":
                stream._transformation.type_info = _summed(self._stream.type_info, position)
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

    def window(self, window_assigner: WindowAssigner[T, W]) -> WindowedStream[T, K, W]:
        """Put the records of each key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream[T, K, CountWindow]:
        """Put the records of each key into windows of *size* records. A window begins every *slide*
        records; *slide* 0: every *size* records, so that windows do not overlap."""
        return WindowedStream(self, count_assigner(size, slide))

    @overload
    def look_up(
        self,
        table: SparkTable,
        func: Callable[[T, Row | None], R] | LooksUp[T, R],
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def look_up(
        self,
        table: SparkTable,
        func: Callable[[T, Row | None], Any] | LooksUp[T, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def look_up(
        self, table: SparkTable, func: Any, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply *func* to each value and the row of its key in a table that Spark computes.

        Values wait until the whole table has been read, values of one key in their order; event
        time waits with them. See docs/spark.md.

        Args:
            table: the table of :func:`flinkray.spark_table`; its key must be of the stream's kind.
            func: a function of a value and a row, or an object with a method ``look_up``. The row
                is None if the table has no row of the key; a key of None matches no row.
            output_type: type of the function's results.
        """
        from flinkray.datastream.spark_table import SparkTable

        if not isinstance(table, SparkTable):
            raise TypeError(f"look_up takes what flinkray.spark_table(...) gives, got {table!r}")
        expect_function(func, "look_up", "an object with look_up", 2)
        rows = self._env.from_table(table).key_by(table.key_selector, self._keys.key_type)
        return looked_up(self, rows, func, table.name, output_type)

    def interval_join(self, other: KeyedStream[U, Any]) -> IntervalJoin[T, U]:
        """Pair records of a key whose times differ by no more than given bounds."""
        return IntervalJoin(self, other)

    # --- the stream -----------------------------------------------------------------------------

    # --- the stream -----------------------------------------------------------------------------

    def as_queryable_state(
        self, queryable_state_name: str, state_descriptor: StateDescriptor | None = None
    ) -> QueryableStateStream:
        """Keep the stream in a state that clients can query (docs/queryable-state.md).

        The state holds the last record of each key, or the result of a reducing or aggregating
        state.

        Args:
            state_descriptor: descriptor of value, reducing or aggregating state; None: value state
                of the stream's type.
        """
        descriptor = state_descriptor or ValueStateDescriptor(
            f"Queryable state {queryable_state_name}", self._stream.type_info
        )
        if descriptor.kind not in ("value", "reducing", "aggregating"):
            raise StreamError(
                f"a stream is no {descriptor.kind} state, which would grow for ever: give "
                "as_queryable_state a descriptor of value, reducing or aggregating state"
            )
        descriptor.set_queryable(queryable_state_name)
        operator = QueryableStateOperator(descriptor, self._keys)
        transformation = OperatorTransformation(
            f"Queryable state: {queryable_state_name}",
            operator=operator,
            inputs=[self._stream],
            kind="Data Sink",
            keyed=True,
        )
        self._env.add(transformation)
        return QueryableStateStream(queryable_state_name, descriptor, transformation)

    def end_with(self, name: str, operator: StreamOperator) -> DataStreamSink:
        """Add *operator*, which is a sink, and return the sink. All records of a key go to one
        subtask."""
        return self._values().end_with(name, operator)

    def _keyed_by(self, key_selector: Any, key_type: TypeInformation | None) -> KeyedStream[T, Any]:
        return self._origin._keyed_by(key_selector, key_type)

    def _values(self) -> DataStream[T]:
        """Return the records of this stream as a stream without keys. The key selector is still
        called for each record, as in PyFlink."""
        return DataStream(self._env, self._origin._by_key(self._keys, always=True))

    def _collected(self) -> DataStream[Row]:  # type: ignore[override]
        value_type = self._stream.type_info or Types.PICKLED_BYTE_ARRAY()
        row_type = Types.ROW([self.get_key_type(), value_type])
        operator = MapOperator(KeyAndValue(self._keys))
        return super()._then("Key and value", operator, row_type, typed=False)

    def _collected_columns(self) -> DataStream:
        operator = KeyAndValueOperator(self._keys, self._stream.type_info)
        return super()._then("Key and value", operator, None, typed=False)

    def get_key_type(self) -> TypeInformation:
        """Return the declared type of the keys; pickled bytes if no type is known."""
        return self._keys.key_type or Types.PICKLED_BYTE_ARRAY()

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

    def _applied(
        self,
        name: str,
        func: Any,
        operator: Callable[[Any], StreamOperator],
        keyed_operator: Callable[[Any, Keys], StreamOperator],
        output_type: TypeInformation | None,
        typed: bool = True,
    ) -> DataStream:
        if not isinstance(func, Function):
            return self._then(name, operator(func), output_type, typed)
        return self._then_keyed(name, keyed_operator(func, self._keys), output_type, typed)

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        return self._values()._then(name, operator, output_type, typed, **settings)

    def _then_keyed(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        typed: bool = True,
        **settings: Any,
    ) -> DataStream:
        settings.setdefault("sort_keys", (self._keys,))
        return super()._then(name, operator, output_type, typed, keyed=True, **settings)
