"""A source's enumerator, kept apart from its readers, which talk to it by messages that may be lost
or repeated and which come and go as attempts of their tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from flinkray.core.clock import Clock
from flinkray.streaming.sources.source import EnumeratorContext, Source, SplitEnumerator

NO_MORE_SPLITS = b""
"""The event after which no split follows; any other is a pickled split."""


@dataclass
class _Reader:
    attempt: int | None = None
    """None: it has not been heard of, but was given something already."""
    requests: int = 0
    """Of which the enumerator knows."""
    events: list[bytes] = field(default_factory=list)
    """All that this attempt was ever told."""
    assigned: list[Any] = field(default_factory=list)
    """The splits among that; they go back when the attempt fails."""


class HostedSource(EnumeratorContext[Any]):
    """Calls of one at a time: the enumerator is user code and may take its time.

    A reader is known by its subtask and attempt.  With a later attempt, what the earlier one was
    given goes back to the enumerator.  Without checkpoints that is all of it: what the earlier one
    had read is read again.
    """

    def __init__(self, source: Source[Any], parallelism: int, clock: Clock) -> None:
        self._parallelism = parallelism
        self._clock = clock
        self._readers: dict[int, _Reader] = {}
        self._enumerator: SplitEnumerator[Any] = source.create_enumerator(self, clock)
        self._enumerator.start()

    # --- for the enumerator -------------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def assign_split(self, split: Any, subtask: int) -> None:
        reader = self._reader(subtask)
        reader.assigned.append(split)
        reader.events.append(cloudpickle.dumps(split))

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

    def events(self, subtask: int, attempt: int, position: int) -> tuple[bytes, ...] | None:
        """What the reader was told from that position on; None: it has been replaced."""
        reader = self._reader(subtask)
        if reader.attempt != attempt:
            return None
        return tuple(reader.events[position:])

    # --- time ---------------------------------------------------------------------------------

    def seconds_until_discovery(self) -> float | None:
        """Until :meth:`discover` is due; None: never."""
        at = self._enumerator.next_discovery_time()
        return None if at is None else max(at - self._clock.time(), 0.0)

    def discover(self) -> None:
        """Look for new splits."""
        self._enumerator.discover()

    def close(self) -> None:
        self._enumerator.close()
