"""What a checkpoint says of its operators."""

from __future__ import annotations

import pytest

from flinkray.checkpoint.handles import ChannelStateHandle, OperatorSubtaskState
from flinkray.scheduler.checkpoints.operators_with_state import (
    has_data_in_flight,
    has_keyed_state,
    key_groups_of,
)
from tests.scheduler.checkpoints.checkpointed import (
    file,
    keyed,
    keyed_by_range,
    metadata,
    named,
    operator,
    written,
)
from tests.scheduler.graphs import stream_vertex

CHANNEL = (ChannelStateHandle(0, 0, file("/in-flight")),)
LISTED = OperatorSubtaskState(operator_state=(written("/list", named("s", 0)),))


def test_an_operator_has_keyed_state_if_one_of_its_subtasks_has_some() -> None:
    of_one = [OperatorSubtaskState(keyed_state=(keyed("/one", 0, 63),)), LISTED]
    assert has_keyed_state(operator("o", of_one))
    assert not has_keyed_state(operator("o", [LISTED, LISTED]))


def test_number_of_key_groups_of_a_vertex_comes_from_operators_with_keyed_state_only() -> None:
    vertices = [stream_vertex("a", 2), stream_vertex("b", 2), stream_vertex("c", 2)]
    taken = metadata(
        operator("a", [LISTED, LISTED], max_parallelism=7),
        operator("b", keyed_by_range("/b", 64, 2), max_parallelism=64),
    )
    assert key_groups_of(taken, vertices) == {vertices[1].vertex_id: 64}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (LISTED, False),
        (OperatorSubtaskState(input_channels=CHANNEL), True),
        (OperatorSubtaskState(result_subpartitions=CHANNEL), True),
    ],
)
def test_input_channel_state_and_result_subpartition_state_count_as_data_in_flight(
    state: OperatorSubtaskState, expected: bool
) -> None:
    assert has_data_in_flight(metadata(operator("a", [LISTED, state]))) is expected
