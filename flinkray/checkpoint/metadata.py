"""What a completed checkpoint is: the contents of its ``_metadata``."""

from __future__ import annotations

from enum import Enum

from flinkray.checkpoint.handles import OperatorSubtaskState, StateLocation
from flinkray.core.ids import JobID
from flinkray.core.message import message, register
from flinkray.core.schema import stored, with_defaults


@stored("checkpoint.SnapshotKind")
@register
class SnapshotKind(Enum):
    """Who owns a snapshot: the job, which discards it in time, or its user."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


@stored("checkpoint.CheckpointedSubtask")
@message
class CheckpointedSubtask:
    """A subtask of an operator that has state, or has finished."""

    subtask_index: int
    state: OperatorSubtaskState
    is_finished: bool = False


@stored("checkpoint.CheckpointedOperator")
@message
class CheckpointedOperator:
    """An operator; subtasks that are not listed had no state and were running."""

    operator_id: str
    name: str
    uid: str | None
    """As the program's author has set it."""
    parallelism: int
    max_parallelism: int
    subtasks: tuple[CheckpointedSubtask, ...] = ()
    """In order of their index."""
    coordinator: StateLocation | None = None
    """State of its coordinator: of a source, its enumerator."""

    @property
    def is_finished(self) -> bool:
        """Whether all subtasks had come to the end of their data."""
        return sum(subtask.is_finished for subtask in self.subtasks) == self.parallelism


@stored("checkpoint.MasterState")
@message
class MasterState:
    """What a master hook has given."""

    hook_id: str
    data: bytes


@stored("checkpoint.CheckpointedEdge")
@message
class CheckpointedEdge:
    """The way of records from one operator to another.

    Handles know it by the number of the *result* among those of the chain of operators that writes
    it, and by the number of the *gate* among those of the chain that reads it.
    """

    writer: str
    """Id of the first operator of the chain that writes."""
    result: int
    reader: str
    """Id of the first operator of the chain that reads."""
    gate: int
    operator_id: str
    """Of the operator, anywhere in the chain that writes, whose output it is."""
    output_tag: str | None
    """Of a side output."""
    input_index: int
    """Which input of the reading operator it feeds."""
    partitioner: str


@stored("checkpoint.CheckpointMetadata", version=2, migrations={1: with_defaults})
@message
class CheckpointMetadata:
    """Everything that a job is restored from."""

    job_id: JobID
    checkpoint_id: int
    timestamp: int
    """When it was triggered: milliseconds since 1970."""
    kind: SnapshotKind
    operators: tuple[CheckpointedOperator, ...]
    master_states: tuple[MasterState, ...] = ()
    flinkray_version: str = ""
    """That has written it."""
    edges: tuple[CheckpointedEdge, ...] = ()
    """Those that data in flight is of."""
