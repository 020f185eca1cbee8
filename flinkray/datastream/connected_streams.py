"""Two streams that one function processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, overload

from flinkray.datastream.type_variables import T1, T2, R
from flinkray.state.descriptors import MapStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
)
from flinkray.streaming.functions.signatures import expect_kind
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from flinkray.streaming.program.transformations import (
    OperatorTransformation,
)
from flinkray.streaming.records.keying import Keys, require_same_keys
from flinkray.streaming.records.typeinfo import TypeInformation

if TYPE_CHECKING:
    from flinkray.datastream.keyed_stream import KeyedStream
    from flinkray.datastream.stream import DataStream


def two_input_stream(
    name: str,
    operator: StreamOperator,
    first: DataStream,
    second: DataStream,
    output_type: TypeInformation | None,
    keyed: bool,
    sort_keys: tuple[Keys | None, Keys | None] | None = None,
) -> DataStream:
    """Add an operator on two streams and return the stream of its results. *keyed*: whether the
    operator has keyed state. *sort_keys*: for each input, the keys by which batch mode sorts this
    input; None: not sorted."""
    transformation = OperatorTransformation(
        name,
        output_type,
        operator=operator,
        inputs=[first._stream, second._stream],
        convert=None if output_type is None else output_type.converter(),
        keyed=keyed,
        sort_keys=sort_keys,
    )
    return first._env.add(transformation)


def looked_up(
    stream: KeyedStream,
    rows: KeyedStream,
    func: Any,
    name: str,
    output_type: TypeInformation | None = None,
) -> DataStream:
    """Apply a function to each value of *stream* together with the row of *rows* that has the same
    key. Values wait until *rows* has ended.

    Args:
        rows: a bounded stream; no key has two rows.
        name: name of the table that the rows form, for plans and errors.
    """
    require_same_keys(stream._keys, rows._keys)
    operator = LookUpOperator(func, stream._keys, rows._keys, name)
    result = two_input_stream(f"Look up {name}", operator, stream, rows, output_type, True)
    result._transformation.broadcast_first = True
    return result


class ConnectedStreams(Generic[T1, T2]):
    """Two streams that one function processes.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> from flinkray.datastream.functions import CoMapFunction
    >>> class Both(CoMapFunction):
    ...     def map1(self, value):
    ...         return f"number {value}"
    ...
    ...     def map2(self, value):
    ...         return f"text {value}"
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> both = env.from_collection([1]).connect(env.from_collection(["x"])).map(Both())
    >>> sorted(both.execute_and_collect(limit=2))
    ['number 1', 'text x']
    """

    def __init__(self, stream1: DataStream[T1], stream2: DataStream[T2]) -> None:
        self.stream1 = stream1
        self.stream2 = stream2

    def key_by(
        self,
        key_selector1: Callable[[T1], Any] | KeySelector[T1, Any] | str,
        key_selector2: Callable[[T2], Any] | KeySelector[T2, Any] | str,
        key_type: TypeInformation | None = None,
    ) -> ConnectedStreams[T1, T2]:
        """Partition both streams by key, so that one function sees the records of a key of both
        streams. *key_type*: type to which the keys of both streams are converted; None: keys stay
        as they are."""
        return ConnectedStreams(
            self.stream1._keyed_by(key_selector1, key_type),
            self.stream2._keyed_by(key_selector2, key_type),
        )

    def _keys(self) -> tuple[Keys, Keys] | None:
        first, second = self.stream1._keys, self.stream2._keys
        if first is not None and second is not None:
            require_same_keys(first, second)
            return first, second
        if first is not None or second is not None:
            raise StreamError("only one of the connected streams is keyed: key both, or none")
        return None

    @overload
    def map(self, func: CoMapFunction[T1, T2, R], output_type: None = None) -> DataStream[R]: ...
    @overload
    def map(
        self, func: CoMapFunction[T1, T2, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def map(self, func: CoMapFunction, output_type: TypeInformation | None = None) -> DataStream:
        """Apply ``map1`` to the first stream's values and ``map2`` to the second's."""
        expect_kind(func, CoMapFunction, "a CoMapFunction is needed")
        keys = self._keys()
        return self._then("Co-Map", CoMapOperator(func, keys), output_type, keys)

    @overload
    def flat_map(
        self, func: CoFlatMapFunction[T1, T2, R], output_type: None = None
    ) -> DataStream[R]: ...
    @overload
    def flat_map(
        self, func: CoFlatMapFunction[T1, T2, Any], output_type: TypeInformation[R]
    ) -> DataStream[R]: ...
    def flat_map(
        self, func: CoFlatMapFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply ``flat_map1`` to the first stream's values and ``flat_map2`` to the second's."""
        expect_kind(func, CoFlatMapFunction, "a CoFlatMapFunction is needed")
        keys = self._keys()
        return self._then("Co-Flat Map", CoFlatMapOperator(func, keys), output_type, keys)

    @overload
    def process(
        self,
        func: CoProcessFunction[T1, T2, R] | KeyedCoProcessFunction[Any, T1, T2, R],
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def process(
        self,
        func: CoProcessFunction[T1, T2, Any] | KeyedCoProcessFunction[Any, T1, T2, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def process(
        self,
        func: CoProcessFunction | KeyedCoProcessFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply ``process_element1`` to the first stream's records and ``process_element2`` to
        the second's. For keyed streams the function is a KeyedCoProcessFunction, with state and
        timers."""
        keys = self._keys()
        operator: StreamOperator
        if keys is not None:
            what = "keyed streams need a KeyedCoProcessFunction"
            function = expect_kind(func, KeyedCoProcessFunction, what)
            operator = KeyedCoProcessOperator(function, *keys)
        else:
            function = expect_kind(func, CoProcessFunction, "a CoProcessFunction is needed")
            operator = CoProcessOperator(function)
        return self._then("Co-Process", operator, output_type, keys)

    def _then(
        self,
        name: str,
        operator: StreamOperator,
        output_type: TypeInformation | None,
        keys: tuple[Keys, Keys] | None,
    ) -> DataStream:
        return two_input_stream(
            name, operator, self.stream1, self.stream2, output_type, keys is not None, keys
        )


class BroadcastStream(Generic[T2]):
    """Stream that every subtask receives completely. Holds the descriptors of the broadcast state
    that its records will fill."""

    def __init__(
        self,
        input_stream: DataStream[T2],
        broadcast_state_descriptors: tuple[MapStateDescriptor[Any, Any], ...],
    ) -> None:
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise TypeError(
                    f"broadcast state is described by a MapStateDescriptor, got {descriptor!r}"
                )
        self.input_stream = input_stream
        self.broadcast_state_descriptors = tuple(broadcast_state_descriptors)


class BroadcastConnectedStream(Generic[T1, T2]):
    """A stream and a broadcast stream that one function will process together."""

    def __init__(
        self, non_broadcast_stream: DataStream[T1], broadcast_stream: BroadcastStream[T2]
    ) -> None:
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream

    @overload
    def process(
        self,
        func: BroadcastProcessFunction[T1, T2, R] | KeyedBroadcastProcessFunction[Any, T1, T2, R],
        output_type: None = None,
    ) -> DataStream[R]: ...
    @overload
    def process(
        self,
        func: BroadcastProcessFunction[T1, T2, Any]
        | KeyedBroadcastProcessFunction[Any, T1, T2, Any],
        output_type: TypeInformation[R],
    ) -> DataStream[R]: ...
    def process(
        self,
        func: BroadcastProcessFunction | KeyedBroadcastProcessFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Apply a function to the records of both streams. If the first stream is keyed, the
        function is a KeyedBroadcastProcessFunction, otherwise a BroadcastProcessFunction."""
        stream, keys = self.non_broadcast_stream, self.non_broadcast_stream._keys
        descriptors = self.broadcast_stream.broadcast_state_descriptors
        operator: StreamOperator
        if keys is not None:
            what = "a KeyedBroadcastProcessFunction is needed"
            function = expect_kind(func, KeyedBroadcastProcessFunction, what)
            operator = KeyedBroadcastProcessOperator(function, keys, descriptors)
        else:
            what = "a BroadcastProcessFunction is needed"
            function = expect_kind(func, BroadcastProcessFunction, what)
            operator = BroadcastProcessOperator(function, descriptors)
        result = two_input_stream(
            "Co-Process-Broadcast",
            operator,
            stream,
            self.broadcast_stream.input_stream,
            output_type,
            keys is not None,
            None if keys is None else (keys, None),
        )
        result._transformation.broadcast_first = True
        return result
