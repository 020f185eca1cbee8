"""Serializes queries of keyed state (keys and a namespace) and their results (contents).

Both have the format of snapshots (:mod:`flinkray.state.value_encoding`): many values are a column.
A request that was damaged on its way fails; other requests are not affected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.core.kv_states import MalformedKvStateError
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.errors import StateMigrationError
from flinkray.state.key_values import as_key
from flinkray.state.state_serializer import StateFrameWriter, StateSerializer
from flinkray.state.value_encoding import (
    UnreadableValuesError,
    ValueDecoder,
    ValueEncoder,
    pack,
    unpack,
)

NO_NAMESPACE: Any = None
"""The namespace of state that has no namespaces."""


def serialize_keys_and_namespace(keys: Sequence[Any], namespace: Any = NO_NAMESPACE) -> bytes:
    """Return the keys and the namespace as bytes. Raises StateError if one cannot be sent."""
    encoder = ValueEncoder()
    namespaces = [] if namespace is NO_NAMESPACE else [namespace]
    return pack([encoder.encode(keys), encoder.encode(namespaces)])


def deserialize_keys_and_namespace(data: bytes) -> tuple[list[Any], Any]:
    """Return (keys in the form in which tables keep them, namespace).
    Raises MalformedKvStateError for bytes that are cut short, too long or of another format,
    StateMigrationError if a class of the values does not exist here, or is another one."""
    decoder = ValueDecoder(exactly=True)
    try:
        [(keys, namespaces)] = unpack(data)
        found, [*namespace] = decoder.decode(keys), decoder.decode(namespaces)
        if len(namespace) > 1:
            raise ValueError(f"{len(namespace)} namespaces")
        hash(tuple(namespace))  # a value that cannot be hashed is not a namespace
        return [as_key(key) for key in found], namespace[0] if namespace else NO_NAMESPACE
    except StateMigrationError:
        raise
    except (UnreadableValuesError, ValueError, TypeError, ArithmeticError) as error:
        raise MalformedKvStateError(
            f"{len(data)} bytes are no keys with a namespace: {error}"
        ) from error


class KvStateSerializer:
    """Serializes the contents of one queryable state for the results of queries.
    A serializer remembers what it has written, so two threads must not use one at the same time.
    *descriptor*: descriptor of the state; None: a reader that does not know the type."""

    def __init__(self, descriptor: StateDescriptor | None) -> None:
        self._descriptor = descriptor
        self._serializer = StateSerializer.without_times(descriptor or StateDescriptor("anything"))
        self._writer: StateFrameWriter | None = None

    def copy(self) -> KvStateSerializer:
        """Return a new serializer for the same state, for use in another thread."""
        return KvStateSerializer(self._descriptor)

    def serialize(self, contents: Sequence[Any]) -> bytes:
        """Return the *contents* (for each key a value, list or dictionary) as bytes.
        Raises StateError if a value cannot be sent."""
        if self._writer is None:
            self._writer = self._serializer.writer()
        return self._writer.write_column(contents)

    def deserialize(self, data: bytes) -> list[Any]:
        """Return the contents given to :meth:`serialize`.
        Raises MalformedKvStateError for bytes that are cut short, too long or of another format,
        StateMigrationError if the contents are not of the type that the descriptor declares."""
        try:
            return self._serializer.read_column(data)
        except UnreadableValuesError as error:
            raise MalformedKvStateError(f"{len(data)} bytes are no answer: {error}") from error

    def deserialize_one(self, data: bytes) -> Any:
        """Return the contents of a single key from *data*. Empty bytes are an empty list or map, as
        with Flink. Raises the errors of :meth:`deserialize`."""
        kind = None if self._descriptor is None else self._descriptor.kind
        if not data and kind in ("list", "map"):
            return [] if kind == "list" else {}
        found = self.deserialize(data)
        if len(found) != 1:
            raise MalformedKvStateError(f"the answer has {len(found)} values in place of one")
        return found[0]
