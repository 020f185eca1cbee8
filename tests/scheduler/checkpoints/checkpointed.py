"""Short ways to write state handles, checkpoints, and the jobs that are restored from them."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.checkpoint.handles import (
    FileState,
    KeyedStateHandle,
    KeyedStatePart,
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
)
from flinkray.checkpoint.metadata import (
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    SnapshotKind,
)
from flinkray.core.key_group_ranges import key_group_range
from flinkray.scheduler.checkpoints.state_assignment import RestoredVertex
from flinkray.scheduler.graph.job_graph import DistributionPattern, VertexOperator
from tests.scheduler.builders import JOB
from tests.scheduler.graphs import vertex_id

LIST = OperatorStateMode.SPLIT_DISTRIBUTE
UNION = OperatorStateMode.UNION
BROADCAST = OperatorStateMode.BROADCAST


def file(path: str, size: int = 1) -> FileState:
    return FileState(path, size)


def named(name: str, *offsets: int, mode: OperatorStateMode = LIST) -> NamedOperatorState:
    return NamedOperatorState(name, mode, offsets)


def written(path: str, *states: NamedOperatorState) -> OperatorStateHandle:
    return OperatorStateHandle(file(path), states)


def keyed(path: str, first: int, last: int) -> KeyedStateHandle:
    return KeyedStateHandle(first, last, (KeyedStatePart(file(path), True),))


def keyed_by_range(name: str, max_parallelism: int, parallelism: int) -> list[OperatorSubtaskState]:
    """One whole snapshot for each subtask."""
    ranges = (key_group_range(max_parallelism, parallelism, i) for i in range(parallelism))
    return [
        OperatorSubtaskState(keyed_state=(keyed(f"{name}-{i}", *groups),))
        for i, groups in enumerate(ranges)
    ]


def operator(
    name: str,
    states: Iterable[OperatorSubtaskState],
    *,
    uid: str | None = None,
    max_parallelism: int = 128,
    finished: Iterable[int] = (),
) -> CheckpointedOperator:
    """Its id is its name."""
    states = tuple(states)
    finished = frozenset(finished)
    subtasks = tuple(
        CheckpointedSubtask(index, state, index in finished)
        for index, state in enumerate(states)
        if not state.is_empty or index in finished
    )
    return CheckpointedOperator(name, name, uid, len(states), max_parallelism, subtasks)


def metadata(*operators: CheckpointedOperator, checkpoint_id: int = 1) -> CheckpointMetadata:
    return CheckpointMetadata(JOB, checkpoint_id, 0, SnapshotKind.CHECKPOINT, operators)


def vertex(
    name: str,
    parallelism: int,
    *operators: VertexOperator,
    max_parallelism: int | None = None,
    inputs: Iterable[str] = (),
    pattern: DistributionPattern = DistributionPattern.ALL_TO_ALL,
) -> RestoredVertex:
    """With one operator of its name, if no others are given; max parallelism 128 is derived."""
    return RestoredVertex(
        vertex_id(name),
        name,
        parallelism,
        max_parallelism or 128,
        max_parallelism is not None,
        operators or (VertexOperator(name, name),),
        tuple((vertex_id(each), pattern) for each in inputs),
    )
