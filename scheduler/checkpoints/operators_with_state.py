"""What a checkpoint says of its operators, without reading their state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.checkpoint.metadata import CheckpointedOperator, CheckpointMetadata
from flinkray.core.ids import JobVertexID
from flinkray.scheduler.graph.job_graph import JobVertex
from flinkray.scheduler.graph.vertex_operator import VertexOperator


def has_state(operator: CheckpointedOperator) -> bool:
    """Of itself, or of its coordinator."""
    return operator.coordinator is not None or any(not s.state.is_empty for s in operator.subtasks)


def has_keyed_state(operator: CheckpointedOperator) -> bool:
    """Then its max parallelism is that of whoever goes on from it."""
    return any(subtask.state.keyed_state for subtask in operator.subtasks)


def operators_by_own_id(metadata: CheckpointMetadata) -> dict[str, CheckpointedOperator]:
    """As :func:`states_of` looks for them."""
    return {operator.operator_id: operator for operator in metadata.operators}


def states_of(
    operators: Iterable[VertexOperator], states: Mapping[str, CheckpointedOperator]
) -> tuple[CheckpointedOperator | None, ...]:
    """What there is of each: by the id that the author has set, if there is state of that, else by
    the other."""
    return tuple(
        states.get(operator.uid_hash or operator.operator_id, states.get(operator.operator_id))
        for operator in operators
    )


def key_groups_of(
    metadata: CheckpointMetadata, vertices: Iterable[JobVertex]
) -> dict[JobVertexID, int]:
    """Of the vertices that have keyed state there: into how many parts it is divided."""
    states = operators_by_own_id(metadata)
    found = {}
    for vertex in vertices:
        keyed = (s for s in states_of(vertex.operators, states) if s and has_keyed_state(s))
        first = next(keyed, None)
        if first is not None:
            found[vertex.vertex_id] = first.max_parallelism
    return found


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


def state_locations(metadata: CheckpointMetadata) -> list[StateLocation]:
    """Where all of a checkpoint's state is."""
    locations: list[StateLocation] = []
    for operator in metadata.operators:
        if operator.coordinator is not None:
            locations.append(operator.coordinator)
        for subtask in operator.subtasks:
            locations += subtask.state.locations()
    return locations
