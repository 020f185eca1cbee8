"""What a checkpoint says of its operators, without reading their state."""

from __future__ import annotations

from flinkray.checkpoint.handles import FileState
from flinkray.checkpoint.metadata import CheckpointedOperator, CheckpointMetadata


def has_state(operator: CheckpointedOperator) -> bool:
    """Of itself, or of its coordinator."""
    return operator.coordinator is not None or any(not s.state.is_empty for s in operator.subtasks)


def has_data_in_flight(metadata: CheckpointMetadata) -> bool:
    """Whether it has records that were between operators: it can go on with the same parallelism
    only."""
    return any(
        subtask.state.input_channels or subtask.state.result_subpartitions
        for operator in metadata.operators
        for subtask in operator.subtasks
    )


def operators_without_uid(metadata: CheckpointMetadata) -> tuple[str, ...]:
    """The names of those with state whose author has set no uid: they are known by their place in
    the program, so that another version of it may not find their state (SA-13)."""
    without = (o.name for o in metadata.operators if o.uid is None and has_state(o))
    return tuple(dict.fromkeys(without))


def shared_files(metadata: CheckpointMetadata) -> list[FileState]:
    """The files of a checkpoint that later ones may refer to."""
    return [
        file
        for operator in metadata.operators
        for subtask in operator.subtasks
        for file in subtask.state.shared_files()
    ]
