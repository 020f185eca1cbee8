"""Serializers for streams of bytes (PyFlink's ``pyflink.common.serializer``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Generic, TypeVar

T = TypeVar("T")


class TypeSerializer(ABC, Generic[T]):
    """Serializer for values of one type. Serializers of one class with equal settings are equal.
    Serializers exist for PyFlink's window assigners, which may have a method
    ``get_window_serializer``. Flinkray stores windows in its own form and calls no serializer."""

    @abstractmethod
    def serialize(self, element: T, stream: BytesIO) -> None:
        """Write the value."""

    @abstractmethod
    def deserialize(self, stream: BytesIO) -> T:
        """Read what :meth:`serialize` has written."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class VoidNamespaceSerializer(TypeSerializer[bytes]):
    """Serializer that writes and reads no bytes."""

    def serialize(self, element: bytes, stream: BytesIO) -> None:
        pass

    def deserialize(self, stream: BytesIO) -> bytes:
        return b""
