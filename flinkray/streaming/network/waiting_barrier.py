"""A barrier that stays in line in the subpartitions of a result as long as it is in time."""

from __future__ import annotations

from collections.abc import Sequence

from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import InFlight, Settled


class WaitingBarrier:
    """Until it was sent from each subpartition, or has overtaken what waits there.  With the lock
    of the partition held, but for :meth:`tell`.

    Args:
        subpartitions: in how many it waits.
        settled: told what it has overtaken, once that is known of all.
    """

    def __init__(self, barrier: Barrier, subpartitions: int, settled: Settled) -> None:
        self.barrier = barrier
        self._left = subpartitions
        self._overtaken: dict[int, Sequence[InFlight]] = {}
        self._settled = settled

    @property
    def is_settled(self) -> bool:
        """It waits in no subpartition any more."""
        return not self._left

    def leave(self, subpartition: int, overtaken: Sequence[InFlight]) -> None:
        """It does not wait there any more."""
        self._left -= 1
        if overtaken:
            self._overtaken[subpartition] = overtaken

    def tell(self) -> None:
        """What it has overtaken."""
        self._settled(self._overtaken)
