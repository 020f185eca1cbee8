"""The results that the client of a stream job reads from the task that collects them."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flinkray.actors.task_process.client_output import ClientOutput
from flinkray.actors.task_process.partitions import HeldPartition
from flinkray.core import cloud_pickle
from flinkray.streaming.errors import unpicklable
from flinkray.streaming.network import BatchTooLargeError
from flinkray.streaming.operators.task_services import ResultsReceiver

MAX_PIECE = 4 * 2**20
"""Largest size of one result in bytes, because a result must fit into a message."""

_MANY = 1000
"""Number of held pieces from which on each write drops the pieces that the client has read."""


class CollectedResults(ClientOutput, ResultsReceiver):
    """Keeps the results of a job's collecting task until the client has read them.
    The client is the only reader of the partition.
    """

    def __init__(
        self,
        partition: HeldPartition,
        on_room: Callable[[], None],
        announce: Callable[[], None],
        *,
        is_foreign: bool,
    ) -> None:
        """Create the object that holds the task's results, without results.

        *on_room* is called when the task may write again, and when the client has read everything.
        *announce* is called before the first results: it tells the coordinator where they are.
        *is_foreign*: the task is restored from the state of another job, so that its results there
        are not sent.
        """
        super().__init__(on_room)
        self._partition = partition
        self._announce = announce
        self._is_foreign = is_foreign
        self._reading: asyncio.Task[None] | None = None
        """Task that waits until the client has read everything."""
        self._is_read = False
        self._is_closed = False
        self._unread: deque[tuple[int, bytes]] = deque()
        """(number, piece) of pieces that the client had not read at the last check.
        Used by the task's thread.
        """
        self._number = 0
        """Number of the next piece."""
        self._captured: dict[int, int] = {}
        """Checkpoint -> number of the first piece after the checkpoint."""
        self.restored = 0
        """Number of pieces that earlier attempts have written before the restored checkpoint."""
        self.first = 0
        """Number of the first restored piece that the client had not read."""

    # --- for the task's thread ----------------------------------------------------------------

    def begin(self) -> None:
        """Tell the job's coordinator where the client can read the results."""
        self._loop.call_soon_threadsafe(self._announce)

    def put(self, values: Sequence[Any]) -> None:
        """Queue results for the client.

        Raises:
            UnpicklableRecordsError, BatchTooLargeError: a result cannot be sent.
        """
        for piece in _pieces(list(values)):
            self._put_piece(piece)

    def _put_piece(self, piece: bytes) -> None:
        self._unread.append((self._number, piece))
        self._number += 1
        if len(self._unread) >= _MANY:
            self._forget_read()
        self._write(piece)

    def _forget_read(self) -> None:
        first = self._partition.first_unread(0)
        while self._unread and self._unread[0][0] < first:
            self._unread.popleft()

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        """Return (number, piece) of each piece of results that the client has not read, as state of
        the task in a checkpoint. The last entry has the number of the next piece, and no content.
        """
        self._forget_read()
        self._captured[checkpoint_id] = self._number
        return [*self._unread, (self._number, b"")]

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Continue with the unread pieces of a checkpoint, as :meth:`capture` has returned them.
        Does nothing if the checkpoint was taken by another job, whose client has received them."""
        if self._is_foreign:
            return
        *unread, (self.restored, _) = pieces
        self.first = self._number = unread[0][0] if unread else self.restored
        self._loop.call_soon_threadsafe(self._begin_at)
        for _, piece in unread:
            self._put_piece(piece)

    def completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete. The task will not be restored to an earlier state, so
        results before this checkpoint are never written again."""
        number = self._captured.get(checkpoint_id)
        self._captured = {i: n for i, n in self._captured.items() if i > checkpoint_id}
        if number is not None:
            self._loop.call_soon_threadsafe(self._partition.commit, 0, number)

    def end_of_data(self) -> None:
        """Mark the partition as complete: all results were written."""
        self._loop.call_soon_threadsafe(self._end)

    def is_processed(self) -> bool:
        """Return whether the client has read everything."""
        return self._is_read

    # --- on the event loop --------------------------------------------------------------------

    def _begin_at(self) -> None:
        self._partition.begin_at(0, self.first)
        self._partition.commit(0, self.restored)

    async def _send(self, piece: bytes) -> None:
        await self._partition.write(0, piece)

    def _end(self) -> None:
        if not self._is_closed:
            self._reading = asyncio.ensure_future(self._wait_until_read())

    async def _wait_until_read(self) -> None:
        await self._all_sent()
        self._partition.finish()
        await self._partition.wait_until_read()
        self._is_read = True
        self._on_room()

    def close(self) -> None:
        """Drop the results that the client has not read, because the task has ended."""
        self._is_closed = True
        for waiting in (self._sending, self._reading):
            if waiting is not None:
                waiting.cancel()
        self._waiting.clear()


def read_results(piece: bytes) -> list[Any]:
    """Return the results that *piece* holds in pickled form."""
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
