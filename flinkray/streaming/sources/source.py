"""The interface of sources, in the shape of Flink's FLIP-27.

A *source* makes one *enumerator*, which finds *splits* (a file, a range of offsets, a partition)
and hands them out, and one *reader* for each subtask, which reads them.  A split describes where
to read on, so that what a reader gives as its snapshot can be read on by any other reader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from flinkray.core.clock import Clock
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.state_file import StateFile

SplitT = TypeVar("SplitT")


class Boundedness(Enum):
    """Whether a source has an end."""

    BOUNDED = 0
    CONTINUOUS_UNBOUNDED = 1


class NoRecords(Enum):
    """What a reader answers when it has no batch to give."""

    NOTHING_NOW = 0
    """Ask again later."""
    END_OF_INPUT = 1
    """Never ask again."""


NOTHING_NOW = NoRecords.NOTHING_NOW
END_OF_INPUT = NoRecords.END_OF_INPUT


class OfSplit(NamedTuple):
    """A batch of one split whose time is watched by itself (:meth:`SourceReader.split_id`)."""

    split_id: str
    batch: Block | Columns


Polled = Block | Columns | OfSplit | NoRecords


class ReaderContext:
    """What a reader knows of its surroundings."""

    def __init__(
        self,
        subtask_index: int,
        parallelism: int,
        clock: Clock,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.subtask_index = subtask_index
        self.parallelism = parallelism
        self.clock = clock
        self.wake = wake
        """To be called, from any thread, when there is something to poll after NOTHING_NOW."""
        self.split_requested = False
        self.finished_splits: list[str] = []

    def finish_split(self, split_id: str) -> None:
        """The polls before this one gave all of a split with an id: it holds back no watermark any
        more."""
        self.finished_splits.append(split_id)

    def send_split_request(self) -> None:
        """Ask the enumerator for one more split."""
        self.split_requested = True


class SourceReader(ABC, Generic[SplitT]):
    """Reads the splits of one subtask.  Called by the task's thread only; nothing may block."""

    def __init__(self, context: ReaderContext) -> None:
        self.context = context

    def start(self) -> None:
        """Before the first poll; the place to ask for a split."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Read these too."""

    def split_id(self, split: SplitT) -> str | None:
        """For splits that are read side by side: what tells them apart.

        Such a split has watermarks of its own, and the stream has the least of them: a split that
        was added and not read yet holds it back.  Batches are given as :class:`OfSplit` then.
        None: time is that of all that the reader gives.
        """
        return None

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """No split follows: after the last record, answer END_OF_INPUT."""

    @abstractmethod
    def poll(self, max_records: int) -> Polled:
        """The next batch, of about *max_records*; or why there is none."""

    def next_poll_time(self) -> float | None:
        """After NOTHING_NOW: at what time of the clock (seconds) to ask again; None: as soon as
        anything happens, and at least every few milliseconds; infinity: when splits have come."""
        return None

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        """The splits as they would have to be read on from here."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: what it covers is never read again."""

    def close(self) -> None:
        """Give resources back."""


class SourceReaderWithFiles(SourceReader[SplitT]):
    """One whose splits are files of the job, of which savepoints have copies."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where these files are."""

    @abstractmethod
    def restore_files(self, files: Mapping[str, StateFile], is_complete: bool) -> None:
        """Before any split is added.

        Args:
            files: those that the savepoint has, by name.
            is_complete: False: files of another job are needed, and it is a checkpoint, which has
                no copies.

        Raises:
            StreamError: the job cannot go on without them.
        """

    @abstractmethod
    def files(self) -> Iterator[StateFile]:
        """What a savepoint needs of the splits of :meth:`snapshot_state`, which was called before.
        They stay until :meth:`delete_read`."""

    @abstractmethod
    def delete_read(self, checkpoint_id: int) -> None:
        """What was read to its end before that checkpoint, which is complete: nobody goes back to
        it."""


class EnumeratorContext(ABC, Generic[SplitT]):
    """What an enumerator can do."""

    @abstractmethod
    def current_parallelism(self) -> int:
        """The number of readers."""

    def reading_subtasks(self) -> Sequence[int]:
        """Those whose readers were not told that they have all their splits."""
        return range(self.current_parallelism())

    @abstractmethod
    def assign_split(self, split: SplitT, subtask: int) -> None:
        """Give a split to a reader."""

    @abstractmethod
    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it has all its splits: if it asks for one after that, the enumerator
        does not hear of it."""


class SplitEnumerator(ABC, Generic[SplitT]):
    """Finds splits and hands them out; one for all subtasks of a source."""

    keeps_cuts: ClassVar[bool] = False
    """Whether it notes for each checkpoint what it had handed out when it was first asked for its
    state; it is asked for that of checkpoints which began before it was made, too, then."""

    def __init__(self, context: EnumeratorContext[SplitT]) -> None:
        self.context = context

    def start(self) -> None:
        """Before any reader asks."""

    @abstractmethod
    def handle_split_request(self, subtask: int) -> None:
        """A reader wants a split: assign one, or say that there are no more, or do so later."""

    @abstractmethod
    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """A reader failed; these splits are to be handed out again."""

    def add_reader(self, subtask: int) -> None:
        """A reader is there."""

    def next_discovery_time(self) -> float | None:
        """When :meth:`discover` wants to be called (the clock's seconds); None: never."""
        return None

    def discover(self) -> None:
        """Look for new splits."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Any:
        """What :meth:`restore` needs; splits that were handed out are not in it.  It is stored as
        values of state are, and changed by nobody.

        On a cluster it is asked for between checkpoints, too, with the id of the last one: what the
        enumerator knows is kept outside of its process, in case that dies.
        """

    @abstractmethod
    def restore(self, checkpoint: Any) -> None:
        """Go on from a snapshot; called before :meth:`start`."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: no earlier one is restored any more."""

    def close(self) -> None:
        """Give resources back."""


class Source(ABC, Generic[SplitT]):
    """Where records come from; to be given to ``env.from_source``."""

    is_needed_whole = False
    """Nothing is to be made of a part of it: a stop that drains the job fails before its end."""

    @abstractmethod
    def get_boundedness(self) -> Boundedness:
        """Whether there is an end."""

    def get_produced_type(self) -> TypeInformation | None:
        """The type of the records; None: it is not known."""
        return None

    @abstractmethod
    def create_enumerator(
        self, context: EnumeratorContext[SplitT], clock: Clock
    ) -> SplitEnumerator[SplitT]:
        """The enumerator of a new run."""

    def restore_enumerator(
        self, context: EnumeratorContext[SplitT], clock: Clock, checkpoint: Any
    ) -> SplitEnumerator[SplitT]:
        """The enumerator of a run that goes on from what ``snapshot_state`` gave."""
        enumerator = self.create_enumerator(context, clock)
        enumerator.restore(checkpoint)
        return enumerator

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[SplitT]:
        """The reader of one subtask."""


class FixedSplitsEnumerator(SplitEnumerator[SplitT]):
    """Hands out splits that are known from the start, one for each request.

    With the last one all readers are told that no other follows: they end without asking.
    """

    def __init__(self, context: EnumeratorContext[SplitT], splits: Sequence[SplitT]) -> None:
        super().__init__(context)
        self._remaining = list(splits)
        self._readers: dict[int, None] = {}

    def add_reader(self, subtask: int) -> None:
        self._readers[subtask] = None

    def handle_split_request(self, subtask: int) -> None:
        if self._remaining:
            self.context.assign_split(self._remaining.pop(0), subtask)
        if not self._remaining:
            for reader in {**self._readers, subtask: None}:
                self.context.signal_no_more_splits(reader)

    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        self._remaining.extend(splits)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return list(self._remaining)

    def restore(self, checkpoint: Any) -> None:
        self._remaining = list(checkpoint)
