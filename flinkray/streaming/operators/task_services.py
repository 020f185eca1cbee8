"""What the runner of a task offers to the task's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.source import StageLocations

if TYPE_CHECKING:
    import pyarrow as pa

    from flinkray.core.ids import IntermediateDataSetID
    from flinkray.streaming.functions.models import ModelDescriptor
    from flinkray.streaming.operators.model_replicas import ModelReplicas


class CommitLog(Protocol):
    """Log of the committables that are about to be committed, for jobs without checkpoints, in
    which one committer commits for all writers. The log exists until the job has ended."""

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        """Log the committables and return them.
        If an earlier call, perhaps of an earlier attempt, has logged some, return these instead.

        Raises:
            OSError: the storage fails.
        """


class UnloggedCommits(CommitLog):
    """A commit log that stores nothing, for runs in which no part of the job is ever repeated."""

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        return committables


class LookUpRoom(Protocol):
    """Interface with which a look-up keeps the number of records that wait for its table small: it
    asks the sources to pause and to go on. One object serves one subtask."""

    most: int
    """Number of waiting records from which on :meth:`full` is called."""

    def full(self) -> None:
        """Ask the sources to send no more records. Raises OSError if the request cannot be sent."""

    def free(self) -> None:
        """Ask the sources to send records again: the table has ended, and no record waits.

        Raises:
            OSError: the request cannot be sent.
        """


class EndlessRoom(LookUpRoom):
    """A :class:`LookUpRoom` without a limit, for programs whose sources cannot be made to wait."""

    most = 2**63

    def full(self) -> None:
        """Do nothing: the sources cannot be made to wait."""

    def free(self) -> None:
        """Do nothing: the sources were never asked to wait."""


class ResultsReceiver(Protocol):
    """Interface of the buffer that keeps collected results until the client takes them."""

    def begin(self) -> None:
        """Tell the client that results will follow."""

    def put(self, values: Sequence[Any]) -> None:
        """Add results. Called by the task's thread."""

    def capture(self, checkpoint_id: int) -> Sequence[tuple[int, bytes]]:
        """Return the results that the client has not read yet, in numbered pieces."""

    def restore(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Restore the captured results of an earlier attempt. Called before all other methods."""

    def completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete: from now on no earlier state is restored, so results
        before this checkpoint are never added again by :meth:`put`."""


class TaskServices:
    """What the runner of a task offers to the task's operators. This class is for a run without a
    cluster; a cluster's tasks override the methods."""

    stages: StageLocations | None = None
    """Locations of the job's Spark stages. None: the task does not run on a cluster."""
    write_lines: Callable[[str], None] | None = None
    """Writes the lines of print sinks. None: print sinks write to standard output."""
    devices: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Ids of the accelerators that the task may use, by the name of the resource."""

    def commit_log(self, operator_id: str) -> CommitLog:
        """Return the log of a committer that commits at the end of a batch job."""
        return UnloggedCommits()

    def look_up_room(self, operator_id: str) -> LookUpRoom:
        """Return the object with which the look-up *operator_id* limits its waiting records."""
        return EndlessRoom()

    def results(self) -> ResultsReceiver:
        """Return the buffer for results that the client collects."""
        raise StreamError("no client collects the results of this task")

    def file_writer(
        self, data_set_id: IntermediateDataSetID
    ) -> Callable[[pa.RecordBatch | pa.Table], None] | None:
        """Return the function that writes rows to the task's part of a file result. It blocks.
        None: nobody reads the result."""
        return None

    def replicas(
        self,
        descriptor: ModelDescriptor,
        operator_id: str,
        on_failed: Callable[[BaseException], None],
    ) -> ModelReplicas:
        """Return the replicas of a model for the operator *operator_id*.
        *on_failed*: called with an exception that ends all calls, in any thread."""
        from flinkray.streaming.operators.model_replicas import LocalReplicas

        return LocalReplicas(descriptor, on_failed)
