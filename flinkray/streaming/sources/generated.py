"""Sources of generated records at a chosen rate, and of lines from a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from flinkray.core.arguments import whole_number
from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.functions.signatures import refuse_coroutines
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sources.collection import Slice, SlicedSource, SliceReader
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
    T,
)

_CONNECT_TIMEOUT = 10.0
"""Seconds to wait for the connection to the server."""
_CONNECTION = "connection"
"""The only split of a SocketSource."""


class DataGeneratorSource(SlicedSource[T]):
    """Emits the results of a function called with 0, 1, 2, …

    Args:
        generate: returns the record for a number.
        count: number of records.
        records_per_second: rate of all subtasks together. None: as fast as possible.
    """

    def __init__(
        self,
        generate: Callable[[int], T],
        count: int,
        records_per_second: float | None = None,
    ) -> None:
        count = whole_number(count, "the count of records")
        if count < 0 or (records_per_second is not None and records_per_second <= 0):
            raise StreamError("count must not be negative, and records_per_second be positive")
        refuse_coroutines(generate)
        super().__init__(count)
        self._generate = generate
        self._rate = records_per_second

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_count" in state:  # pickled by an earlier version
            state["_length"] = state.pop("_count")
        self.__dict__.update(state)

    def create_reader(self, context: ReaderContext) -> SourceReader[Slice]:
        rate = None if self._rate is None else self._rate / context.parallelism
        return _GeneratorReader(context, self.records, rate)

    def records(self, start: int, end: int) -> Block:
        generate = self._generate
        return Block([generate(number) for number in range(start, end)])


class _GeneratorReader(SliceReader):
    def __init__(
        self, context: ReaderContext, read: Callable[[int, int], Block], rate: float | None
    ) -> None:
        super().__init__(context, read)
        self._rate = rate
        self._begun = context.clock.monotonic()
        self._emitted = 0

    def read(self, max_records: int) -> Polled:
        if self._rate is not None and not self.is_at_end:
            elapsed = self.context.clock.monotonic() - self._begun
            max_records = min(max_records, int(elapsed * self._rate) - self._emitted)
            if max_records <= 0:
                return NOTHING_NOW
        polled = super().read(max_records)
        if isinstance(polled, Block):
            self._emitted += len(polled)
        return polled

    def next_poll_time(self) -> float | None:
        at = super().next_poll_time()
        if self._rate is None or at is not None:
            return at
        clock = self.context.clock
        due = self._begun + (self._emitted + 1) / self._rate
        return clock.time() + max(due - clock.monotonic(), 0.0)


class SocketSource(Source[str, str]):
    """A source of the lines of text that a TCP server sends. One subtask reads. A carriage return
    before a line feed is removed. Lines are not repeated after a failure (at most once). After a
    failure the source connects again, unless the server had closed the connection before the
    checkpoint."""

    def __init__(self, host: str, port: int, delimiter: str = "\n") -> None:
        self._address = (host, port)
        self._delimiter = delimiter

    def get_boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[str], clock: Clock
    ) -> SplitEnumerator[str]:
        return FixedSplitsEnumerator(context, [_CONNECTION])

    def create_reader(self, context: ReaderContext) -> SourceReader[str]:
        return _SocketReader(context, self._address, self._delimiter.encode())


class _SocketReader(SourceReader[str]):
    def __init__(self, context: ReaderContext, address: tuple[str, int], delimiter: bytes) -> None:
        super().__init__(context)
        self._address = address
        self._server = f"{address[0]}:{address[1]}"
        self._delimiter = delimiter
        self._socket: socket.socket | None = None
        self._rest = b""
        self._ended = False

    def start(self) -> None:
        self.context.send_split_request()

    def add_splits(self, splits: Sequence[str]) -> None:
        try:
            connection = socket.create_connection(self._address, timeout=_CONNECT_TIMEOUT)
        except OSError as error:
            raise UnavailableError(
                f"cannot connect to {self._server}: {error}; the server must listen before the "
                "program starts, at an address that the cluster's nodes reach"
            ) from None
        connection.setblocking(False)
        self._socket = connection

    def notify_no_more_splits(self) -> None:
        self._ended = self._socket is None

    def poll(self, max_records: int) -> Polled:
        if self._socket is None:
            return END_OF_INPUT if self._ended else NOTHING_NOW
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return NOTHING_NOW
        except OSError as error:
            raise UnavailableError(f"the connection to {self._server} broke: {error}") from None
        *lines, self._rest = (self._rest + received).split(self._delimiter)
        if not received:
            self.close()
            self._ended = True
            lines = [self._rest] if self._rest else []
            self._rest = b""
        if self._delimiter == b"\n":
            lines = [line.removesuffix(b"\r") for line in lines]
        return Block([self._decode(line) for line in lines]) if lines else NOTHING_NOW

    def _decode(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise StreamError(
                f"{self._server} sent a line that is not UTF-8: {line!r:.200}"
            ) from None

    def snapshot_state(self, checkpoint_id: int) -> list[str]:
        return [] if self._socket is None else [_CONNECTION]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
