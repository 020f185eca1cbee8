"""Duplicates: a request that comes again is not handled again.

A sender numbers its requests to an endpoint, upwards.  A transport loses or repeats none; a peer
that is mistaken, or that lies, may.
"""

from __future__ import annotations


class AtMostOnce:
    """The requests of one sender to one endpoint, by their numbers."""

    __slots__ = ("last_sequence",)

    def __init__(self) -> None:
        self.last_sequence = 0

    def takes(self, sequence: int) -> bool:
        """Whether the request is later than all before; if so, it counts as one of these."""
        if sequence <= self.last_sequence:
            return False
        self.last_sequence = sequence
        return True
