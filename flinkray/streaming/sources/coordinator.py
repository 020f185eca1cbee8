"""The operator coordinator of a source: its enumerator, kept apart from the readers.

Readers and coordinator talk by messages, which may be lost or repeated; readers come and go as
attempts of their tasks.

A checkpoint *cuts* what readers are told: :meth:`SourceCoordinator.snapshot` is before all of their
snapshots.  What was assigned before the cut belongs to readers, which are told of it before they
take theirs.  What is assigned after it belongs to the enumerator, and is held back until the reader
has taken its snapshot.  So each split is in one of the two, whichever checkpoint is restored.

A coordinator may die while its readers run on.  So all that it knows can be taken from it
(:meth:`SourceCoordinator.progress`), and kept elsewhere; another one goes on from there.  Readers
are told only what is kept: whatever they know, the next coordinator knows, too.  The next one does
not know whether what it goes on from is kept: whoever gave it may have died since, and may have
been the only one to know.  So it has that kept once more before it tells anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.enumerator_state import (
    EnumeratorState,
    read_enumerator_state,
    write_enumerator_state,
)
from flinkray.streaming.sources.source import EnumeratorContext, Source, SplitEnumerator
from flinkray.streaming.sources.source_progress import (
    AssignedSplit,
    ReaderState,
    SourceProgress,
    SubtaskReset,
)


class _NoMoreSplits:
    """No split follows."""


NO_MORE_SPLITS: Final = _NoMoreSplits()
"""The event after which no split follows; any other is a split."""

END_OF_SPLITS: Final = b""
"""The same in messages between processes, where splits are pickled."""


@dataclass
class _Reader:
    """What one attempt of a subtask is told, event by event, from 0 on."""

    restored_from: int
    """The checkpoint that it goes on from, and since when a later one is complete, that one."""
    attempt: int | None = None
    """None: none has been heard of, but something may have been assigned to the first already."""
    is_added: bool = False
    """Whether the enumerator knows of this attempt."""
    requests: int = 0
    """Of which the enumerator knows."""
    checkpoint_id: int = 0
    """The latest that it has taken its snapshot for."""
    events: list[Any] = field(default_factory=list)
    """Those that it may have to be told again."""
    confirmed: int = 0
    """How many events it has: those before the others."""
    kept: int = 0
    """How many events are known elsewhere."""
    given: int = 0
    """How many of all events were splits."""
    asked_at: int = -1
    """How many events there were when it asked last; -1: it has not."""
    is_done: bool = False
    """Whether the last that it was told is that no split follows."""
    assigned: list[tuple[int, Any]] = field(default_factory=list)
    """Splits as they were told, with the numbers of their events, that go back if it goes back to
    *restored_from*."""
    cuts: dict[int, int] = field(default_factory=dict)
    """By checkpoint: how many events belong before it."""

    @property
    def end(self) -> int:
        return self.confirmed + len(self.events)

    def said(self, position: int, checkpoint_id: int) -> None:
        self.checkpoint_id = max(self.checkpoint_id, checkpoint_id)
        if position > self.confirmed:
            del self.events[: position - self.confirmed]
            self.confirmed = position

    def between(self, position: int, end: int) -> tuple[Any, ...]:
        return tuple(self.events[position - self.confirmed : end - self.confirmed])

    @property
    def limit(self) -> int:
        """How many events it may be told of before it has taken a snapshot that is under way."""
        pending = (cut for id_, cut in self.cuts.items() if id_ > self.checkpoint_id)
        return min(pending, default=self.end)

    def assign(self, event: Any) -> None:
        self.assigned.append((self.end, event))
        self.events.append(event)
        self.given += 1
        self.is_done = False

    def state(self, subtask: int) -> ReaderState:
        """See :func:`_restored`."""
        return ReaderState(
            subtask,
            self.restored_from,
            self.attempt,
            self.is_added,
            self.requests,
            self.checkpoint_id,
            self.confirmed,
            tuple(END_OF_SPLITS if event is NO_MORE_SPLITS else event for event in self.events),
            self.given,
            self.asked_at,
            self.is_done,
            tuple(AssignedSplit(*one) for one in self.assigned),
            tuple(self.cuts.items()),
        )

    def completed(self, checkpoint_id: int) -> None:
        """Nobody goes back to an earlier one any more."""
        cut = self.cuts.get(checkpoint_id)
        if cut is not None:
            self.restored_from = checkpoint_id
            self.assigned = [one for one in self.assigned if one[0] >= cut]
        self.cuts = {id_: cut for id_, cut in self.cuts.items() if id_ > checkpoint_id}

    def assigned_after(self, checkpoint_id: int) -> list[Any]:
        cut = 0 if checkpoint_id == self.restored_from else self.cuts.get(checkpoint_id)
        if cut is None:
            raise StreamError(
                f"checkpoint {checkpoint_id} is none that a reader can be reset to: there are "
                f"{sorted({self.restored_from, *self.cuts})}"
            )
        return [event for number, event in self.assigned if number >= cut]


def _restored(state: ReaderState) -> _Reader:
    events = [NO_MORE_SPLITS if event == END_OF_SPLITS else event for event in state.events]
    return _Reader(
        restored_from=state.restored_from,
        attempt=state.attempt,
        is_added=state.is_added,
        requests=state.requests,
        checkpoint_id=state.checkpoint_id,
        events=events,
        confirmed=state.confirmed,
        kept=state.confirmed,
        given=state.given,
        asked_at=state.asked_at,
        is_done=state.is_done,
        assigned=[(one.number, one.split) for one in state.assigned],
        cuts=dict(state.cuts),
    )


class SourceCoordinator(EnumeratorContext[Any]):
    """Begins with :meth:`start`; what comes before changes no more than what is known of
    checkpoints.

    The enumerator is user code, which may take its time: calls come one at a time.  Only
    :meth:`events` and :meth:`events_before`, which call none of it, may come at any time and from
    any thread.

    A reader is known by its subtask and attempt.  With a later attempt, what the earlier one was
    given after the checkpoint that the later one goes on from is given back to the enumerator.

    Args:
        encode: what a split becomes on its way to a reader.
        state: of the enumerator, to go on from; readers bring their own splits.
        checkpoint_id: that of the state; 0: it begins anew.
        decode: a split from what it was encoded to.
        progress: of another coordinator, to go on from in place of a state.
        is_kept: whether all that this one knows is kept elsewhere; :meth:`kept` says how far.
    """

    def __init__(
        self,
        clock: Clock,
        encode: Callable[[Any], Any] = lambda split: split,
        state: EnumeratorState | None = None,
        checkpoint_id: int = 0,
        *,
        decode: Callable[[Any], Any] = lambda split: split,
        progress: SourceProgress | None = None,
        is_kept: bool = False,
    ) -> None:
        self._clock = clock
        self._encode = encode
        self._decode = decode
        self._state = state
        self._restored_from = checkpoint_id
        self._parallelism = 0
        self._enumerator: SplitEnumerator[Any] | None = None
        self._readers: dict[int, _Reader] = {}
        self._cuts: list[int] = []
        """Checkpoints that are not known to be over."""
        self._is_kept = is_kept
        self._changes = 0
        self._gone_on_from = progress
        """Until there is an enumerator."""
        if progress is not None:
            self._state, self._restored_from = progress.enumerator, progress.restored_from
            self._cuts = list(progress.cuts)
            self._readers = {one.subtask: _restored(one) for one in progress.readers}
        self._resets = {one.subtask: one for one in (progress.resets if progress else ())}
        """Until there is an enumerator."""
        self._lock = Lock()
        """Guards what is known of readers; never held while user code runs."""

    def start(self, source: Source[Any], parallelism: int) -> None:
        """Make the enumerator.

        Raises:
            StateMigrationError: its state cannot be read any more.
        """
        self._parallelism = parallelism
        progress, self._gone_on_from = self._gone_on_from, None
        if progress is not None and progress.parallelism not in (0, parallelism):
            self._state = None  # with another parallelism all of the job has begun anew
            self._readers.clear()
            self._resets.clear()
        self._enumerator = (
            source.create_enumerator(self, self._clock)
            if self._state is None
            else source.restore_enumerator(self, self._clock, read_enumerator_state(self._state))
        )
        self._state = None
        if self._enumerator.keeps_cuts:
            for cut in self._cuts:  # what it is asked for later is of a later moment
                self._enumerator.snapshot_state(cut)
        self._enumerator.start()
        resets, self._resets = self._resets, {}
        for reset in resets.values():
            self.reset_subtask(reset.subtask, reset.attempt, reset.checkpoint_id)
        self._announce_again()

    def _announce_again(self) -> None:
        """An enumerator that was restored knows of no reader, nor of what one waits for.  Better
        ask for too many splits than for too few."""
        for subtask, reader in list(self._readers.items()):
            if not reader.is_added:
                continue
            waits = reader.asked_at == reader.end
            missing = 0 if reader.is_done else max(reader.requests - reader.given, int(waits))
            self._started.add_reader(subtask)
            for _ in range(missing):
                self._started.handle_split_request(subtask)

    @property
    def parallelism(self) -> int:
        """0: it has not begun."""
        return self._parallelism

    # --- for the enumerator -------------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def reading_subtasks(self) -> list[int]:
        with self._lock:
            known = self._readers
            return [
                subtask
                for subtask in range(self._parallelism)
                if subtask not in known or not known[subtask].is_done
            ]

    def assign_split(self, split: Any, subtask: int) -> None:
        event = self._encode(split)
        with self._lock:
            self._reader(subtask).assign(event)
            self._changes += 1

    def signal_no_more_splits(self, subtask: int) -> None:
        with self._lock:
            reader = self._reader(subtask)
            if not reader.is_done:
                reader.is_done = True
                reader.events.append(NO_MORE_SPLITS)
                self._changes += 1

    def _reader(self, subtask: int) -> _Reader:
        if subtask not in self._readers:
            if not 0 <= subtask < self._parallelism:
                raise StreamError(
                    f"there is no reader {subtask!r}: they are 0 to {self._parallelism - 1}"
                )
            cuts = dict.fromkeys(self._cuts, 0)
            self._readers[subtask] = _Reader(self._restored_from, cuts=cuts)
        return self._readers[subtask]

    # --- for readers --------------------------------------------------------------------------

    def heard(
        self,
        subtask: int,
        attempt: int,
        requests: int,
        position: int = 0,
        checkpoint_id: int = 0,
        restored_from: int = 0,
    ) -> None:
        """The reader is there.

        Args:
            requests: splits that it has asked for since it was opened.
            position: events that it has.
            checkpoint_id: the latest checkpoint that its task has taken its snapshot for.
            restored_from: the checkpoint that this attempt goes on from; 0: it began anew.
        """
        with self._lock:
            reader = self._reader(subtask)
            if reader.attempt is None:
                self._first_heard(reader, attempt)
            elif attempt < reader.attempt:
                return  # last words of one that has been replaced
            back = self._begin_attempt(subtask, attempt, restored_from)
            reader = self._readers[subtask]
            reader.said(position, checkpoint_id)
        self._give_back(back, subtask)
        if not reader.is_added:
            reader.is_added = True
            self._started.add_reader(subtask)
        while reader.requests < requests:
            reader.requests += 1
            reader.asked_at = reader.end
            if not reader.is_done:  # it may end, or have ended, without a split that came back
                self._started.handle_split_request(subtask)

    def reset_subtask(self, subtask: int, attempt: int, checkpoint_id: int) -> None:
        """This attempt goes on from that checkpoint (0: it begins anew), and may have been heard
        of; what its predecessors were assigned after the checkpoint goes back.  May be repeated.

        Raises:
            StreamError: it cannot go back to that checkpoint.
        """
        if self._enumerator is None:
            self._note_reset(SubtaskReset(subtask, attempt, checkpoint_id))
            return
        with self._lock:
            back = self._begin_attempt(subtask, attempt, checkpoint_id)
        self._give_back(back, subtask)

    def _note_reset(self, reset: SubtaskReset) -> None:
        """What another coordinator has given to a reader can go back to an enumerator only."""
        with self._lock:
            reader = self._readers.get(reset.subtask)
            if reader is not None and (reader.attempt is None or reset.attempt > reader.attempt):
                self._resets[reset.subtask] = reset
                self._changes += 1

    @property
    def owes_splits(self) -> bool:
        """Whether there is no enumerator yet to which splits of readers that were reset go back: no
        cut can be made before one is."""
        return bool(self._resets)

    def _begin_attempt(self, subtask: int, attempt: int, checkpoint_id: int) -> list[Any]:
        """The splits that go back, as they were told; none if it has begun already."""
        reader = self._reader(subtask)
        if reader.attempt is not None and attempt <= reader.attempt:
            return []
        back = reader.assigned_after(checkpoint_id)
        self._readers[subtask] = _Reader(checkpoint_id, attempt)
        self._changes += 1
        return back

    def _give_back(self, events: list[Any], subtask: int) -> None:
        if events:
            splits = [self._decode(event) for event in events]
            self._started.add_splits_back(splits, subtask)

    @property
    def _started(self) -> SplitEnumerator[Any]:
        assert self._enumerator is not None
        return self._enumerator

    def events(self, subtask: int, attempt: int, position: int) -> tuple[Any, ...] | None:
        """What the reader is told from that position on; None: it has been replaced, or has said
        more since."""
        with self._lock:
            reader = self._readers.get(subtask)
            if reader is None or reader.attempt != attempt or position < reader.confirmed:
                return None
            return reader.between(position, self._may_tell(reader, reader.limit))

    def events_before(
        self, checkpoint_id: int, subtask: int, attempt: int, position: int
    ) -> tuple[Any, ...] | None:
        """What the reader has to be told, from that position on, before it takes its snapshot for
        a checkpoint; None: the checkpoint is over or not known, or the reader has been replaced."""
        with self._lock:
            if self._enumerator is None and subtask not in self._readers:
                return () if checkpoint_id in self._cuts else None
            reader = self._reader(subtask)
            if reader.attempt is None:  # it may be waiting for the enumerator
                self._first_heard(reader, attempt)
            cut = reader.cuts.get(checkpoint_id)
            if cut is None or reader.attempt != attempt or position < reader.confirmed:
                return None
            return reader.between(position, self._may_tell(reader, cut))

    def _first_heard(self, reader: _Reader, attempt: int) -> None:
        reader.attempt = attempt
        self._changes += 1

    def _may_tell(self, reader: _Reader, limit: int) -> int:
        return min(limit, reader.kept) if self._is_kept else limit

    # --- what is kept elsewhere ---------------------------------------------------------------

    @property
    def changes(self) -> int:
        """So many times something has changed that another coordinator would have to know."""
        return self._changes

    def progress(self) -> SourceProgress:
        """All of it; between two calls of the enumerator.  Splits must be encoded to bytes.

        Raises:
            StateError: what ``snapshot_state`` gave cannot be stored.
        """
        state = self._state
        if self._enumerator is not None:
            last = max(self._cuts, default=self._restored_from)
            state = write_enumerator_state(self._enumerator.snapshot_state(last))
        parallelism = self._parallelism
        if self._gone_on_from is not None:
            parallelism = self._gone_on_from.parallelism
        with self._lock:
            readers = tuple(reader.state(subtask) for subtask, reader in self._readers.items())
            return SourceProgress(
                parallelism,
                self._restored_from,
                tuple(self._cuts),
                state,
                readers,
                tuple(self._resets.values()),
            )

    def kept(self, progress: SourceProgress) -> None:
        """So much is known elsewhere."""
        with self._lock:
            for state in progress.readers:
                reader = self._readers.get(state.subtask)
                if reader is not None and reader.attempt == state.attempt:
                    reader.kept = max(reader.kept, state.confirmed + len(state.events))

    def keep_no_more(self) -> None:
        """Nothing can be kept elsewhere: readers are told all the same."""
        self._is_kept = False

    # --- time ---------------------------------------------------------------------------------

    def next_discovery_time(self) -> float | None:
        """When :meth:`discover` is due (the clock's seconds); None: never."""
        return None if self._enumerator is None else self._enumerator.next_discovery_time()

    def discover(self) -> None:
        """Look for new splits."""
        self._started.discover()

    # --- checkpoints --------------------------------------------------------------------------

    def snapshot(self, checkpoint_id: int) -> EnumeratorState | None:
        """The cut; its id is higher than those before.  None: an enumerator begins anew from it.

        Raises:
            StateError: what ``snapshot_state`` gave cannot be stored.
            StreamError: it :attr:`owes_splits`.
        """
        if self.owes_splits:
            raise StreamError(
                "splits of readers that were restarted cannot go back before one is heard of"
            )
        if self._enumerator is None:
            state = self._state
        else:
            state = write_enumerator_state(self._enumerator.snapshot_state(checkpoint_id))
        with self._lock:  # not before: a split that the enumerator assigns in there is a reader's
            self._cuts.append(checkpoint_id)
            self._changes += 1
            for reader in self._readers.values():
                reader.cuts[checkpoint_id] = reader.end
        return state

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """A job that fails goes on from there, or from a later one."""
        if checkpoint_id <= self._restored_from:
            return
        with self._lock:
            self._restored_from = checkpoint_id
            self._changes += 1
            self._cuts = [cut for cut in self._cuts if cut > checkpoint_id]
            for reader in self._readers.values():
                reader.completed(checkpoint_id)
        if self._enumerator is not None:
            self._enumerator.notify_checkpoint_complete(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Nobody goes on from there; it may have been aborted before its cut."""
        with self._lock:
            self._cuts = [cut for cut in self._cuts if cut != checkpoint_id]
            self._changes += 1
            for reader in self._readers.values():
                reader.cuts.pop(checkpoint_id, None)

    def close(self) -> None:
        if self._enumerator is not None:
            self._enumerator.close()
