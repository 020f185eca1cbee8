"""Opens files for sources: decompressed (by the end of their name) and decoded.
Errors name the file, the line and the column."""

from __future__ import annotations

import codecs
import io
import lzma
import os
import shutil
import tempfile
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO

import pyarrow as pa

from flinkray.core.error_text import sendable
from flinkray.streaming.errors import FileNotReadyError, StreamError

_ARROW_CODECS = {
    ".bz2": "bz2",
    ".gz": "gzip",
    ".gzip": "gzip",
    ".lz4": "lz4",
    ".zst": "zstd",
    ".zstd": "zstd",
}
_XZ = ".xz"
COMPRESSIONS = (*_ARROW_CODECS, _XZ)
"""Ends of names of compressed files, in lower case."""

_REFUSED = {
    **dict.fromkeys((".7z", ".rar", ".tar", ".tbz2", ".tgz", ".txz", ".zip"), "an archive"),
    **dict.fromkeys(
        (".br", ".deflate", ".lzma", ".lzo", ".sz", ".snappy", ".z"), "compressed in another way"
    ),
}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks. UTF-32 comes before UTF-16, because its mark begins with that of UTF-16."""

_PARQUET = b"PAR1"
_MAGIC = ((b"\x1f\x8b", ".gz"), (b"BZh", ".bz2"), (b"\x28\xb5\x2f\xfd", ".zst"),
          (b"\x04\x22\x4d\x18", ".lz4"), (b"\xfd7zXZ\x00", ".xz"), (b"PK\x03\x04", ".zip"),
          (_PARQUET, ".parquet"))  # fmt: skip
"""First bytes of files of other kinds."""

_BUFFER = 1 << 16
"""Bytes that are read at once."""


def shown(path: str) -> str:
    """Return the path for error messages. Bytes that are not text are escaped."""
    return sendable(path)


def compression_of(path: str) -> str:
    """Return the ending of the name that says how the file is compressed, such as ``.gz``; empty if
    it is not. Raises StreamError: the compression is not supported."""
    end = Path(path).suffix.lower()
    if end in _REFUSED:
        raise StreamError(
            f"{shown(path)} is {_REFUSED[end]} by its name ({end}), and cannot be read: unpack it, "
            f"or compress it as {', '.join(COMPRESSIONS)}"
        )
    return end if end in COMPRESSIONS else ""


def check_encoding(encoding: str) -> str:
    """Return *encoding*. Raises StreamError if Python has no such text encoding."""
    try:
        "".encode(encoding)
    except (LookupError, TypeError) as error:
        raise StreamError(f"there is no encoding of text named {encoding!r}") from error
    return encoding


def open_bytes(path: str) -> pa.NativeFile:
    """Return a file object over the decompressed content of a file. Concatenated compressed members
    are read as one. Raises StreamError: the compression is not supported."""
    end = compression_of(path)
    if end == _XZ:
        return pa.PythonFile(lzma.open(os.fsencode(path)), mode="r")
    file = pa.OSFile(os.fsencode(path))
    return pa.CompressedInputStream(file, _ARROW_CODECS[end]) if end else file


def encoding_of(path: str, encoding: str | None) -> str:
    """Return the encoding that the file's byte order mark says, else *encoding*, else UTF-8."""
    with open_bytes(path) as file:
        start = file.read(4)
    marked = (name for mark, name in _MARKS if start.startswith(mark))
    return next(marked, encoding or "utf-8")


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def open_as_utf8(path: str, encoding: str | None = None) -> pa.NativeFile:
    """Return a file object over the text of a file as UTF-8 bytes, decompressed, for Arrow. A byte
    order mark is left in, since Arrow skips it."""
    found = encoding_of(path, encoding)
    file = open_bytes(path)
    return file if _is_utf8(found) else pa.transcoding_input_stream(file, found, "utf-8")


def open_text(path: str, encoding: str | None = None, errors: str = "strict") -> TextIO:
    """Return a file object over the text of a file, decompressed and without a byte order mark.
    Line ends are not changed."""
    found = encoding_of(path, encoding)
    decode = "utf-8-sig" if codecs.lookup(found).name == "utf-8" else found
    if not compression_of(path):
        return open(path, encoding=decode, errors=errors, newline="")
    file: Any = open_bytes(path)
    return io.TextIOWrapper(io.BufferedReader(file, _BUFFER), decode, errors, newline="")


class Reading:
    """Context manager in which a file is read: errors name the file and, if possible, line and
    column. (``contextmanager`` would add a frame to tracebacks.) Raises FileNotReadyError: the file
    ends too early, perhaps because it is still being written. StreamError: the file is of another
    kind, compression or encoding."""

    def __init__(self, path: str, kind: str, encoding: str | None = None) -> None:
        self._path = path
        self._kind = kind
        self._encoding = encoding

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, frames: object) -> None:
        if isinstance(error, UnicodeDecodeError):
            raise undecodable(self._path, self._encoding, error.reason) from None
        if isinstance(error, OSError) and error.errno is not None:
            return  # an error of the operating system
        if isinstance(error, _FAILURES):
            raise _unreadable(self._path, self._kind, error) from None


_FAILURES = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError, lzma.LZMAError)
"""Errors that Arrow and the decompressors raise."""

_CUT_OFF = ("Truncated compressed stream", "ended before the end-of-stream")
"""Error texts of Arrow and Python for compressed data without an end."""

_WRONG_CODEC = ("decompress failed", "inflate failed", "Decompress failed", "LZ4", "Input format",
                "Corrupt input", "bz2")  # fmt: skip
"""Parts of error texts of compression libraries."""

_NO_FOOTER = ("magic bytes not found in footer", "smaller than the minimum file footer",
              "Parquet file size is 0 bytes")  # fmt: skip
"""Parts of Arrow's error texts for a Parquet file without an end."""


def _unreadable(path: str, kind: str, error: BaseException) -> StreamError:
    text, end = str(error), compression_of(path)
    made: type[StreamError] = StreamError
    if end and any(told in text for told in _CUT_OFF):
        text = f"it is cut off: what is compressed in it has no end (as {end})"
        made = FileNotReadyError
    elif any(told in text for told in _NO_FOOTER) and _begins_as_parquet(path):
        text = f"it is cut off: it has no footer, with which a Parquet file ends ({text})"
        made = FileNotReadyError
    elif end and any(told in text for told in _WRONG_CODEC):
        text = f"it is not compressed as its name says ({end}), or damaged: {text}"
    return made(f"{shown(path)} cannot be read as {kind}: {text}")


def _begins_as_parquet(path: str) -> bool:
    """Return whether the file begins like a Parquet file, or ends within that beginning."""
    with open(path, "rb") as file:
        return _PARQUET.startswith(file.read(4))


def misread(path: str, encoding: str | None, line: int) -> type[StreamError]:
    """Return the class of the error to raise for a line (from 1) that cannot be read:
    FileNotReadyError if the file ends within the line, because it may still be being written, else
    StreamError."""
    with Reading(path, "text", encoding), open_text(path, encoding, errors="replace") as file:
        rest = islice(file, line - 1, None)
        is_cut = not next(rest, "\n").endswith(("\r", "\n"))
    return FileNotReadyError if is_cut else StreamError


def undecodable(path: str, encoding: str | None, reason: str) -> StreamError:
    """Return the error for a file that is not in the expected encoding."""
    found = encoding_of(path, encoding)
    name = "UTF-8" if _is_utf8(found) else found
    with open_bytes(path) as file:
        start = file.read(8)
    begins = next((end for magic, end in _MAGIC if start.startswith(magic)), None)
    if begins is not None:
        way_out = f"it begins as a {begins} file does, and its name must end with {begins} then"
    else:
        way_out = "give the encoding that the file has, such as encoding='cp1252', or convert it"
    line, column, is_end = _place_that_is_no_text(path, found)
    made = FileNotReadyError if is_end else StreamError
    return made(f"{shown(path)}, line {line}, column {column}, is not {name}: {reason}; {way_out}")


def _place_that_is_no_text(path: str, encoding: str) -> tuple[int, int, bool]:
    """Return (line, column, whether the file ends within a character) for the first bytes that are
    not text. Line and column count from 1."""
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(encoding)("strict"), translate=True
    )
    line = column = 1
    with open_bytes(path) as file:
        while True:
            chunk, before = file.read(_BUFFER), decoder.getstate()
            try:
                line, column = _after(decoder.decode(chunk, final=not chunk), line, column)
            except UnicodeDecodeError:
                decoder.setstate(before)
                break
            if not chunk:
                return line, column, False
    try:
        for place in range(len(chunk)):
            text = decoder.decode(chunk[place : place + 1])
            line, column = _after(text, line, column)
    except UnicodeDecodeError:
        pass
    return line, column, not chunk


def _after(text: str, line: int, column: int) -> tuple[int, int]:
    ends = text.count("\n")
    last = len(text.rpartition("\n")[2])
    return line + ends, last + 1 if ends else column + last


def is_packed(path: str) -> bool:
    """Return whether a Parquet file was compressed as a whole after it was written: the ending of
    its name says so, and its first bytes are not those of a Parquet file."""
    with open(path, "rb") as file:
        return file.read(4) != _PARQUET and bool(compression_of(path))


def unpacked(path: str) -> IO[bytes]:
    """Return a temporary file with the decompressed content. It is removed when it is closed."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever asked for it
    try:
        with open_bytes(path) as file:
            shutil.copyfileobj(file, copy, 1 << 20)
    except BaseException:
        copy.close()
        raise
    copy.seek(0)
    return copy
