"""Buffers pieces of a job's results. Each is shown once, even if several attempts write it."""

from __future__ import annotations

from collections import deque

from flinkray.actors.gateways.stream_coordinator import CollectorPlace
from flinkray.actors.gateways.task_process import PartitionData


class ResultPieces:
    """Buffer of result pieces, which are numbered from 0 over all attempts.

    After a failure the next attempt writes the pieces after its checkpoint again, with the same
    numbers. A piece is kept here until no attempt can write it again.
    """

    def __init__(self) -> None:
        self.position = 0
        """Number of the next piece to be read, counted over all attempts."""
        self.shown = 0
        """Number of the first piece that was not shown yet."""
        self._kept: deque[tuple[int, bytes]] = deque()
        """(number, piece) of the pieces that were read and are not shown yet."""

    def read(self, data: PartitionData, *, are_final: bool) -> list[bytes]:
        """Add the pieces that were read; return the kept pieces that can be shown now.

        A piece can be shown when no attempt can write it again, or if *are_final*.
        """
        begin, self.position = self.position, self.position + len(data.buffers)
        self._kept.extend(enumerate(data.buffers, begin))
        return self.rest() if are_final else self._up_to(data.committed)

    def rest(self) -> list[bytes]:
        """Return the pieces that were read and not shown. Called when the job has finished."""
        return self._up_to(self.position)

    def _up_to(self, number: int) -> list[bytes]:
        pieces = []
        while self._kept and self._kept[0][0] < number:
            self.shown, piece = self._kept[0][0] + 1, self._kept.popleft()[1]
            pieces.append(piece)
        return pieces

    def go_on_at(self, place: CollectorPlace) -> bool:
        """Continue with another attempt, whose results are at *place*, and return True.

        Return False if pieces that were shown would come again. Kept pieces that the new attempt
        also has are dropped, because they may be of an earlier attempt.
        """
        if place.restored is None:
            return not self.position
        if place.restored < self.shown:
            return False
        self.position = min(self.position, max(place.first, self.shown))
        while self._kept and self._kept[-1][0] >= self.position:
            self._kept.pop()
        return True
