"""A hold that keeps a source from being read while other tasks are behind with its output."""

from __future__ import annotations


class SourceHold:
    """Switch that stops the reading of one task's source; used by that task's thread.

    A held source is not read. Barriers of checkpoints are still sent, and records that were read
    flow on to the sinks.
    """

    def __init__(self) -> None:
        self.is_held = True
        """Whether the source must not be read. True until :meth:`tell` says otherwise."""

    def tell(self, is_held: bool) -> None:
        """Set whether the source is held."""
        self.is_held = is_held


class SplitsToRead:
    """Tells watermark generators how far one task has come with the splits of its source.
    Only the task's thread uses it.
    """

    def __init__(self) -> None:
        self.are_awaited = False
        """Whether some splits have no reader yet, or wait while their reader reads another split.
        No watermarks are emitted while this is True."""
        self.begun = 0
        """Number of splits begun.
        The last one is being read. Earlier splits do not affect its watermark."""
