"""What the client of a stream job reads from the task that collects the results."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flinkray.actors.task_process.partitions import HeldPartition
from flinkray.core import cloud_pickle
from flinkray.streaming.errors import unpicklable
from flinkray.streaming.network import BatchTooLargeError
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import Settled

MAX_PIECE = 4 * 2**20
"""Bytes: what one result may be at the most, as it must fit into a message."""
MOST_WAITING = 2**20
"""Bytes that wait for the client; then the task waits, and with it all before it."""


_MANY = 1000
"""Pieces of which those are forgotten that the client has read."""


class CollectedResults:
    """Made on the event loop, written by the task's thread; the client is the one reader of the
    partition."""

    def __init__(
        self,
        partition: HeldPartition,
        on_room: Callable[[], None],
        announce: Callable[[], None],
        *,
        is_foreign: bool,
    ) -> None:
        """*on_room* is called when the task may write again, *announce* when there are going to be
        results.  *is_foreign*: what is restored was captured in another job."""
        self._partition = partition
        self._on_room = on_room
        self._announce = announce
        self._is_foreign = is_foreign
        self._loop = asyncio.get_running_loop()
        self._put = 0
        """Bytes, counted by the task's thread."""
        self._taken = 0
        """Bytes, counted by the loop."""
        self._waiting: deque[bytes] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._unread: deque[tuple[int, bytes]] = deque()
        """Numbered from that of the first piece that the client had not read when it was looked
        at last; of the task's thread."""
        self._number = 0
        """Of the next piece."""
        self._captured: dict[int, int] = {}
        """Checkpoint -> number of the first piece that is not in it."""
        self.restored = 0
        """Pieces that earlier attempts have put."""
        self.first = 0
        """Number of the first of them that the client had not read."""

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
            self._put_piece(piece)

    def _put_piece(self, piece: bytes) -> None:
        self._unread.append((self._number, piece))
        self._number += 1
        self._put += len(piece)
        if len(self._unread) >= _MANY:
            self._forget_read()
        self._loop.call_soon_threadsafe(self._add, piece)

    def _forget_read(self) -> None:
        first = self._partition.first_unread(0)
        while self._unread and self._unread[0][0] < first:
            self._unread.popleft()

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        """See :class:`ResultsReceiver`; with the number of the next piece at the end."""
        self._forget_read()
        self._captured[checkpoint_id] = self._number
        return [*self._unread, (self._number, b"")]

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """See :class:`ResultsReceiver`.  The client of another job has got what that had put, and
        this job's knows nothing of its numbers: it begins at 0, however often it is restored."""
        if self._is_foreign:
            return
        *unread, (self.restored, _) = pieces
        self.first = self._number = unread[0][0] if unread else self.restored
        self._loop.call_soon_threadsafe(self._begin_at)
        for _, piece in unread:
            self._put_piece(piece)

    def completed(self, checkpoint_id: int) -> None:
        """See :class:`ResultsReceiver`."""
        number = self._captured.get(checkpoint_id)
        self._captured = {i: n for i, n in self._captured.items() if i > checkpoint_id}
        if number is not None:
            self._loop.call_soon_threadsafe(self._partition.commit, 0, number)

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

    def _begin_at(self) -> None:
        self._partition.begin_at(0, self.first)
        self._partition.commit(0, self.restored)

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
    return pickle.loads(piece)  # type: ignore[no-any-return]


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
        return cloud_pickle.dumps(values)
    except Exception as error:
        raise unpicklable(values, error) from error
