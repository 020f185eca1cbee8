"""What travels when keyed state is queried: keys and a namespace there, what is stored back.

Both are written as snapshots have them (:mod:`flinkray.state.value_encoding`): many at once are a
column.  A request that has been changed on its way, or is something else, is an error of that
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.core.kv_states import MalformedKvStateError
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.errors import StateMigrationError
from flinkray.state.key_values import as_key
from flinkray.state.serializers import StateFrameWriter, StateSerializer
from flinkray.state.value_encoding import (
    UnreadableValuesError,
    ValueDecoder,
    ValueEncoder,
    pack,
    unpack,
)

NO_NAMESPACE: Any = None
"""Of state that belongs to keys alone."""


def serialize_keys_and_namespace(keys: Sequence[Any], namespace: Any = NO_NAMESPACE) -> bytes:
    """Raises StateError: one of them cannot be sent."""
    encoder = ValueEncoder()
    namespaces = [] if namespace is NO_NAMESPACE else [namespace]
    return pack([encoder.encode(keys), encoder.encode(namespaces)])


def deserialize_keys_and_namespace(data: bytes) -> tuple[list[Any], Any]:
    """Keys that a table finds.

    Raises:
        MalformedKvStateError: the bytes are cut short, too long, or something else.
        StateMigrationError: they are of a class that is not here, or is another one.
    """
    decoder = ValueDecoder(exactly=True)
    try:
        [(keys, namespaces)] = unpack(data)
        found, [*namespace] = decoder.decode(keys), decoder.decode(namespaces)
        if len(namespace) > 1:
            raise ValueError(f"{len(namespace)} namespaces")
        hash(tuple(namespace))  # what cannot be hashed is no namespace
        return [as_key(key) for key in found], namespace[0] if namespace else NO_NAMESPACE
    except StateMigrationError:
        raise
    except (UnreadableValuesError, ValueError, TypeError, ArithmeticError) as error:
        raise MalformedKvStateError(
            f"{len(data)} bytes are no keys with a namespace: {error}"
        ) from error


class KvStateSerializer:
    """Of what is stored in one state.  Not to be used by two threads at once: what has been written
    is remembered.

    Args:
        descriptor: as the reader, or the writer, has it; None: a reader that declares nothing.
    """

    def __init__(self, descriptor: StateDescriptor | None) -> None:
        self._descriptor = descriptor
        self._serializer = StateSerializer.without_times(descriptor or StateDescriptor("anything"))
        self._writer: StateFrameWriter | None = None

    def copy(self) -> KvStateSerializer:
        """Another one, for another thread."""
        return KvStateSerializer(self._descriptor)

    def serialize(self, contents: Sequence[Any]) -> bytes:
        """What is at some places: values, lists or dictionaries.

        Raises:
            StateError: a value cannot be sent.
        """
        if self._writer is None:
            self._writer = self._serializer.writer()
        return self._writer.write_column(contents)

    def deserialize(self, data: bytes) -> list[Any]:
        """What was serialized.

        Raises:
            MalformedKvStateError: the bytes are cut short, too long, or something else.
            StateMigrationError: it is not of the type that the descriptor declares.
        """
        try:
            return self._serializer.read_column(data)
        except UnreadableValuesError as error:
            raise MalformedKvStateError(f"{len(data)} bytes are no answer: {error}") from error

    def deserialize_one(self, data: bytes) -> Any:
        """The contents of one place.  No bytes are an empty list or map, as with Flink.

        Raises:
            MalformedKvStateError, StateMigrationError: see :meth:`deserialize`.
        """
        kind = None if self._descriptor is None else self._descriptor.kind
        if not data and kind in ("list", "map"):
            return [] if kind == "list" else {}
        found = self.deserialize(data)
        if len(found) != 1:
            raise MalformedKvStateError(f"the answer has {len(found)} values in place of one")
        return found[0]
