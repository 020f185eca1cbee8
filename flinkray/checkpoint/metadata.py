"""The contents of a completed checkpoint's ``_metadata`` file, as Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from flinkray.checkpoint.handles import FileState, OperatorSubtaskState, StateLocation
from flinkray.core.ids import JobID
from flinkray.core.message import message, register
from flinkray.core.schema import stored, with_defaults


@stored("checkpoint.SnapshotKind")
@register
class SnapshotKind(Enum):
    """Says who owns a snapshot and decides when it is deleted: job (checkpoint) or user
    (savepoint)."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


@stored("checkpoint.CheckpointedSubtask")
@message
class CheckpointedSubtask:
    """Says what a checkpoint knows of one subtask of an operator: its state, and whether it had
    read all its input (*is_finished*)."""

    subtask_index: int
    state: OperatorSubtaskState
    is_finished: bool = False


@stored("checkpoint.CheckpointedOperator")
@message
class CheckpointedOperator:
    """An operator in a checkpoint. Subtasks that are not listed were running and had no state."""

    operator_id: str
    name: str
    uid: str | None
    """Uid that the program's author has set for the operator. None: no uid is set."""
    parallelism: int
    max_parallelism: int
    subtasks: tuple[CheckpointedSubtask, ...] = ()
    """The subtasks, ordered by index."""
    coordinator: StateLocation | None = None
    """State of the operator's coordinator (for a source: its enumerator); None without state."""

    @property
    def is_finished(self) -> bool:
        """Whether all subtasks had reached the end of their input when the checkpoint was taken."""
        return sum(subtask.is_finished for subtask in self.subtasks) == self.parallelism

    def files(self) -> Iterator[FileState]:
        """Yield the files with state of the operator, of its subtasks and of its coordinator."""
        states = [location for subtask in self.subtasks for location in subtask.state.locations()]
        for location in (self.coordinator, *states):
            if isinstance(location, FileState):
                yield location


@stored("checkpoint.MasterState")
@message
class MasterState:
    """State that a hook of a source stores in a checkpoint
    (:class:`~flinkray.streaming.sources.master_hook.MasterTriggerRestoreHook`)."""

    hook_id: str
    data: bytes


@stored("checkpoint.CheckpointedEdge")
@message
class CheckpointedEdge:
    """A connection over which one operator sends records to another.

    A :class:`ChannelStateHandle` identifies its connection by a number. In the state of the writer
    this is the number of the *result* within the writing chain of operators, in the state of the
    reader the number of the *gate* within the reading chain.
    """

    writer: str
    """Id of the first operator of the chain that writes."""
    result: int
    reader: str
    """Id of the first operator of the chain that reads."""
    gate: int
    operator_id: str
    """Id of the operator whose output the edge carries.

    The operator can be anywhere in the writing chain.
    """
    output_tag: str | None
    """Name of the side output that the edge carries. None: the main output."""
    input_index: int
    """Number of the input of the reading operator."""
    partitioner: str


@stored("checkpoint.CheckpointMetadata", version=2, migrations={1: with_defaults})
@message
class CheckpointMetadata:
    """Says what belongs to a checkpoint: the operators with handles of their state, the states of
    hooks, and the connections with data in flight. The job is restored from it."""

    job_id: JobID
    checkpoint_id: int
    timestamp: int
    """Time at which the checkpoint was triggered, in milliseconds since 1970."""
    kind: SnapshotKind
    operators: tuple[CheckpointedOperator, ...]
    master_states: tuple[MasterState, ...] = ()
    flinkray_version: str = ""
    """Version of flinkray that has written the metadata."""
    edges: tuple[CheckpointedEdge, ...] = ()
    """Connections that have in-flight data in this checkpoint."""
