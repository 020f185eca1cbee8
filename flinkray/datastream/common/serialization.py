"""How single values are written and read."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from flinkray.streaming.errors import StreamError


def check_charset(charset_name: str) -> None:
    """
    Raises:
        StreamError: it is another one than UTF-8.
    """
    if charset_name.upper().replace("-", "") != "UTF8":
        raise StreamError(f"text is read and written as UTF-8, not {charset_name}")


@dataclass(frozen=True)
class Encoder:
    """How values are written.

    >>> Encoder.simple_string_encoder()
    Encoder(file_format='text')
    """

    file_format: str

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """A value on a line, as ``print()`` writes it."""
        check_charset(charset_name)
        return Encoder("text")


class SerializationSchema(ABC):
    """Makes bytes of values, for sinks of one's own."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes:
        """The value as bytes."""


class DeserializationSchema(ABC):
    """Makes values of bytes, for sources of one's own."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The value that the bytes stand for."""


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Texts, in any encoding that Python has.

    >>> schema = SimpleStringSchema("ISO-8859-1")
    >>> schema.serialize("naïve"), schema.deserialize(b"na\\xefve")
    (b'na\\xefve', 'naïve')
    """

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


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes as they are."""

    def serialize(self, element: bytes) -> bytes:
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        return bytes(message)
