"""Which pieces of a job's results are shown, though attempts that put them come and go."""

from __future__ import annotations

from collections import deque

from flinkray.actors.gateways.stream_coordinator import CollectorPlace
from flinkray.actors.gateways.task_process import PartitionData


class ResultPieces:
    """Pieces have numbers, which count from 0 over all attempts.  What an attempt puts behind the
    checkpoint that the next one goes on from is put again, under the same numbers and perhaps in
    other portions.  So a piece is kept here until it cannot come again."""

    def __init__(self) -> None:
        self.position = 0
        """Number of the next piece to be read."""
        self.shown = 0
        """Pieces that were."""
        self._kept: deque[tuple[int, bytes]] = deque()
        """Read and not shown, with their numbers."""

    def read(self, data: PartitionData, *, are_final: bool) -> list[bytes]:
        """The pieces to be shown now that this was read.  *are_final*: no attempt puts anything
        again."""
        begin, self.position = self.position, self.position + len(data.buffers)
        self._kept.extend(enumerate(data.buffers, begin))
        return self.rest() if are_final else self._up_to(data.committed)

    def rest(self) -> list[bytes]:
        """Those that are kept: the job has finished with them."""
        return self._up_to(self.position)

    def _up_to(self, number: int) -> list[bytes]:
        pieces = []
        while self._kept and self._kept[0][0] < number:
            self.shown, piece = self._kept[0][0] + 1, self._kept.popleft()[1]
            pieces.append(piece)
        return pieces

    def go_on_at(self, place: CollectorPlace) -> bool:
        """Read on from another attempt; False: pieces that were shown would come again.

        What it has itself is read from it, also where a piece of that number is here already: that
        may be of an attempt which was between the two, or before, and does not count.
        """
        if place.restored is None:
            return not self.position
        if place.restored < self.shown:
            return False
        self.position = min(self.position, max(place.first, self.shown))
        while self._kept and self._kept[-1][0] >= self.position:
            self._kept.pop()
        return True
