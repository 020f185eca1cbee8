"""Two streams that one operator reads."""

from __future__ import annotations

from typing import Any

from flinkray.datastream.data_stream import DataStream
from flinkray.datastream.keyed_stream import KeyedStream
from flinkray.state.descriptors import MapStateDescriptor
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from flinkray.streaming.operators.broadcast import (
    BroadcastProcessOperator,
    KeyedBroadcastProcessOperator,
)
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
)
from flinkray.streaming.program.transformations import OperatorTransformation
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.typeinfo import TypeInformation


def two_input_stream(
    name: str,
    operator: StreamOperator,
    first: DataStream,
    second: DataStream,
    output_type: TypeInformation | None,
    keyed: bool,
    sort_keys: tuple[Keys | None, Keys | None] | None = None,
) -> DataStream:
    """The results of an operator on two streams; batch mode sorts them by *sort_keys*."""
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


class ConnectedStreams:
    """Two streams for one function.

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

    def __init__(self, stream1: DataStream, stream2: DataStream) -> None:
        self.stream1 = stream1
        self.stream2 = stream2

    def key_by(
        self,
        key_selector1: Any,
        key_selector2: Any,
        key_type: TypeInformation | None = None,
    ) -> ConnectedStreams:
        """Key both, by keys of one kind."""
        return ConnectedStreams(
            self.stream1.key_by(key_selector1, key_type),
            self.stream2.key_by(key_selector2, key_type),
        )

    def _keys(self) -> tuple[Keys, Keys] | None:
        first, second = self.stream1, self.stream2
        if isinstance(first, KeyedStream) and isinstance(second, KeyedStream):
            return first._keys, second._keys
        if isinstance(first, KeyedStream) or isinstance(second, KeyedStream):
            raise StreamError("only one of the connected streams is keyed: key both, or none")
        return None

    def map(
        self, func: CoMapFunction[Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """``map1`` for the first stream's values, ``map2`` for the second's."""
        if not isinstance(func, CoMapFunction):
            raise TypeError(f"a CoMapFunction is needed, got {func!r}")
        keys = self._keys()
        return self._then("Co-Map", CoMapOperator(func, keys), output_type, keys)

    def flat_map(
        self, func: CoFlatMapFunction[Any, Any, Any], output_type: TypeInformation | None = None
    ) -> DataStream:
        """``flat_map1`` and ``flat_map2``."""
        if not isinstance(func, CoFlatMapFunction):
            raise TypeError(f"a CoFlatMapFunction is needed, got {func!r}")
        keys = self._keys()
        return self._then("Co-Flat Map", CoFlatMapOperator(func, keys), output_type, keys)

    def process(
        self,
        func: CoProcessFunction[Any, Any, Any] | KeyedCoProcessFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """``process_element1`` and ``process_element2``; keyed streams take a
        KeyedCoProcessFunction, with state and timers."""
        keys = self._keys()
        operator: StreamOperator
        if keys is not None:
            if not isinstance(func, KeyedCoProcessFunction):
                raise TypeError(f"keyed streams need a KeyedCoProcessFunction, got {func!r}")
            operator = KeyedCoProcessOperator(func, *keys)
        else:
            if not isinstance(func, CoProcessFunction):
                raise TypeError(f"a CoProcessFunction is needed, got {func!r}")
            operator = CoProcessOperator(func)
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


class BroadcastStream:
    """A stream that every subtask receives whole, with the state it fills."""

    def __init__(
        self,
        input_stream: DataStream,
        broadcast_state_descriptors: tuple[MapStateDescriptor[Any, Any], ...],
    ) -> None:
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise TypeError(
                    f"broadcast state is described by a MapStateDescriptor, got {descriptor!r}"
                )
        self.input_stream = input_stream
        self.broadcast_state_descriptors = tuple(broadcast_state_descriptors)


class BroadcastConnectedStream:
    """A stream and a broadcast stream for one function."""

    def __init__(self, non_broadcast_stream: DataStream, broadcast_stream: BroadcastStream) -> None:
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream

    def process(
        self,
        func: BroadcastProcessFunction[Any, Any, Any]
        | KeyedBroadcastProcessFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """A keyed stream takes a KeyedBroadcastProcessFunction."""
        stream = self.non_broadcast_stream
        descriptors = self.broadcast_stream.broadcast_state_descriptors
        operator: StreamOperator
        if isinstance(stream, KeyedStream):
            if not isinstance(func, KeyedBroadcastProcessFunction):
                raise TypeError(f"a KeyedBroadcastProcessFunction is needed, got {func!r}")
            operator = KeyedBroadcastProcessOperator(func, stream._keys, descriptors)
        else:
            if not isinstance(func, BroadcastProcessFunction):
                raise TypeError(f"a BroadcastProcessFunction is needed, got {func!r}")
            operator = BroadcastProcessOperator(func, descriptors)
        return two_input_stream(
            "Co-Process-Broadcast",
            operator,
            stream,
            self.broadcast_stream.input_stream,
            output_type,
            isinstance(stream, KeyedStream),
            (stream._keys, None) if isinstance(stream, KeyedStream) else None,
        )
