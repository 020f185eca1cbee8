"""How values become bytes in a stream of bytes (PyFlink's ``pyflink.common.serializer``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Generic, TypeVar

T = TypeVar("T")


class TypeSerializer(ABC, Generic[T]):
    """Writes and reads values of one type; equal to another one of its class that has the same
    settings.

    Nothing here asks for one: window assigners of PyFlink's programs may have
    ``get_window_serializer``, but windows are kept as they are.
    """

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
    """Writes nothing, and reads no bytes."""

    def serialize(self, element: bytes, stream: BytesIO) -> None:
        pass

    def deserialize(self, stream: BytesIO) -> bytes:
        return b""
