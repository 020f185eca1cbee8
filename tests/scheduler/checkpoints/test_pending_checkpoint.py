"""A checkpoint that is being taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flinkray.checkpoint.handles import (
    ChannelStateHandle,
    InlineState,
    OperatorSubtaskState,
    TaskState,
)
from flinkray.checkpoint.metadata import (
    CheckpointedEdge,
    CheckpointedSubtask,
    MasterState,
    SnapshotKind,
)
from flinkray.core.errors import IllegalTransitionError
from flinkray.scheduler.checkpoints.pending_checkpoint import (
    Acknowledgement,
    PendingCheckpoint,
    PendingPhase,
)
from flinkray.scheduler.checkpoints.plan import calculate_plan
from flinkray.scheduler.checkpoints.trigger_decisions import CheckpointRequest
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.builders import JOB
from tests.scheduler.checkpoints.checkpointed import UNION, file, named, written
from tests.scheduler.checkpoints.job_with_checkpoints import MANUAL, Topology, state

SUCCESS, DUPLICATE = Acknowledgement.SUCCESS, Acknowledgement.DUPLICATE
UNKNOWN, OVER = Acknowledgement.UNKNOWN, Acknowledgement.OVER


def pending(topology: Topology, coordinators: tuple[str, ...] = ()) -> PendingCheckpoint:
    """Tasks have been told."""
    made = PendingCheckpoint(
        JOB,
        7,
        CheckpointRequest(1, MANUAL),
        calculate_plan(topology, allows_finished=True),
        number=1,
        begun_at=0.0,
        timestamp=1000,
        directory="chk-7",
        coordinators=coordinators,
    )
    made.phase = PendingPhase.TASKS
    return made


def test_checkpoint_is_complete_once_tasks_and_coordinators_have_acknowledged() -> None:
    """CP-26"""
    topology = Topology()
    first, second = topology.attempts
    checkpoint = pending(topology, ("a",))
    of_hooks = (MasterState("h", b"m"), MasterState("i", b"n"))
    steps: list[Callable[[], Acknowledgement]] = [
        lambda: checkpoint.acknowledge_task(first, None),
        lambda: checkpoint.acknowledge_coordinator("a", InlineState(b"c"), of_hooks),
        lambda: checkpoint.acknowledge_task(second, state("b", "f")),
    ]
    for step in steps:
        assert not checkpoint.is_fully_acknowledged
        assert step() is SUCCESS
    assert checkpoint.is_fully_acknowledged
    metadata = checkpoint.finalize()
    assert (metadata.checkpoint_id, metadata.timestamp) == (7, 1000)
    assert metadata.kind is SnapshotKind.CHECKPOINT
    assert metadata.master_states == of_hooks
    a, b = metadata.operators
    assert (a.coordinator, a.subtasks) == (InlineState(b"c"), ())
    assert b.subtasks == (CheckpointedSubtask(0, state("b", "f").operators["b"]),)
    assert (b.operator_id, b.parallelism, b.max_parallelism) == ("b", 1, 128)


@pytest.mark.parametrize(
    ("of", "in_flight"),
    [
        ("a", OperatorSubtaskState(result_subpartitions=(ChannelStateHandle(1, 0, file("f")),))),
        ("b", OperatorSubtaskState(input_channels=(ChannelStateHandle(3, 0, file("f")),))),
    ],
)
def test_metadata_of_a_checkpoint_names_the_edges_with_data_in_flight(
    of: str, in_flight: OperatorSubtaskState
) -> None:
    """SA-12: in the result of the producer or in the input gate of the consumer."""
    topology = Topology()
    edges = [CheckpointedEdge("a", n, "b", 2 + n, "a", None, n, "HASH") for n in range(3)]
    topology.vertices[1].edges = tuple(edges)
    checkpoint = pending(topology)
    for vertex, attempt in zip("ab", topology.attempts, strict=True):
        given = TaskState({vertex: in_flight}) if vertex == of else None
        checkpoint.acknowledge_task(attempt, given)
    assert checkpoint.finalize().edges == (edges[1],)


def test_repeated_acknowledgement_is_a_duplicate_and_that_of_another_task_is_unknown() -> None:
    """CP-26"""
    topology = Topology()
    checkpoint = pending(topology, ("a",))
    assert [checkpoint.acknowledge_coordinator(o, None) for o in "aab"] == [
        SUCCESS,
        DUPLICATE,
        UNKNOWN,
    ]
    other = Topology()
    other.vertices[0].attempts[0] = 1
    tasks = (topology.attempts[0], topology.attempts[0], other.attempts[0])
    given = [checkpoint.acknowledge_task(task, None) for task in tasks]
    assert given == [SUCCESS, DUPLICATE, UNKNOWN]


def test_task_that_was_not_triggered_yet_cannot_acknowledge() -> None:
    """CP-32"""
    checkpoint = pending(Topology())
    checkpoint.phase = PendingPhase.COORDINATORS
    assert checkpoint.acknowledge_task(Topology().attempts[0], None) is UNKNOWN


def test_unacknowledged_or_aborted_checkpoint_cannot_be_finalized() -> None:
    """CP-24"""
    topology = Topology()
    checkpoint = pending(topology)
    checkpoint.acknowledge_task(topology.attempts[0], None)
    with pytest.raises(IllegalTransitionError, match="1 tasks have not acknowledged"):
        checkpoint.finalize()
    checkpoint.acknowledge_task(topology.attempts[1], None)
    checkpoint.abort()
    with pytest.raises(IllegalTransitionError, match="it is over"):
        checkpoint.finalize()


def test_aborting_a_checkpoint_twice_returns_its_received_state_once() -> None:
    """CP-24"""
    topology = Topology()
    checkpoint = pending(topology, ("a",))
    checkpoint.acknowledge_task(topology.attempts[0], state("a", "f", shared=["g"]))
    checkpoint.acknowledge_task(topology.attempts[1], None)
    checkpoint.acknowledge_coordinator("a", file("c"))
    assert checkpoint.abort() == [file("c"), file("f"), file("g")]
    assert checkpoint.abort() == []
    assert checkpoint.acknowledge_task(topology.attempts[0], None) is OVER
    assert checkpoint.acknowledge_coordinator("a", None) is OVER


def test_checkpoint_metadata_marks_finished_subtasks() -> None:
    """CP-40: subtasks that had finished before, and subtasks that acknowledge as finished."""
    topology = Topology(2, 2)
    topology.vertices[0].states[1] = ExecutionState.FINISHED
    checkpoint = pending(topology)
    a0, _, b0, b1 = topology.attempts
    checkpoint.acknowledge_task(a0, None)
    checkpoint.acknowledge_task(b0, TaskState({}, is_finished=True))
    checkpoint.acknowledge_task(b1, TaskState({}, is_finished=True))
    a, b = checkpoint.finalize().operators
    assert [(s.subtask_index, s.is_finished) for s in a.subtasks] == [(1, True)]
    assert [(s.subtask_index, s.is_finished) for s in b.subtasks] == [(0, True), (1, True)]
    assert (a.is_finished, b.is_finished) == (False, True)


@pytest.mark.parametrize("finished", [False, True])
def test_checkpoint_cannot_complete_if_some_subtasks_with_union_state_have_finished(
    finished: bool,
) -> None:
    """CP-40"""
    topology = Topology(2, 1)
    if finished:
        topology.vertices[0].states[1] = ExecutionState.FINISHED
    checkpoint = pending(topology)
    union = OperatorSubtaskState((written("f", named("u", 0, mode=UNION)),))
    checkpoint.acknowledge_task(topology.attempts[0], TaskState({"a": union}))
    checkpoint.acknowledge_task(topology.attempts[2], state("b", "g"))
    lost = checkpoint.lost_by_finished_tasks()
    assert lost is None if not finished else lost is not None
    if lost is not None:
        assert "'a'" in lost
