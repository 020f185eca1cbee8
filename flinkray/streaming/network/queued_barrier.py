"""A barrier in a channel that may overtake what came before it there."""

from __future__ import annotations

from flinkray.streaming.records.elements import Barrier


class QueuedBarrier:
    """It has a place in the channel's queue, which divides what it overtakes from what was sent
    after it, and the gate may give it to the task before the task comes to that place.  It is given
    once, by whichever way is the first.  Both are the task's thread.
    """

    __slots__ = ("_is_given", "barrier", "is_reached")

    def __init__(self, barrier: Barrier) -> None:
        self.barrier = barrier
        self.is_reached = False
        """All that was sent before it was taken."""
        self._is_given = False

    def give(self) -> Barrier | None:
        """None: the task has it."""
        if self._is_given:
            return None
        self._is_given = True
        return self.barrier

    def reach(self) -> Barrier | None:
        """The task has come to its place.  None: it has it."""
        self.is_reached = True
        return self.give()
