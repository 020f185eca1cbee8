"""What the client of a stream job reads from the task that collects the results."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle

from flinkray.actors.task_process.partitions import HeldPartition
from flinkray.streaming.errors import unpicklable
from flinkray.streaming.network import BatchTooLargeError
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import Settled

MAX_PIECE = 4 * 2**20
"""Bytes: what one result may be at the most, as it must fit into a message."""
MOST_WAITING = 2**20
"""Bytes that wait for the client; then the task waits, and with it all before it."""


class CollectedResults:
    """Made on the event loop, written by the task's thread; the client is the one reader of the
    partition."""

    def __init__(
        self,
        partition: HeldPartition,
        on_room: Callable[[], None],
        announce: Callable[[], None],
    ) -> None:
        """*on_room* is called when the task may write again, *announce* when there are going to be
        results."""
        self._partition = partition
        self._on_room = on_room
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._put = 0
        """Bytes, counted by the task's thread."""
        self._taken = 0
        """Bytes, counted by the loop."""
        self._waiting: deque[bytes] = deque()
        self._writing: asyncio.Task[None] | None = None

    # --- for the task's thread ----------------------------------------------------------------

    def begin(self) -> None:
        """There are going to be results."""
        self._loop.call_soon_threadsafe(self._announce)

    def put(self, values: Sequence[Any]) -> None:
        """
        Raises:
            UnpicklableRecordsError, BatchTooLargeError: a result cannot be sent.
        """
        for piece in _pieces(list(values)):
            self._put += len(piece)
            self._loop.call_soon_threadsafe(self._add, piece)

    def has_room(self) -> bool:
        return self._put - self._taken < MOST_WAITING

    def flush_when_idle(self) -> None:
        """Nothing waits for more."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """The client sees no barriers."""
        settled({})

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        """Nor these."""

    def end_of_input(self) -> None:
        """Told by :meth:`finish`."""

    # --- on the event loop --------------------------------------------------------------------

    def _add(self, piece: bytes) -> None:
        self._waiting.append(piece)
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._waiting:
            piece = self._waiting.popleft()
            await self._partition.write(0, piece)
            self._taken += len(piece)
            self._on_room()
        self._writing = None

    async def finish(self) -> None:
        """All was put: returns when the client has read it."""
        while self._writing is not None:
            await asyncio.shield(self._writing)
        self._partition.finish()
        await self._partition.wait_until_read()

    def close(self) -> None:
        """The task has ended; what was not read is dropped."""
        if self._writing is not None:
            self._writing.cancel()
        self._waiting.clear()


def read_results(piece: bytes) -> list[Any]:
    """The reverse: what was put, or a part of it."""
    return cloudpickle.loads(piece)  # type: ignore[no-any-return]


def _pieces(values: list[Any]) -> Iterator[bytes]:
    if not values:
        return
    piece = _pickled(values)
    if len(piece) <= MAX_PIECE:
        yield piece
        return
    if len(values) == 1:
        raise BatchTooLargeError(
            f"a result of {len(piece)} bytes cannot be collected: at most {MAX_PIECE}, please; "
            "write large results to a sink"
        )
    middle = len(values) // 2
    yield from _pieces(values[:middle])
    yield from _pieces(values[middle:])


def _pickled(values: list[Any]) -> bytes:
    try:
        return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # classes of the user's main program
    try:
        return cloudpickle.dumps(values)  # type: ignore[no-any-return]
    except Exception as error:
        raise unpicklable(values, error) from error
