"""The interface of sources, modelled on Flink's FLIP-27, with a base class of readers.

A *source* creates one *enumerator*, which finds *splits* (a file, a range of offsets, a partition)
and hands them out, and one *reader* per subtask, which reads them. A split includes the position to
read from, so any other reader can continue from the snapshot of a reader.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, Protocol

from typing_extensions import TypeVar

from flinkray.core.clock import Clock
from flinkray.core.ids import JobVertexID
from flinkray.state.operator_state import StateFile
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation

T = TypeVar("T", covariant=True, default=Any)
U = TypeVar("U", default=Any)
"""Type that a method takes from an argument."""
SplitT = TypeVar("SplitT", default=Any)


class Boundedness(Enum):
    """Says whether a source ends (bounded) or not."""

    BOUNDED = 0
    CONTINUOUS_UNBOUNDED = 1


class NoRecords(Enum):
    """The reason for which :meth:`SourceReader.poll` returns no batch."""

    NOTHING_NOW = 0
    """There is no batch now. Ask again later."""
    END_OF_INPUT = 1
    """All records were read. Do not ask again."""


NOTHING_NOW = NoRecords.NOTHING_NOW
END_OF_INPUT = NoRecords.END_OF_INPUT


class OfSplit(NamedTuple):
    """A batch together with the id of its split, if splits have their own watermarks.
    See :meth:`SourceReader.split_id`."""

    split_id: str
    batch: Block | Columns


Polled = Block | Columns | OfSplit | NoRecords


class StageLocations(Protocol):
    """Says where, in the cluster's storage, streams and Spark stages of the job exchange data."""

    def published(self, vertex_id: JobVertexID) -> str:
        """Return the location where a Spark stage publishes what a stream reads."""

    def epochs(self, vertex_id: JobVertexID) -> str:
        """Return the location where a stream publishes epochs for a Spark stage."""


class ReaderContext:
    """Tells a reader its subtask and the clock, and sends its requests to the enumerator."""

    def __init__(
        self,
        subtask_index: int,
        parallelism: int,
        clock: Clock,
        wake: Callable[[], None] = lambda: None,
        stages: StageLocations | None = None,
    ) -> None:
        self.subtask_index = subtask_index
        self.parallelism = parallelism
        self.clock = clock
        self.stages = stages
        """Locations of the job's Spark stages. None: the task does not run on a cluster."""
        self.wake = wake
        """Call this, from any thread, when there is data to poll after NOTHING_NOW."""
        self.split_requested = False
        self.splits_begun = 0
        self.unread_splits = 0
        self.finished_splits: list[str] = []

    def finish_split(self, split_id: str) -> None:
        """Declare that the previous polls have read all of a split that has an id.
        The split does not hold back the watermark any more."""
        self.finished_splits.append(split_id)

    def begin_split(self) -> None:
        """Declare that the following batches are of another split, and earlier splits are read.
        For readers whose splits have no ids."""
        self.splits_begun += 1

    def send_split_request(self) -> None:
        """Request one more split from the enumerator."""
        self.split_requested = True


class SourceReader(ABC, Generic[SplitT]):
    """Reads the splits of one subtask. Only the task's thread calls it. No method may block."""

    def __init__(self, context: ReaderContext) -> None:
        self.context = context

    def start(self) -> None:
        """Request the first split, if the reader needs requests. Called before the first poll."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Add splits to read."""

    def split_id(self, split: SplitT) -> str | None:
        """Return an id if splits are read in parallel and have their own watermarks.
        None: the reader has one watermark for all its records.

        The watermark of the stream is the least of the splits' watermarks, so a split that was
        added and not read yet holds it back. Batches of splits with an id are returned as
        :class:`OfSplit`.
        """
        return None

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """Note that the reader has all its splits, so that :meth:`poll` returns END_OF_INPUT after
        their last record."""

    @abstractmethod
    def poll(self, max_records: int) -> Polled:
        """Return the next batch of about *max_records* records, or (:class:`NoRecords`) why there
        is none."""

    def next_poll_time(self) -> float | None:
        """Return when to poll again after NOTHING_NOW, in seconds of the clock. None: whenever the
        task is woken, and at least every few milliseconds. Infinity: not before splits were
        added."""
        return None

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        """Return the splits with the positions from which to continue."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called when the checkpoint is complete. From then on, no restart reads data again that
        was read before its snapshot."""

    def close(self) -> None:
        """Release resources."""


class SourceReaderWithFiles(SourceReader[SplitT]):
    """A reader whose splits are files of the job. Savepoints hold copies of these files."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Location of the reader's files."""

    @abstractmethod
    def restore_files(self, files: Mapping[str, StateFile], is_complete: bool) -> None:
        """Take the files of a savepoint, before any split is added.
        *is_complete* False: files of another job are needed, but the job starts from a checkpoint,
        which has no copies. Raises StreamError if the job cannot continue without the files."""

    @abstractmethod
    def files(self) -> Iterator[StateFile]:
        """Yield the files that a savepoint needs for the splits of the last :meth:`snapshot_state`.
        The reader deletes them only in :meth:`delete_read`."""

    @abstractmethod
    def delete_read(self, checkpoint_id: int) -> None:
        """Delete the files that were read to their end before the snapshot of the completed
        checkpoint *checkpoint_id*. No restart needs them any more."""


class EnumeratorContext(ABC, Generic[SplitT]):
    """Interface with which an enumerator assigns splits to readers and says that none follows."""

    @abstractmethod
    def current_parallelism(self) -> int:
        """Return the number of readers."""

    def reading_subtasks(self) -> Sequence[int]:
        """Return the subtasks that have not got the signal that no more splits follow."""
        return range(self.current_parallelism())

    @abstractmethod
    def assign_split(self, split: SplitT, subtask: int) -> None:
        """Assign a split to a reader."""

    @abstractmethod
    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it has all its splits.
        Its later requests do not reach the enumerator."""


class SplitEnumerator(ABC, Generic[SplitT]):
    """Finds splits and hands them out. One enumerator serves all subtasks of a source."""

    keeps_cuts: ClassVar[bool] = False
    """Whether the first ``snapshot_state`` call of a checkpoint notes its handed-out splits. If so,
    a new enumerator is also asked for the state of checkpoints that began before it was created."""

    def __init__(self, context: EnumeratorContext[SplitT]) -> None:
        self.context = context

    def start(self) -> None:
        """Start the enumerator. Called before any reader asks for a split."""

    @abstractmethod
    def handle_split_request(self, subtask: int) -> None:
        """Handle a reader's request for a split.
        Assign a split, signal that there are no more, or do either later."""

    @abstractmethod
    def add_splits_back(self, splits: Sequence[SplitT], subtask: int) -> None:
        """Take back splits that a failed reader has not read to their ends; hand them out again."""

    def add_reader(self, subtask: int) -> None:
        """Called when a reader has started, also for each further attempt of its subtask."""

    def next_discovery_time(self) -> float | None:
        """Return when :meth:`discover` is to be called, in seconds of the clock. None: never."""
        return None

    def discover(self) -> None:
        """Look for new splits. Called when the time from :meth:`next_discovery_time` has come."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the state for :meth:`restore`, without splits that were handed out.
        It is stored like other state. flinkray does not change the returned value.

        On a cluster this is also called between checkpoints, with the id of the last one. The state
        is then kept outside of the enumerator's process, in case that process dies.
        """

    @abstractmethod
    def restore(self, checkpoint: Any) -> None:
        """Continue from a result of :meth:`snapshot_state`. Called before :meth:`start`."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called when the checkpoint is complete: earlier checkpoints are never restored."""

    def close(self) -> None:
        """Release resources."""


class Source(ABC, Generic[T, SplitT]):
    """Origin of a stream's records of type T, for ``env.from_source``.
    In a run in one process, all subtasks create their readers from one source object. So readers
    must not change the source or what it refers to."""

    is_needed_whole = False
    """Whether the job needs the whole input. If so, stopping it with drain before the input has
    ended fails."""

    waits_for_splits: bool = False
    """Whether all splits are known from the start and readers learn when no more follow.
    The enumerator signals this to all readers with the last split (as in
    :class:`FixedSplitsEnumerator`). Then watermarks start only when each split has a reader that
    has read the splits before it, because unread splits may contain any time. To disable:
    :meth:`WatermarkStrategy.without_waiting_for_splits`."""

    @abstractmethod
    def get_boundedness(self) -> Boundedness:
        """Return whether the source ends."""

    def get_produced_type(self) -> TypeInformation[T] | None:
        """Return the type of the records. None: unknown."""
        return None

    @abstractmethod
    def create_enumerator(
        self, context: EnumeratorContext[SplitT], clock: Clock
    ) -> SplitEnumerator[SplitT]:
        """Create the enumerator of a new run."""

    def restore_enumerator(
        self, context: EnumeratorContext[SplitT], clock: Clock, checkpoint: Any
    ) -> SplitEnumerator[SplitT]:
        """Create the enumerator of a run that continues from a result of ``snapshot_state``."""
        enumerator = self.create_enumerator(context, clock)
        enumerator.restore(checkpoint)
        return enumerator

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader[SplitT]:
        """Create the reader of one subtask."""


class FixedSplitsEnumerator(SplitEnumerator[SplitT]):
    """Hands out splits that are known from the start, one per request.
    With the last split, the enumerator signals to all readers that no other split follows, so that
    they end without a further request."""

    def __init__(self, context: EnumeratorContext[SplitT], splits: Sequence[SplitT]) -> None:
        super().__init__(context)
        self._remaining = list(splits)
        self._readers: dict[int, None] = {}
        self._knows_all = (
            type(self).handle_split_request is FixedSplitsEnumerator.handle_split_request
        )
        """Whether no other splits come. False if a subclass overrides ``handle_split_request``."""

    def add_reader(self, subtask: int) -> None:
        """Register a reader. If no split is left, signal this to the reader at once, because its
        watermark waits for the signal."""
        self._readers[subtask] = None
        if self._knows_all and not self._remaining:
            self.context.signal_no_more_splits(subtask)

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


class SourceHold:
    """Stops one task from reading its source while ``is_held`` is true. Barriers are still sent,
    and records that were read flow on to the sinks. Only the task's thread uses it."""

    def __init__(self) -> None:
        self.is_held = True
        """Whether the source must not be read. True until :meth:`tell` says otherwise."""

    def tell(self, is_held: bool) -> None:
        """Set whether the source must not be read."""
        self.is_held = is_held


class SplitsToRead:
    """Says how far one task has come with the splits of its source, for its watermark generators.
    Only the task's thread uses it."""

    def __init__(self) -> None:
        self.are_awaited = False
        """Whether some splits have no reader yet, or wait while their reader reads another split.
        No watermarks are emitted while this is True."""
        self.begun = 0
        """Number of splits begun.
        The last one is being read. Earlier splits do not affect its watermark."""


class SequentialReader(SourceReader[SplitT]):
    """Base class of readers that read one split to its end, and then request the next one."""

    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._waiting: deque[SplitT] = deque()
        self._current: SplitT | None = None
        self._no_more = False

    def start(self) -> None:
        if not self._waiting:
            self.context.send_split_request()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        self._waiting.extend(splits)
        self.context.unread_splits = len(self._waiting)

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, max_records: int) -> Polled:
        while True:
            if self._current is None:
                if not self._waiting:
                    return END_OF_INPUT if self._no_more else NOTHING_NOW
                self._current = self._waiting.popleft()
                self.context.unread_splits = len(self._waiting)
                self.context.begin_split()
                self.open_split(self._current)
            split_id = self.split_id(self._current)
            polled = self.read(max_records)
            if polled is not END_OF_INPUT:
                if split_id is None or isinstance(polled, (NoRecords, OfSplit)):
                    return polled
                return OfSplit(split_id, polled)
            if split_id is not None:
                self.context.finish_split(split_id)
            self._current = None
            if not self._waiting and not self._no_more:
                self.context.send_split_request()
                return NOTHING_NOW

    def next_poll_time(self) -> float | None:
        return math.inf if self._current is None and not self._waiting else None

    @abstractmethod
    def open_split(self, split: SplitT) -> None:
        """Begin to read this split, at its position."""

    @abstractmethod
    def read(self, max_records: int) -> Polled:
        """Return the next batch of the split, or END_OF_INPUT at its end."""

    @abstractmethod
    def remaining(self) -> SplitT:
        """Return the current split with the position from which to continue."""

    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        current = [] if self._current is None else [self.remaining()]
        return [*current, *self._waiting]
