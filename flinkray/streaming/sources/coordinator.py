"""The operator coordinator of a source: its enumerator, kept apart from the readers.

Readers and coordinator talk by messages, which may be lost or repeated; readers come and go as
attempts of their tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from flinkray.core.clock import Clock
from flinkray.streaming.sources.source import EnumeratorContext, Source, SplitEnumerator


class _NoMoreSplits:
    """No split follows."""


NO_MORE_SPLITS: Final = _NoMoreSplits()
"""The event after which no split follows; any other is a split."""

END_OF_SPLITS: Final = b""
"""The same in messages between processes, where splits are pickled."""


@dataclass
class _Reader:
    attempt: int | None = None
    """None: it has not been heard of, but was given something already."""
    requests: int = 0
    """Of which the enumerator knows."""
    events: list[Any] = field(default_factory=list)
    """All that this attempt was ever told."""
    assigned: list[Any] = field(default_factory=list)
    """The splits among that; they go back when the attempt fails."""


class SourceCoordinator(EnumeratorContext[Any]):
    """Calls come one at a time: the enumerator is user code and may take its time.

    A reader is known by its subtask and attempt.  With a later attempt, what the earlier one was
    given goes back to the enumerator: what that had read is read again.

    Args:
        encode: what a split becomes on its way to a reader.
        checkpoint: what :meth:`snapshot` gave, to go on from; readers bring their own splits.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        clock: Clock,
        encode: Callable[[Any], Any] = lambda split: split,
        checkpoint: tuple[Any] | None = None,
    ) -> None:
        self._parallelism = parallelism
        self._clock = clock
        self._encode = encode
        self._readers: dict[int, _Reader] = {}
        self._enumerator: SplitEnumerator[Any] = (
            source.create_enumerator(self, clock)
            if checkpoint is None
            else source.restore_enumerator(self, clock, *checkpoint)
        )
        self._enumerator.start()

    # --- for the enumerator -------------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def assign_split(self, split: Any, subtask: int) -> None:
        reader = self._reader(subtask)
        reader.assigned.append(split)
        reader.events.append(self._encode(split))

    def signal_no_more_splits(self, subtask: int) -> None:
        self._reader(subtask).events.append(NO_MORE_SPLITS)

    def _reader(self, subtask: int) -> _Reader:
        return self._readers.setdefault(subtask, _Reader())

    # --- for readers --------------------------------------------------------------------------

    def heard(self, subtask: int, attempt: int, requests: int) -> None:
        """The reader is there, and has asked for so many splits since it was opened."""
        reader = self._reader(subtask)
        if reader.attempt is None:
            reader.attempt = attempt
            self._enumerator.add_reader(subtask)
        elif attempt < reader.attempt:
            return  # last words of one that has been replaced
        elif attempt > reader.attempt:
            splits = reader.assigned
            reader = self._readers[subtask] = _Reader(attempt)
            if splits:
                self._enumerator.add_splits_back(splits, subtask)
            self._enumerator.add_reader(subtask)
        while reader.requests < requests:
            reader.requests += 1
            self._enumerator.handle_split_request(subtask)

    def events(self, subtask: int, attempt: int, position: int) -> tuple[Any, ...] | None:
        """What the reader was told from that position on; None: it has been replaced."""
        reader = self._reader(subtask)
        if reader.attempt != attempt:
            return None
        return tuple(reader.events[position:])

    # --- time ---------------------------------------------------------------------------------

    def next_discovery_time(self) -> float | None:
        """When :meth:`discover` is due (the clock's seconds); None: never."""
        return self._enumerator.next_discovery_time()

    def discover(self) -> None:
        """Look for new splits."""
        self._enumerator.discover()

    # --- checkpoints --------------------------------------------------------------------------

    def snapshot(self, checkpoint_id: int) -> tuple[Any]:
        """A cut: the splits that were assigned before it belong to readers, which have to be told
        of them before they take their own snapshots; those that follow belong to the enumerator."""
        return (self._enumerator.snapshot_state(checkpoint_id),)

    def close(self) -> None:
        self._enumerator.close()
