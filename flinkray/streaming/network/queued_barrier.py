"""A barrier in a channel that may overtake the elements before it."""

from __future__ import annotations

from collections.abc import Sequence

from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import InFlight, Settled


class QueuedBarrier:
    """A barrier in the queue of a channel.
    Its position divides the elements that it overtakes from those sent later. The task gets the
    barrier once: early from the gate, or when the task reaches its position. Only the task's thread
    calls the methods."""

    __slots__ = ("_is_given", "barrier", "is_reached", "was_urgent")

    def __init__(self, barrier: Barrier, was_urgent: bool = False) -> None:
        self.barrier = barrier
        self.was_urgent = was_urgent
        """Whether the barrier has already overtaken buffers at its sender."""
        self.is_reached = False
        """Whether all elements that were sent before the barrier were taken."""
        self._is_given = False

    def give(self) -> Barrier | None:
        """Return the barrier, to be given to the task. None if it was given before."""
        if self._is_given:
            return None
        self._is_given = True
        return self.barrier

    def reach(self) -> Barrier | None:
        """Note that the task has taken all elements before the barrier in the queue.
        Return the barrier, to be given to the task. None if it was given before."""
        self.is_reached = True
        return self.give()


class WaitingBarrier:
    """Follows a barrier that was written to all subpartitions until each of them has sent it.
    A subpartition sends the barrier in line, or before buffers that wait.
    The partition's lock is held in all methods except :meth:`tell`.

    Args:
        subpartitions: number of subpartitions in which the barrier waits.
        settled: gets the overtaken elements, once they are known for all subpartitions.
    """

    def __init__(self, barrier: Barrier, subpartitions: int, settled: Settled) -> None:
        self.barrier = barrier
        self._left = subpartitions
        self._overtaken: dict[int, Sequence[InFlight]] = {}
        self._settled = settled

    @property
    def is_settled(self) -> bool:
        """Whether the barrier waits in no subpartition any more."""
        return not self._left

    def leave(self, subpartition: int, overtaken: Sequence[InFlight]) -> None:
        """Note that a subpartition has sent the barrier, before the elements *overtaken*."""
        self._left -= 1
        if overtaken:
            self._overtaken[subpartition] = overtaken

    def tell(self) -> None:
        """Call *settled* with the overtaken elements of each subpartition that has some."""
        self._settled(self._overtaken)
