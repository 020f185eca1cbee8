"""Answers questions about a checkpoint's operators from the metadata, without reading state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.metadata import CheckpointedOperator, CheckpointMetadata
from flinkray.core.ids import JobVertexID
from flinkray.scheduler.graph.job_graph import JobVertex, VertexOperator


def has_state(operator: CheckpointedOperator) -> bool:
    """Return whether the operator or its coordinator has state."""
    return operator.coordinator is not None or any(not s.state.is_empty for s in operator.subtasks)


def has_keyed_state(operator: CheckpointedOperator) -> bool:
    """Return whether the operator has keyed state. If so, a job that is restored from the state
    must use the operator's max parallelism."""
    return any(subtask.state.keyed_state for subtask in operator.subtasks)


def operators_by_own_id(metadata: CheckpointMetadata) -> dict[str, CheckpointedOperator]:
    """Return operator id -> operator of the checkpoint, which :func:`states_of` takes as
    *states*."""
    return {operator.operator_id: operator for operator in metadata.operators}


def states_of(
    operators: Iterable[VertexOperator], states: Mapping[str, CheckpointedOperator]
) -> tuple[CheckpointedOperator | None, ...]:
    """Return the checkpointed state of each operator; None if the operator has none. *states*:
    operator id -> state. The uid hash that the author has set is looked up first, then the
    generated id."""
    return tuple(
        states.get(operator.uid_hash or operator.operator_id, states.get(operator.operator_id))
        for operator in operators
    )


def key_groups_of(
    metadata: CheckpointMetadata, vertices: Iterable[JobVertex]
) -> dict[JobVertexID, int]:
    """Return the number of key groups of each vertex that has keyed state in the checkpoint."""
    states = operators_by_own_id(metadata)
    found = {}
    for vertex in vertices:
        keyed = (s for s in states_of(vertex.operators, states) if s and has_keyed_state(s))
        first = next(keyed, None)
        if first is not None:
            found[vertex.vertex_id] = first.max_parallelism
    return found


def has_data_in_flight(metadata: CheckpointMetadata) -> bool:
    """Return whether the checkpoint has in-flight records. Such a checkpoint can be restored with
    the same parallelism only."""
    return any(
        subtask.state.input_channels or subtask.state.result_subpartitions
        for operator in metadata.operators
        for subtask in operator.subtasks
    )


def operators_without_uid(metadata: CheckpointMetadata) -> tuple[str, ...]:
    """Return the names of operators that have state but no uid. Such operators are identified by
    their position in the program, so another version of the program may not find their state
    (SA-13)."""
    without = (o.name for o in metadata.operators if o.uid is None and has_state(o))
    return tuple(dict.fromkeys(without))


def shared_files(metadata: CheckpointMetadata) -> list[FileState]:
    """Return the checkpoint's files that later checkpoints may refer to instead of writing them
    again."""
    return [
        file
        for operator in metadata.operators
        for subtask in operator.subtasks
        for file in subtask.state.shared_files()
    ]


def state_locations(metadata: CheckpointMetadata) -> list[StateLocation]:
    """Return the locations of all state of a checkpoint."""
    locations: list[StateLocation] = []
    for operator in metadata.operators:
        if operator.coordinator is not None:
            locations.append(operator.coordinator)
        for subtask in operator.subtasks:
            locations += subtask.state.locations()
    return locations
