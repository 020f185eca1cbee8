"""What keeps a source from being read while others are behind with what has become of it."""

from __future__ import annotations


class SourceHold:
    """Of one task that reads a source, and of that task's thread.

    A held source is not read.  Barriers of checkpoints go out all the same, and what was read flows
    on to the sinks.
    """

    def __init__(self) -> None:
        self.is_held = True
        """Until it is known that nobody is behind."""

    def tell(self, is_held: bool) -> None:
        """What is known now."""
        self.is_held = is_held
