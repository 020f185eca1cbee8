"""The interface of sinks, after Flink's Sink V2.

A sink whose results are to be seen exactly once writes in two phases.  Its *writers* store what
they are given so that nobody sees it, and put out *committables*: what has to be done to make it
seen.  Its *committers*, which are operators of their own behind the writers, do that, and never too
early:

* Where the job takes checkpoints: :meth:`SinkWriter.prepare_commit` is called right before a
  checkpoint's barrier.  Its committables are part of that checkpoint, and are committed as soon as
  it (or a later one) is complete.  Tasks whose input has ended stay until a checkpoint that covers
  the end is complete, and commit the rest with it.
* Where it takes none, and in batch mode: ``prepare_commit`` is called at the end of the input, by
  each writer.  One committer gets what all of them have put out when all of them have *finished*,
  notes it in the cluster's storage, and commits then.

What a sink may rely on, in both cases:

* A committable is committed only if a rerun of the job will not write its records again.  One whose
  checkpoint was given up is committed with a later one, or, if the job goes back to an earlier
  checkpoint, never: what belongs to it may then be removed.
* It is committed at least once, whatever dies: again after every restart, until a later checkpoint
  shows that it was.  So committing must be idempotent, also when an earlier attempt, which nobody
  has told yet that it is over, does the same at the same time.
* A writer is given each record after what it was restored from once.  It is never called after
  ``prepare_commit(end_of_input=True)``, but for ``snapshot_state`` and ``close``.
* After a restart, which may be with another parallelism, each committable of the checkpoint is with
  exactly one committer, and each element of the writers' state with exactly one writer.  Committers
  commit at once, when they are opened; writers may be opened before or after.
* Committables of one writer reach its committer in their order, and are committed in it, unless one
  of them is retried, or the parallelism was changed meanwhile.  With :attr:`Sink.commits_in_order`
  there is a single committer, and it commits by checkpoint, and of each checkpoint by subtask.
* A savepoint is as a checkpoint that is not told of: its committables are committed with the next
  checkpoint, and again by every job that goes on from the savepoint.
* Committables and states travel and are stored as other values are: plain values, named tuples and
  dataclasses by their fields, else pickled.

All of it is called by the task's thread.  What a writer or a committer raises fails the task, and
so makes the job go back to its last complete checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.state_file import StateFile
from flinkray.streaming.time.time_service import ProcessingTimeService

CommitT = TypeVar("CommitT")
StateT = TypeVar("StateT")


class SinkError(StreamError):
    """A sink cannot write or commit; the text says what, and the way out."""


@dataclass
class WriterContext:
    """What a writer knows of its surroundings."""

    subtask_index: int
    parallelism: int
    attempt_number: int
    """0 for the first attempt of the subtask; several may be at work for a moment, if one of them
    does not know yet that it is over."""
    time_service: ProcessingTimeService
    """The clock, and callbacks between two batches."""
    current_watermark: int = MIN_TIMESTAMP
    type_info: TypeInformation | None = None
    """The declared type of the records."""
    job_id: str = ""
    """32 hexadecimal digits; a job that is started from a savepoint has another one."""
    operator_id: str = ""
    """32 hexadecimal digits: of the writers, in every run of the program, if the sink has a uid."""
    restored_checkpoint_id: int = 0
    """Of the checkpoint that the task goes on from, also where the writer has no state in it; 0: it
    begins anew, and committables of earlier attempts will never be committed, unless the job takes
    no checkpoints."""


@dataclass(frozen=True)
class CommitterContext:
    """What a committer knows of its surroundings; see :class:`WriterContext`."""

    subtask_index: int
    parallelism: int
    attempt_number: int
    job_id: str = ""
    operator_id: str = ""
    """Of the committers; the sink's writers have another one."""
    restored_checkpoint_id: int = 0


class SinkWriter(ABC, Generic[CommitT]):
    """Writes the records of one subtask; called by its task's thread only."""

    @abstractmethod
    def write(self, block: Block) -> None:
        """Take a batch."""

    def write_columns(self, columns: Columns) -> None:
        """Take a batch of columns; rows by default."""
        self.write(columns.to_block())

    def prepare_commit(self, end_of_input: bool) -> Sequence[CommitT]:
        """Finish what was written so far, and say what has to be committed.  It must be stored
        safely when this returns, and not be visible yet."""
        return ()

    def close(self) -> None:
        """Give resources back, also after a failure; what was not prepared is lost."""
        return


class StatefulSinkWriter(SinkWriter[CommitT], Generic[CommitT, StateT]):
    """A writer that remembers something from one attempt to the next."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[StateT]:
        """What :meth:`Sink.restore_writer` is to be given, right after ``prepare_commit`` for the
        same checkpoint.  With another parallelism each element comes to one of the writers."""


class CommitOutcome(Enum):
    """What has become of a request."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    RETRY = "to be retried"
    LOST = "can never be committed"
    FAILED = "failed"


class CommitRequest(Generic[CommitT]):
    """One committable that is to be committed; a committer says so if it could not.

    A request that is told nothing is committed.
    """

    __slots__ = ("_number_of_retries", "checkpoint_id", "committable", "outcome", "reason")

    def __init__(self, committable: CommitT, checkpoint_id: int = 0) -> None:
        self.committable = committable
        self.checkpoint_id = checkpoint_id
        """Of the checkpoint that it was prepared for, also when it comes again; 0: the job takes
        none.  What was prepared for one that was given up has its id, and comes with a later one.
        """
        self._number_of_retries = 0
        self.outcome = CommitOutcome.COMMITTED
        self.reason: BaseException | None = None

    @property
    def number_of_retries(self) -> int:
        """How often it was tried before."""
        return self._number_of_retries

    def retry_later(self, reason: BaseException) -> None:
        """It failed in a way that may pass.  The job goes on meanwhile; when it has failed
        :data:`~flinkray.streaming.sinks.committer_operator.MOST_RETRIES` times, the task fails."""
        self.outcome, self.reason = CommitOutcome.RETRY, reason

    def update_and_retry_later(self, committable: CommitT, reason: BaseException) -> None:
        """The same, and what is to be committed is another thing now: a part of it was done."""
        self.committable = committable
        self.retry_later(reason)

    def signal_already_committed(self) -> None:
        """An earlier attempt has done it."""
        self.outcome = CommitOutcome.ALREADY_COMMITTED

    def signal_failed_with_known_reason(self, reason: BaseException) -> None:
        """It can never be committed: it has expired, for one.  The job goes on without it; what is
        lost is told in the log, and counted (``failedCommittables``)."""
        self.outcome, self.reason = CommitOutcome.LOST, reason

    def signal_failed_with_unknown_reason(self, reason: BaseException) -> None:
        """It failed, and trying again is of no use before somebody has done something about it: the
        task fails.  The committable stays in the checkpoint that the job goes on from."""
        self.outcome, self.reason = CommitOutcome.FAILED, reason

    def begin_attempt(self) -> None:
        """For the committer's operator: it is about to be tried, maybe not for the first time."""
        if self.outcome is CommitOutcome.RETRY:
            self._number_of_retries += 1
        self.outcome, self.reason = CommitOutcome.COMMITTED, None


class Committer(ABC, Generic[CommitT]):
    """Makes visible what writers wrote."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[CommitT]]) -> None:
        """Commit each of them, or tell it what has happened.

        It blocks the task, so what may take long is better retried later.  What it raises fails the
        task: none of the requests counts as committed then, and all of them come again.
        """

    def close(self) -> None:
        """Give resources back."""
        return


class Committed(NamedTuple):
    """Something that was committed, and is to be committed again by whoever goes on from a
    savepoint."""

    checkpoint_id: int
    committable: Any


class CommitterWithFiles(Committer[CommitT]):
    """One whose committables are files of the job, of which savepoints have copies."""

    @abstractmethod
    def not_done(self) -> list[Committed]:
        """What was committed, and has not come to where it goes: at a savepoint, it is kept with
        what is pending."""

    @abstractmethod
    def files_of(self, committables: Sequence[CommitT]) -> Iterator[StateFile]:
        """What a savepoint needs of them.  They stay until :meth:`delete_done`."""

    @abstractmethod
    def restore_files(self, files: Mapping[str, StateFile]) -> None:
        """Those that the savepoint has, by name; before anything is committed."""

    @abstractmethod
    def delete_done(self) -> None:
        """What nobody needs any more; called when a checkpoint is complete."""


class Sink(ABC, Generic[CommitT]):
    """Where records go; to be given to ``DataStream.sink_to``.  It is pickled: what cannot be is
    made by the writers and committers."""

    shared: bool = False
    """Lives in the client's process: local runs do not copy it."""

    commits_in_order: bool = False
    """There is one committer for all writers, and it commits checkpoint by checkpoint, also when
    one of its committables has to be retried."""

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter[CommitT]:
        """The writer of one subtask."""

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter[CommitT]:
        """For sinks with a :class:`StatefulSinkWriter`: the writer of one subtask after a restart.

        Args:
            states: what earlier writers gave in ``snapshot_state``, in the order of their subtasks;
                there is at least one.
        """
        raise SinkError(
            f"{type(self).__name__} has state of writers in the checkpoint, and no restore_writer"
        )

    @property
    def has_committer(self) -> bool:
        """Whether it writes in two phases; said before anything is made."""
        return type(self).create_committer is not Sink.create_committer

    def create_committer(self, context: CommitterContext) -> Committer[CommitT]:
        """The committer of one subtask.  Where it is not implemented, writing is all there is to
        it."""
        raise SinkError(f"{type(self).__name__} has no committer")
