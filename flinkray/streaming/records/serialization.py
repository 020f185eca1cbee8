"""Conversion of single values to bytes and back."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.typeinfo import T

IN = TypeVar("IN", contravariant=True, default=Any)


def check_charset(charset_name: str) -> None:
    """Check that a character set is UTF-8. Raises StreamError: it is another one."""
    if charset_name.upper().replace("-", "") != "UTF8":
        raise StreamError(f"text is read and written as UTF-8, not {charset_name}")


@dataclass(frozen=True)
class Encoder:
    """Format in which a file sink writes values."""

    file_format: str

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """Return an encoder that writes each value on a line, as ``print()`` does."""
        check_charset(charset_name)
        return Encoder("text")


class SerializationSchema(ABC, Generic[IN]):
    """Converter of values to bytes, for user-defined sinks."""

    @abstractmethod
    def serialize(self, element: IN) -> bytes:
        """Return the value as bytes."""


class DeserializationSchema(ABC, Generic[T]):
    """Converter of bytes to values, for user-defined sources."""

    @abstractmethod
    def deserialize(self, message: bytes) -> T | None:
        """Return the value that the bytes represent. None: they represent no value."""

    def deserialize_all(self, messages: Sequence[bytes]) -> list[T | None]:
        """Return what :meth:`deserialize` returns for each message. Override this method in a
        schema that reads many messages together in less time."""
        return list(map(self.deserialize, messages))


class SimpleStringSchema(SerializationSchema[str], DeserializationSchema[str]):
    """Schema for texts, in any encoding that Python has."""

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            codecs.lookup(charset)
        except LookupError as error:
            raise ValueError(f"no encoding is called {charset!r}") from error
        self._charset = charset

    def serialize(self, element: str) -> bytes:
        return element.encode(self._charset)

    def deserialize(self, message: bytes) -> str:
        return bytes(message).decode(self._charset)


class ByteArraySchema(SerializationSchema[bytes], DeserializationSchema[bytes]):
    """Schema for bytes, which stay unchanged."""

    def serialize(self, element: bytes) -> bytes:
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        return bytes(message)
