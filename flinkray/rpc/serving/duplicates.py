"""Duplicates: a request that arrives again is not handled again.

A sender numbers its requests to an endpoint, upwards. A transport neither loses nor repeats a
request; a faulty or lying peer may repeat it.
"""

from __future__ import annotations


class AtMostOnce:
    """Recognises repeated requests by the numbers of one sender's requests to one endpoint."""

    __slots__ = ("last_sequence",)

    def __init__(self) -> None:
        self.last_sequence = 0

    def takes(self, sequence: int) -> bool:
        """Return whether the request's number is higher than all before; if so, remember the
        number. A request with a lower or equal number was handled before."""
        if sequence <= self.last_sequence:
            return False
        self.last_sequence = sequence
        return True
