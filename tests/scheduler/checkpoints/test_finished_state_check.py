"""Going on from a checkpoint in which operators are finished, with a changed job."""

from __future__ import annotations

import pytest

from flinkray.checkpoint.handles import OperatorSubtaskState, TaskState
from flinkray.checkpoint.metadata import CheckpointedOperator
from flinkray.scheduler.checkpoints.failures import StateRestoreError
from flinkray.scheduler.checkpoints.state_assignment import RestoredVertex, StateAssignment
from flinkray.scheduler.graph.job_graph import DistributionPattern, VertexOperator
from tests.scheduler.builders import JOB
from tests.scheduler.checkpoints.checkpointed import metadata, operator, vertex
from tests.scheduler.graphs import ALL_TO_ALL, POINTWISE, vertex_id

TWO = [OperatorSubtaskState()] * 2
FULLY = operator("f", TWO, finished=(0, 1))
PARTLY = operator("p", TWO, finished=(1,))
RUNNING = operator("r", TWO)


def assign(operators: list[CheckpointedOperator], *vertices: RestoredVertex) -> StateAssignment:
    return StateAssignment(JOB, metadata(*operators), vertices)


def refusal(operators: list[CheckpointedOperator], *vertices: RestoredVertex) -> str:
    with pytest.raises(StateRestoreError) as error:
        assign(operators, *vertices)
    return str(error.value)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_finished_operator_stays_finished_when_restored_with_any_parallelism(
    parallelism: int,
) -> None:
    """CP-40"""
    assignment = assign([FULLY, PARTLY], vertex("f", parallelism), vertex("p", parallelism))
    for subtask in range(parallelism):
        assert assignment.of_subtask(vertex_id("f"), subtask) == TaskState({}, is_finished=True)
        assert assignment.of_subtask(vertex_id("p"), subtask) is None


@pytest.mark.parametrize("before", ["r", "p", "new"])
def test_restore_is_refused_if_an_unfinished_operator_precedes_a_finished_one(before: str) -> None:
    """CP-40"""
    text = refusal([FULLY, PARTLY, RUNNING], vertex(before, 2), vertex("f", 2, inputs=[before]))
    assert f"'f' is finished in the checkpoint and would read '{before}'" in text


def test_restore_is_allowed_if_a_finished_operator_precedes_any_other() -> None:
    """CP-40"""
    after = [vertex(name, 2, inputs="f") for name in ("r", "p", "new")]
    assign([FULLY, PARTLY, RUNNING], vertex("f", 2), *after)


@pytest.mark.parametrize(
    ("before", "pattern", "is_refused"),
    [
        ("p", ALL_TO_ALL, True),
        ("p", POINTWISE, False),
        ("r", ALL_TO_ALL, True),
        ("r", POINTWISE, True),
    ],
)
def test_restore_of_partly_finished_operators_allows_only_pointwise_edges(
    before: str, pattern: DistributionPattern, is_refused: bool
) -> None:
    """CP-40"""
    other = operator("q", TWO, finished=(0,))
    vertices = (vertex(before, 2), vertex("q", 2, inputs=[before], pattern=pattern))
    if is_refused:
        text = refusal([PARTLY, RUNNING, other], *vertices)
        assert f"'q' is partly finished in the checkpoint and would read '{before}'" in text
    else:
        assign([PARTLY, RUNNING, other], *vertices)


@pytest.mark.parametrize("name", ["r", "p", "new"])
def test_finished_operator_cannot_be_chained_to_an_unfinished_one(name: str) -> None:
    """CP-40: nor to a new operator."""
    operators = VertexOperator(name, name), VertexOperator("f", "f", uid="u")
    text = refusal([FULLY, PARTLY, RUNNING], vertex("v", 2, *operators))
    assert f"'f' (uid 'u') and '{name}'" in text


def test_partly_finished_operator_may_be_chained_to_a_running_one() -> None:
    """CP-40"""
    assign([PARTLY, RUNNING], vertex("v", 2, VertexOperator("p", "p"), VertexOperator("r", "r")))
