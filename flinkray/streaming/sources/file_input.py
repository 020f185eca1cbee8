"""Files as a source opens them: decompressed by the end of their name, as Arrow does for CSV; and
errors that name them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from flinkray.streaming.errors import StreamError

_COMPRESSED = (".bz2", ".gz", ".lz4", ".zst")
_BUFFER = 1 << 16
"""Bytes."""


def open_text(path: str, errors: str = "strict") -> TextIO:
    """UTF-8, without a byte order mark, and with lines' ends as they are.

    Args:
        errors: what becomes of other bytes, as ``open`` has it.
    """
    if Path(path).suffix not in _COMPRESSED:
        return open(path, encoding="utf-8-sig", errors=errors, newline="")
    file = pa.input_stream(path, compression="detect", buffer_size=_BUFFER)
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors=errors, newline="")


def bytes_up_to(path: str, most: int) -> int:
    """How many the file has when it is decompressed; *most* if they are more."""
    with pa.input_stream(path, compression="detect") as file:
        return len(file.read(most))


@contextmanager
def reading(path: str, kind: str) -> Iterator[None]:
    """What Arrow says of a file that is not of its kind does not name it.

    Raises:
        StreamError: it is not.
    """
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the operating system
        raise StreamError(f"{path} cannot be read as {kind}: {error}") from error


@contextmanager
def reading_text(path: str) -> Iterator[None]:
    """The same of text.

    Raises:
        StreamError: it is no UTF-8, or not compressed as its name says.
    """
    try:
        with reading(path, "text"):
            yield
    except UnicodeDecodeError as error:
        raise StreamError(
            f"{path}, line {_line_that_is_no_text(path)}, is not UTF-8: {error.reason}; convert "
            "the file, or read it with a RecordFormat"
        ) from error


def _line_that_is_no_text(path: str) -> int:
    """Its number from 1 on: text is decoded before it is divided into lines."""
    with open_text(path, "surrogateescape") as file:
        return next(
            number
            for number, line in enumerate(file, 1)
            if any("\udc80" <= character <= "\udcff" for character in line)
        )
