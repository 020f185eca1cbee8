"""How much a producer may send: bookkeeping in bytes, without sockets or threads.

Each channel has exclusive credit. While its producer has a backlog, it may borrow floating credit,
which the channels of a gate share. Both together are the channel's window. Every buffer pays its
size when it is sent, and the consumer grants that size again when the task has taken the buffer:

- *granted - paid* is at most the window.
- A producer sends its next buffer while it has more credit than a barrier costs. If the buffer is
  larger, the producer owes the rest. So batches of any size pass, and a gate holds at most its
  window and one buffer per channel.
- A barrier that overtakes (unaligned checkpoints) does not wait for the buffers that it overtakes.
  The credit that other buffers leave is for the first such barrier. A further one is sent without
  credit as soon as the task has the previous ones.

No deadlock: if a producer has no credit, its consumer has buffers to take. The consumer grants
credit again before it has taken half a window.
"""

from __future__ import annotations


class FloatingCredit:
    """Floating credit in bytes, which the channels of one gate share and borrow."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size

    def borrow(self, wanted: int) -> int:
        """Take up to *wanted* bytes of the free credit. Returns how many bytes were taken."""
        lent = min(wanted, self.free)
        self.free -= lent
        return lent

    def give_back(self, count: int) -> None:
        self.free += count


class ReceiverCredit:
    """Keeps account of the bytes that a consumer has granted to the producer of one channel, has
    received, and has taken."""

    __slots__ = (
        "_borrowed", "_exclusive", "backlog", "floating", "granted", "received", "taken",
    )  # fmt: skip

    def __init__(self, exclusive: int, floating: FloatingCredit) -> None:
        """Open the account of a channel. *exclusive*: bytes that the request for the subpartition
        already grants. *floating*: the credit that the channels of the gate share."""
        self._exclusive = exclusive
        self.floating = floating
        self._borrowed = 0
        self.granted = exclusive
        """Bytes granted since the beginning."""
        self.received = 0
        """Bytes received since the beginning."""
        self.taken = 0
        """Bytes that the task has taken since the beginning."""
        self.backlog = 0
        """Bytes that waited at the producer when it sent the last buffer."""

    @property
    def window(self) -> int:
        """How many bytes may at most be granted to the producer and not yet taken by the task."""
        return self._exclusive + self._borrowed

    @property
    def in_use(self) -> int:
        """Bytes that were received and not yet taken by the task."""
        return self.received - self.taken

    def on_received(self, size: int, backlog: int) -> int:
        """Account for a received buffer of *size* bytes. Its producer has *backlog* more bytes to
        send. Returns the bytes to grant for these now, borrowed from the floating credit."""
        self.received += size
        self.backlog = backlog
        missing = backlog - (self.granted - self.received)
        if missing <= 0:
            return 0
        lent = self.floating.borrow(missing)
        self._borrowed += lent
        self.granted += lent
        return lent

    def on_taken(self, size: int) -> int:
        """Account for a buffer that the task has taken. Returns the bytes to grant to the producer
        now. 0: there are too few to send a message for; they are granted later."""
        self.taken += size
        window = self._exclusive + self._borrowed
        owed = self.taken + window - self.granted
        if self._borrowed and self.backlog == 0:
            back = min(self._borrowed, owed)
            self._borrowed -= back
            self.floating.give_back(back)
            owed -= back
            window -= back
        if owed < window // 2:
            return 0
        self.granted += owed
        return owed

    def close(self) -> None:
        """Give the borrowed credit back to the gate, because the channel has ended."""
        self.floating.give_back(self._borrowed)
        self._borrowed = 0
