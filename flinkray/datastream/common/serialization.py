"""How single values are written and read."""

from __future__ import annotations

from dataclasses import dataclass

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
        """``str(value)`` on a line."""
        check_charset(charset_name)
        return Encoder("text")
