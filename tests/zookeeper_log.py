"""What a ZooKeeper server has done, in its order, from the log that it keeps of it.

The format is that of ZooKeeper's ``FileTxnLog``: a header, then a checksum, a length and the bytes
of each transaction, encoded by its ``jute``; zeros at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER = 16
CREATE, DELETE, SET_DATA, CHECK, MULTI, CREATE_2 = 1, 2, 5, 13, 14, 15
CLOSE_SESSION = -11


@dataclass(frozen=True)
class Operation:
    kind: int
    """CREATE, DELETE, SET_DATA or CHECK."""
    path: str
    data: bytes = b""


@dataclass(frozen=True)
class Transaction:
    """All of it has happened, and at once."""

    number: int
    at: float
    """Seconds of the server's clock since the epoch."""
    operations: tuple[Operation, ...]

    @property
    def checked(self) -> list[str]:
        """The znodes without which it would not have happened."""
        return [operation.path for operation in self.operations if operation.kind == CHECK]


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(f">{layout}", self._data, self._at)
        self._at += struct.calcsize(f">{layout}")
        return found

    def number(self, layout: str = "i") -> int:
        return self.numbers(layout)[0]

    def block(self) -> bytes:
        length = max(self.number(), 0)  # -1: none
        begin, self._at = self._at, self._at + length
        return self._data[begin : self._at]

    def text(self) -> str:
        return self.block().decode()


def transactions(directory: Path) -> Iterator[Transaction]:
    """Of the server whose ``dataDir`` this is; those that have failed are left out."""
    logs = directory.glob("version-2/log.*")
    for file in sorted(logs, key=lambda log: int(log.suffix[1:], 16)):
        found = _Bytes(file.read_bytes()[HEADER:] + bytes(12))
        while entry := _entry(found):
            transaction = _transaction(_Bytes(entry))
            if transaction.operations:
                yield transaction


def _entry(found: _Bytes) -> bytes:
    """Nothing: it is the end, be it that the server is about to write there."""
    found.number("q")  # the checksum
    entry = found.block()
    return entry if entry and found.number("b") == ord("B") else b""


def _transaction(entry: _Bytes) -> Transaction:
    _, _, number, milliseconds, kind = entry.numbers("qiqqi")
    return Transaction(number, milliseconds / 1000, tuple(_operations(kind, entry)))


def _operations(kind: int, record: _Bytes) -> Iterator[Operation]:
    if kind in (CREATE, CREATE_2, SET_DATA):
        yield Operation(SET_DATA if kind == SET_DATA else CREATE, record.text(), record.block())
    elif kind in (DELETE, CHECK):
        yield Operation(kind, record.text())
    elif kind == CLOSE_SESSION:
        for _ in range(record.number()):
            yield Operation(DELETE, record.text())
    elif kind == MULTI:
        for _ in range(record.number()):
            of_part = record.number()
            yield from _operations(of_part, _Bytes(record.block()))
