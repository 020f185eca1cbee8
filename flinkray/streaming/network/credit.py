"""How much a producer may send: bookkeeping in bytes, without sockets or threads.

Each channel has credit of its own (exclusive) and may borrow from what its gate has for all its
channels together (floating), as long as its producer has a backlog.  A producer may send its next
buffer while it has any credit left, however large the buffer is, and then owes the rest: so batches
of any size pass, and a gate holds at most its credit and one buffer per channel.
"""

from __future__ import annotations


class FloatingCredit:
    """What the channels of one gate share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size

    def borrow(self, wanted: int) -> int:
        """As much of that as there is."""
        lent = min(wanted, self.free)
        self.free -= lent
        return lent

    def give_back(self, count: int) -> None:
        self.free += count


class ReceiverCredit:
    """The consumer's book of one channel."""

    __slots__ = (
        "_borrowed", "_exclusive", "_floating", "_granted", "backlog", "received", "taken",
    )  # fmt: skip

    def __init__(self, exclusive: int, floating: FloatingCredit) -> None:
        """The exclusive credit is granted with the request."""
        self._exclusive = exclusive
        self._floating = floating
        self._borrowed = 0
        self._granted = exclusive
        self.received = 0
        """Bytes, since the beginning."""
        self.taken = 0
        """Of them, those that the task has taken."""
        self.backlog = 0
        """Bytes that the producer had waiting when it sent the last buffer."""

    @property
    def in_use(self) -> int:
        """Bytes that were received and not taken."""
        return self.received - self.taken

    def on_received(self, size: int, backlog: int) -> int:
        """Bytes to grant at once: floating credit, for what waits at the producer."""
        self.received += size
        self.backlog = backlog
        missing = backlog - (self._granted - self.received)
        if missing <= 0:
            return 0
        lent = self._floating.borrow(missing)
        self._borrowed += lent
        self._granted += lent
        return lent

    def on_taken(self, size: int) -> int:
        """Bytes to grant for what was taken; 0: not worth a message yet."""
        self.taken += size
        owed = self.taken + self._exclusive + self._borrowed - self._granted
        if self._borrowed and self.backlog == 0:
            back = min(self._borrowed, owed)
            self._borrowed -= back
            self._floating.give_back(back)
            owed -= back
        if owed < (self._exclusive + self._borrowed) // 2:
            return 0
        self._granted += owed
        return owed

    def close(self) -> None:
        """The channel is over: what it has borrowed is free for others."""
        self._floating.give_back(self._borrowed)
        self._borrowed = 0
