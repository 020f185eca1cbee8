"""The operator coordinator of a source. It runs the enumerator, apart from the readers.

Readers and coordinator exchange messages, which may be lost or repeated. A reader is one attempt of
a task.

A checkpoint *cuts* the events of the readers: :meth:`SourceCoordinator.snapshot` runs before all
snapshots of the readers. Splits assigned before the cut belong to the readers, which get them
before they take their snapshots. Splits assigned after the cut belong to the enumerator, and are
held back until the reader has taken its snapshot. So each split is in exactly one of the two
states, whichever checkpoint is restored.

A coordinator may die while its readers run on. So its whole state can be read
(:meth:`SourceCoordinator.progress`) and stored elsewhere, for the next coordinator. Readers get
only events that are stored, so the next coordinator knows every event that a reader has. It sends
readers no further events before its own progress is stored, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.sources.source import EnumeratorContext, Source, SplitEnumerator
from flinkray.streaming.sources.source_progress import (
    AssignedSplit,
    EnumeratorState,
    ReaderState,
    SourceProgress,
    SubtaskReset,
    read_enumerator_state,
    write_enumerator_state,
)


class _NoMoreSplits:
    """The type of :data:`NO_MORE_SPLITS`."""


NO_MORE_SPLITS: Final = _NoMoreSplits()
"""The event that no split follows. All other events are splits."""

END_OF_SPLITS: Final = b""
"""Form of :data:`NO_MORE_SPLITS` in messages between processes, where splits are pickled."""


@dataclass
class _Reader:
    """What the coordinator knows of one reader, an attempt of a subtask. The events for the reader
    (splits, and that no split follows) are numbered from 0."""

    restored_from: int
    """Id of the checkpoint that the attempt was restored from, or of a later completed one."""
    attempt: int | None = None
    """Number of the subtask's attempt. None: no attempt has reported yet.
    Splits may already be assigned to the first attempt."""
    is_added: bool = False
    """Whether the enumerator knows of this attempt."""
    requests: int = 0
    """Number of the reader's requests that the enumerator knows of."""
    checkpoint_id: int = 0
    """Id of the latest checkpoint for which the reader has taken its snapshot."""
    events: list[Any] = field(default_factory=list)
    """Events that the reader has not confirmed. They have to be sent, perhaps again."""
    confirmed: int = 0
    """Number of events that the reader has confirmed. They precede :attr:`events`."""
    kept: int = 0
    """Number of events that are stored outside of the coordinator's process."""
    given: int = 0
    """Number of splits among all events so far."""
    asked_at: int = -1
    """Number of events at the reader's last split request. -1: it has not requested any."""
    is_done: bool = False
    """Whether the last event is that no split follows."""
    assigned: list[tuple[int, Any]] = field(default_factory=list)
    """(number of the event, encoded split) of the splits assigned after *restored_from*.
    They go back to the enumerator if the reader is restored from that checkpoint."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Cuts by checkpoint id: number of events before the cut."""

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
        """Up to which number the reader may get events now. Events after the cut of a checkpoint
        wait until the reader has taken its snapshot."""
        pending = (cut for id_, cut in self.cuts.items() if id_ > self.checkpoint_id)
        return min(pending, default=self.end)

    def assign(self, event: Any) -> None:
        self.assigned.append((self.end, event))
        self.events.append(event)
        self.given += 1
        self.is_done = False

    def state(self, subtask: int) -> ReaderState:
        """Return what is known of the reader as a part of a :class:`SourceProgress`.
        :func:`_restored` makes a reader of it again."""
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
        """Forget the cuts up to a completed checkpoint: no reader goes back to an earlier one."""
        cut = self.cuts.get(checkpoint_id)
        if cut is not None:
            self.restored_from = checkpoint_id
            self.assigned = [one for one in self.assigned if one[0] >= cut]
        self.cuts = {id_: cut for id_, cut in self.cuts.items() if id_ > checkpoint_id}

    def assigned_after(self, checkpoint_id: int) -> list[Any]:
        cut = 0 if checkpoint_id == self.restored_from else self.cuts.get(checkpoint_id)
        if cut is None:
            raise UnavailableError(
                f"checkpoint {checkpoint_id} is none that a reader can be reset to: there are "
                f"{sorted({self.restored_from, *self.cuts})}"
            )
        return [event for number, event in self.assigned if number >= cut]


def _refuse_unknown(reader: _Reader, subtask: int, position: int) -> None:
    """Raise UnavailableError if *position*, the number of events that the reader has received, is
    larger than the number of events known here: a split that the reader has could be given to
    another one."""
    if position > reader.end:
        raise UnavailableError(
            f"reader {subtask} has received {position} events, but the coordinator of the source "
            f"knows only {reader.end}: its latest progress was lost"
        )


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
    """Coordinates the enumerator and the readers of a source, from :meth:`start` on.

    Calls before :meth:`start` only update checkpoints and resets. The enumerator is user code and
    may be slow, so calls come one at a time. Only :meth:`events` and :meth:`events_before`, which
    do not call user code, are thread-safe. A reader is identified by subtask and attempt. When a
    later attempt starts from a checkpoint, the splits assigned to the earlier attempt after that
    checkpoint go back to the enumerator.

    *encode*, *decode*: convert between a split and the form that is sent to readers. *state*: state
    of the enumerator to continue from, of *checkpoint_id* (0: a new start); readers bring their own
    splits. *progress*: progress of another coordinator, instead of *state*. *is_kept*: whether the
    progress is stored elsewhere. Then readers get only events that were passed to :meth:`kept`.
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
        """Ids of the checkpoints that may still be completed."""
        self._is_kept = is_kept
        self._changes = 0
        self._gone_on_from = progress
        """Progress of the previous coordinator. None once there is an enumerator."""
        if progress is not None:
            self._state, self._restored_from = progress.enumerator, progress.restored_from
            self._cuts = list(progress.cuts)
            self._readers = {one.subtask: _restored(one) for one in progress.readers}
        self._resets = {one.subtask: one for one in (progress.resets if progress else ())}
        """Resets to apply once there is an enumerator, by subtask."""
        self._lock = Lock()
        """Guards the state of the readers. Never held while user code runs."""

    def start(self, source: Source[Any], parallelism: int) -> None:
        """Create or restore the enumerator, start it, and tell it of the readers that are known
        already. Raises StateMigrationError: the enumerator's state cannot be read any more."""
        self._parallelism = parallelism
        progress, self._gone_on_from = self._gone_on_from, None
        if progress is not None and progress.parallelism not in (0, parallelism):
            self._state = None  # with another parallelism, the whole job has begun anew
            self._readers.clear()
            self._resets.clear()
        self._enumerator = (
            source.create_enumerator(self, self._clock)
            if self._state is None
            else source.restore_enumerator(self, self._clock, read_enumerator_state(self._state))
        )
        self._state = None
        if self._enumerator.keeps_cuts:
            for cut in self._cuts:  # a later request would give a later state
                self._enumerator.snapshot_state(cut)
        self._enumerator.start()
        resets, self._resets = self._resets, {}
        for reset in resets.values():
            self.reset_subtask(reset.subtask, reset.attempt, reset.checkpoint_id)
        self._announce_again()

    def _announce_again(self) -> None:
        """Tell a restored enumerator of the known readers, and repeat their split requests that
        were not answered: rather too many than too few, if their number is uncertain."""
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
        """Number of readers. 0: the coordinator has not started."""
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
        """Handle a report of a reader. *requests*, *position*: numbers of split requests and of
        received events since the reader was opened. *checkpoint_id*: its latest snapshot.
        *restored_from*: checkpoint from which the attempt was restored; 0: a new start. Raises
        UnavailableError: the reader has more events than are known here."""
        with self._lock:
            reader = self._reader(subtask)
            if reader.attempt is None:
                self._first_heard(reader, attempt)
            elif attempt < reader.attempt:
                return  # last report of a replaced attempt
            back = self._begin_attempt(subtask, attempt, restored_from)
            reader = self._readers[subtask]
            _refuse_unknown(reader, subtask, position)
            reader.said(position, checkpoint_id)
        self._give_back(back, subtask)
        if not reader.is_added:
            reader.is_added = True
            self._changes += 1
            self._started.add_reader(subtask)
        while reader.requests < requests:
            reader.requests += 1
            reader.asked_at = reader.end
            if not reader.is_done:  # a done reader may end without a split that came back
                self._started.handle_split_request(subtask)

    def reset_subtask(self, subtask: int, attempt: int, checkpoint_id: int) -> None:
        """Note that an attempt of a subtask starts from a checkpoint (0: a new start). Splits that
        earlier attempts got after that checkpoint go back to the enumerator. The attempt may
        already have reported, and the call may be repeated. Raises UnavailableError if the state at
        that checkpoint is not known any more."""
        if self._enumerator is None:
            self._note_reset(SubtaskReset(subtask, attempt, checkpoint_id))
            return
        with self._lock:
            back = self._begin_attempt(subtask, attempt, checkpoint_id)
        self._give_back(back, subtask)

    def _note_reset(self, reset: SubtaskReset) -> None:
        """Reset a reader before there is an enumerator. If splits of it have to go back, the reset
        waits for the enumerator; else it is done at once, because a finished task never reports
        again."""
        with self._lock:
            reader = self._readers.get(reset.subtask)
            if reader is None:  # the attempt takes no snapshot for the cuts before
                self._readers[reset.subtask] = _Reader(reset.checkpoint_id, reset.attempt)
                self._changes += 1
            elif reader.attempt is not None and reset.attempt <= reader.attempt:
                return
            elif reader.assigned_after(reset.checkpoint_id):
                self._resets[reset.subtask] = reset
                self._changes += 1
            else:
                self._begin_attempt(reset.subtask, reset.attempt, reset.checkpoint_id)

    @property
    def owes_splits(self) -> bool:
        """Whether splits of readers that were reset still have to be given back to an enumerator.
        Until then no checkpoint can be cut."""
        return bool(self._resets)

    def _begin_attempt(self, subtask: int, attempt: int, checkpoint_id: int) -> list[Any]:
        """Replace what is known of a subtask's reader by a new attempt, which starts from a
        checkpoint. Returns the encoded splits that go back to the enumerator: none if this attempt
        or a later one is known."""
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
        """Return the events for the reader, from number *position* on, that it may get now. None: a
        later attempt has replaced the reader, or the reader has confirmed later events already."""
        with self._lock:
            reader = self._readers.get(subtask)
            if reader is None or reader.attempt != attempt or position < reader.confirmed:
                return None
            return reader.between(position, self._may_tell(reader, reader.limit))

    def events_before(
        self, checkpoint_id: int, subtask: int, attempt: int, position: int
    ) -> tuple[Any, ...] | None:
        """Return the events from number *position* on that the reader must get before its snapshot
        for a checkpoint. None: the checkpoint is over or unknown, or the reader was replaced.
        Raises UnavailableError: the reader has more events than are known here."""
        with self._lock:
            if self._enumerator is None and subtask not in self._readers:
                return () if checkpoint_id in self._cuts else None
            reader = self._reader(subtask)
            if reader.attempt is None:  # it may be waiting for the enumerator
                self._first_heard(reader, attempt)
            cut = reader.cuts.get(checkpoint_id)
            if cut is None or reader.attempt != attempt or position < reader.confirmed:
                return None
            _refuse_unknown(reader, subtask, position)
            return reader.between(position, self._may_tell(reader, cut))

    def _first_heard(self, reader: _Reader, attempt: int) -> None:
        reader.attempt = attempt
        self._changes += 1

    def _may_tell(self, reader: _Reader, limit: int) -> int:
        return min(limit, reader.kept) if self._is_kept else limit

    # --- progress that is stored elsewhere ----------------------------------------------------

    @property
    def changes(self) -> int:
        """How often the progress has changed. If this has grown, the caller stores the progress."""
        return self._changes

    def progress(self) -> SourceProgress:
        """Return the whole progress. Call between two calls of the enumerator. Splits must be
        encoded to bytes. Raises StateError: the result of ``snapshot_state`` cannot be stored."""
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
        """Note that *progress*, a result of :meth:`progress`, was stored outside of this process,
        so that readers may get the events in it."""
        with self._lock:
            for state in progress.readers:
                reader = self._readers.get(state.subtask)
                if reader is not None and reader.attempt == state.attempt:
                    reader.kept = max(reader.kept, state.confirmed + len(state.events))

    def keep_no_more(self) -> None:
        """Give readers all events at once from now on, without waiting for :meth:`kept`, because
        progress cannot be stored elsewhere any more."""
        self._is_kept = False

    # --- time ---------------------------------------------------------------------------------

    def next_discovery_time(self) -> float | None:
        """Return when :meth:`discover` is due, in seconds of the clock. None: never."""
        return None if self._enumerator is None else self._enumerator.next_discovery_time()

    def discover(self) -> None:
        self._started.discover()

    # --- checkpoints --------------------------------------------------------------------------

    def snapshot(self, checkpoint_id: int) -> EnumeratorState | None:
        """Make the cut of a checkpoint and return the enumerator's state; ids must increase.
        None: a job restored from it creates a new enumerator. Raises StateError: ``snapshot_state``
        returned what cannot be stored. UnavailableError: splits still have to go back
        (:attr:`owes_splits`)."""
        if self.owes_splits:
            raise UnavailableError(
                "splits of readers that were restarted cannot go back before one is heard of"
            )
        if self._enumerator is None:
            state = self._state
        else:
            state = write_enumerator_state(self._enumerator.snapshot_state(checkpoint_id))
        with self._lock:  # only now: splits assigned in snapshot_state belong to readers
            self._cuts.append(checkpoint_id)
            self._changes += 1
            for reader in self._readers.values():
                reader.cuts[checkpoint_id] = reader.end
        return state

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Forget the cuts up to this checkpoint, which is complete, and tell the enumerator."""
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
        """Forget the cut of a checkpoint that was aborted, perhaps before its cut: events do not
        wait for the cut any more."""
        with self._lock:
            self._cuts = [cut for cut in self._cuts if cut != checkpoint_id]
            self._changes += 1
            for reader in self._readers.values():
                reader.cuts.pop(checkpoint_id, None)

    def close(self) -> None:
        if self._enumerator is not None:
            self._enumerator.close()
