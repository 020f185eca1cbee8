"""The interface of sinks, modelled on Flink's Sink V2; :class:`Sink` lists its guarantees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple

from typing_extensions import TypeVar

from flinkray.core.errors import SuppressRestartsError
from flinkray.state.operator_state import StateFile
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.records.elements import MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.source import StageLocations
from flinkray.streaming.time.time_service import ProcessingTimeService

T = TypeVar("T", contravariant=True, default=Any)
U = TypeVar("U", default=Any)
"""Type that a method takes from an argument."""
CommitT = TypeVar("CommitT", default=Any)
StateT = TypeVar("StateT", default=Any)


class SinkError(StreamError):
    """A sink cannot write or commit. The text gives the reason and a remedy."""


class SinkUnavailableError(SinkError, UnavailableError):
    """A sink cannot write or commit now. A later try may succeed."""


class FencedSinkError(SinkError, SuppressRestartsError):
    """Raised when another job has replaced this job as the writer. This job fails for good."""


@dataclass
class WriterContext:
    """Tells a writer about its environment: its subtask, its job and the clock."""

    subtask_index: int
    parallelism: int
    attempt_number: int
    """Number of the subtask's attempt, 0 for the first.
    Several attempts may run for a moment, if an attempt does not know yet that it is over."""
    time_service: ProcessingTimeService
    """The clock, and callbacks between two batches."""
    current_watermark: int = MIN_TIMESTAMP
    type_info: TypeInformation | None = None
    """Declared type of the records. None: unknown."""
    job_id: str = ""
    """32 hexadecimal digits. A job started from a savepoint has another id."""
    operator_id: str = ""
    """Id of the writers' operator, 32 hexadecimal digits; constant if the sink has a uid."""
    restored_checkpoint_id: int = 0
    """Id of the checkpoint that the task was restored from, even if the writer has no state in it.
    0: the task begins anew, and committables of earlier attempts will never be committed, unless
    the job takes no checkpoints."""
    stages: StageLocations | None = None
    """Locations of the job's Spark stages. None: the task does not run on a cluster."""


@dataclass(frozen=True)
class CommitterContext:
    """Tells a committer about its environment. Fields are those of :class:`WriterContext`."""

    subtask_index: int
    parallelism: int
    attempt_number: int
    job_id: str = ""
    operator_id: str = ""
    """Operator id of the committers; the sink's writers have another id."""
    restored_checkpoint_id: int = 0
    stages: StageLocations | None = None


class SinkWriter(ABC, Generic[CommitT]):
    """Writes the records of one subtask. Called only by the task's thread."""

    @abstractmethod
    def write(self, block: Block) -> None:
        """Write a batch of records, or keep it to be written later."""

    def write_columns(self, columns: Columns) -> None:
        """Write a batch of columns. By default it is converted to rows."""
        self.write(columns.to_block())

    def prepare_commit(self, end_of_input: bool) -> Sequence[CommitT]:
        """Finish what was written until now and return the committables.
        When the method returns, the data must be stored durably, and must not be visible yet."""
        return ()

    def close(self) -> None:
        """Release resources, also after a failure. Data that was not prepared is lost."""
        return


class StatefulSinkWriter(SinkWriter[CommitT], Generic[CommitT, StateT]):
    """A writer with state that survives restarts."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[StateT]:
        """Return the state for :meth:`Sink.restore_writer`.
        Called right after ``prepare_commit`` for the same checkpoint. With another parallelism each
        element goes to one of the writers."""


class CommitOutcome(Enum):
    """How a commit has ended, as the committer has reported it to the :class:`CommitRequest`."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    RETRY = "to be retried"
    LOST = "can never be committed"
    FAILED = "failed"


class CommitRequest(Generic[CommitT]):
    """A committable to commit. If the commit does not succeed, the committer reports this with one
    of the methods below. A request without a report counts as committed."""

    __slots__ = ("_number_of_retries", "checkpoint_id", "committable", "outcome", "reason")

    def __init__(self, committable: CommitT, checkpoint_id: int = 0) -> None:
        self.committable = committable
        self.checkpoint_id = checkpoint_id
        """Id of the checkpoint that the committable was prepared for, also in retries.
        0: the job takes no checkpoints. A committable that was prepared for an aborted checkpoint
        keeps this checkpoint's id, and is committed with a later one."""
        self._number_of_retries = 0
        self.outcome = CommitOutcome.COMMITTED
        self.reason: BaseException | None = None

    @property
    def number_of_retries(self) -> int:
        """Number of retries of this commit so far. 0: it is tried for the first time."""
        return self._number_of_retries

    def retry_later(self, reason: BaseException) -> None:
        """Report that the commit failed and may succeed later.
        The job continues. After :data:`~flinkray.streaming.sinks.sink_operators.MOST_RETRIES`
        failed retries the task fails."""
        self.outcome, self.reason = CommitOutcome.RETRY, reason

    def update_and_retry_later(self, committable: CommitT, reason: BaseException) -> None:
        """Report that a part of the commit was done, and retry the rest later.
        *committable*: the rest, which replaces the committable."""
        self.committable = committable
        self.retry_later(reason)

    def signal_already_committed(self) -> None:
        """Report that an earlier attempt has already committed the committable.
        The job continues."""
        self.outcome = CommitOutcome.ALREADY_COMMITTED

    def signal_failed_with_known_reason(self, reason: BaseException) -> None:
        """Report that the commit can never succeed, for example because it has expired.
        The job continues without it. The loss is logged and counted (``failedCommittables``)."""
        self.outcome, self.reason = CommitOutcome.LOST, reason

    def signal_failed_with_unknown_reason(self, reason: BaseException) -> None:
        """Report that the commit failed and that a retry is useless until somebody fixes the cause.
        The task fails. The committable stays in the checkpoint from which the job restarts."""
        self.outcome, self.reason = CommitOutcome.FAILED, reason

    def begin_attempt(self) -> None:
        """Set the outcome to COMMITTED, which it stays unless the committer reports another one,
        and count a retry if the last outcome was RETRY. Called before each commit."""
        if self.outcome is CommitOutcome.RETRY:
            self._number_of_retries += 1
        self.outcome, self.reason = CommitOutcome.COMMITTED, None


class Committer(ABC, Generic[CommitT]):
    """Makes data that writers have stored visible, by committing their committables."""

    @abstractmethod
    def commit(self, requests: Sequence[CommitRequest[CommitT]]) -> None:
        """Commit each request, or report its outcome to the request.
        This blocks the task, so slow work is better retried later. An exception fails the task:
        none of the requests counts as committed, and all are repeated after the restart."""

    def close(self) -> None:
        """Release resources."""
        return


class Committed(NamedTuple):
    """An entry of a savepoint: a committable that this job has committed already. A job that starts
    from the savepoint has to commit it again."""

    checkpoint_id: int
    committable: Any


class CommitterWithFiles(Committer[CommitT]):
    """A committer whose committables are files of the job. Savepoints hold copies of the files."""

    @abstractmethod
    def not_done(self) -> list[Committed]:
        """Return committables that were committed, but whose data was not read yet where it was
        committed. A savepoint keeps them together with pending committables."""

    @abstractmethod
    def files_of(self, committables: Sequence[CommitT]) -> Iterator[StateFile]:
        """Yield the files of *committables*, for a savepoint. They stay until
        :meth:`delete_done`."""

    @abstractmethod
    def restore_files(self, files: Mapping[str, StateFile]) -> None:
        """Take the files of the savepoint from which the job starts, by name.
        Called before anything is committed."""

    @abstractmethod
    def delete_done(self) -> None:
        """Delete the files of data that was committed and that its destination has read. Called
        when a checkpoint is complete."""


class Sink(ABC, Generic[T, CommitT]):
    """Target of a stream's records of type T, for ``DataStream.sink_to``.

    The sink is pickled. So its writers and committers have to create objects that cannot be
    pickled, such as connections.

    An exactly-once sink writes in two phases. Its *writers* store records invisibly and emit
    *committables*. Its *committers*, operators behind the writers, make the records visible:

    * If the job takes checkpoints, :meth:`SinkWriter.prepare_commit` is called right before a
      checkpoint's barrier. Its committables are part of that checkpoint, and are committed as soon
      as this checkpoint or a later one is complete. Tasks whose input has ended stay until a
      checkpoint that covers the end is complete, and commit the rest with it.
    * In batch mode, and in one process without checkpoints, each writer's ``prepare_commit`` is
      called at the end of the input. When all writers have *finished*, one committer gets all
      committables, logs them in the cluster's storage, and commits.

    In both cases a sink may rely on this:

    * A committable is committed only if no rerun of the job will write its records again. If its
      checkpoint is aborted, it is committed with a later one. If the job goes back to an earlier
      checkpoint, it is never committed, and its data may be removed.
    * A committable is committed at least once, whatever process dies. So commits must be
      idempotent, even if an earlier attempt that does not know of its end commits at the same time.
    * A writer gets each record after its restored state once. After
      ``prepare_commit(end_of_input=True)`` only ``snapshot_state`` and ``close`` are called.
    * After a restart, even with another parallelism, exactly one committer has each committable of
      the checkpoint, and exactly one writer has each element of the writers' state. Committers
      commit when they are opened, which may be before or after the writers are opened.
    * Committables of one writer are committed in order, unless one is retried or the parallelism
      was changed. With :attr:`Sink.commits_in_order` a single committer commits in the order of
      checkpoints, and within a checkpoint in the order of subtasks.
    * Committables of a savepoint are committed with the next checkpoint, and again by every job
      that starts from the savepoint.
    * Committables and states are sent and stored like other values: plain values, named tuples and
      dataclasses by their fields, other objects pickled.

    The task's thread makes all calls. An exception of a writer or committer fails the task.
    """

    shared: bool = False
    """Whether the sink lives in the client's process: local runs do not copy it."""

    commits_in_order: bool = False
    """Whether a single committer serves all writers and commits checkpoint by checkpoint.
    The order holds even if a committable has to be retried."""

    @abstractmethod
    def create_writer(self, context: WriterContext) -> SinkWriter[CommitT]:
        """Create the writer of one subtask."""

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter[CommitT]:
        """Create the writer of one subtask after a restart.
        For sinks with a :class:`StatefulSinkWriter`.

        Args:
            states: results of ``snapshot_state`` of earlier writers, in the order of their
                subtasks. At least one.
        """
        raise SinkError(
            f"{type(self).__name__} has state of writers in the checkpoint, and no restore_writer"
        )

    @property
    def has_committer(self) -> bool:
        """Whether the sink writes in two phases. Known before writers and committers exist."""
        return type(self).create_committer is not Sink.create_committer

    def create_committer(self, context: CommitterContext) -> Committer[CommitT]:
        """Create the committer of one subtask. A sink without this method has no commit phase."""
        raise SinkError(f"{type(self).__name__} has no committer")


class DeliveryGuarantee(Enum):
    """Says whether a sink may lose or repeat records when a job fails and is restarted."""

    EXACTLY_ONCE = 0
    """Each record is delivered exactly once."""
    AT_LEAST_ONCE = 1
    """Each record is delivered, perhaps several times."""
    NONE = 2
    """Records may be lost or duplicated."""
