"""Who is given which state at a restore."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.checkpoint.handles import (
    CarriedFile,
    ChannelStateHandle,
    InlineState,
    KeyedStateHandle,
    OperatorSubtaskState,
    TaskState,
)
from flinkray.checkpoint.metadata import CheckpointedEdge, CheckpointMetadata
from flinkray.core.key_group_ranges import NO_KEY_GROUPS, KeyGroupRange, owner_of
from flinkray.scheduler.checkpoints.failures import StateRestoreError
from flinkray.scheduler.checkpoints.state_assignment import (
    RestoredVertex,
    StateAssignment,
    divide_keyed_state,
)
from flinkray.scheduler.graph.job_graph import VertexOperator
from tests.scheduler.builders import JOB
from tests.scheduler.checkpoints.checkpointed import (
    file,
    keyed,
    keyed_by_range,
    metadata,
    named,
    operator,
    vertex,
    written,
)
from tests.scheduler.graphs import vertex_id


def assign(
    checkpoint: CheckpointMetadata, *vertices: RestoredVertex, allow: bool = False
) -> StateAssignment:
    return StateAssignment(JOB, checkpoint, vertices, allow_non_restored_state=allow)


def refusal(checkpoint: CheckpointMetadata, *vertices: RestoredVertex, allow: bool = False) -> str:
    with pytest.raises(StateRestoreError) as error:
        assign(checkpoint, *vertices, allow=allow)
    return str(error.value)


def list_states(name: str, parallelism: int) -> list[OperatorSubtaskState]:
    return [
        OperatorSubtaskState((written(f"{name}-{i}", named("s", 0, 1)),))
        for i in range(parallelism)
    ]


def ranges(state: TaskState | None, name: str) -> list[tuple[str, int, int]]:
    """File, first and last key group of each keyed handle."""
    assert state is not None
    return [
        (h.parts[0].location.path, h.first_key_group, h.last_key_group)  # type: ignore[union-attr]
        for h in state.operators[name].keyed_state
    ]


# --- unchanged ------------------------------------------------------------------------------------


def test_subtask_gets_exactly_its_own_state_at_equal_parallelism() -> None:
    """SA-07: 100 subtasks, 10 operators, with operator, keyed and channel state."""

    def everything(name: str) -> list[OperatorSubtaskState]:
        return [
            OperatorSubtaskState(
                (written(f"{name}-{i}", named("z", 3), named("a", 1, 2)),),
                keyed_by_range(name, 128, 100)[i].keyed_state,
                (ChannelStateHandle(0, i, file(f"in-{i}")),),
                (ChannelStateHandle(0, i, file(f"out-{i}")),),
            )
            for i in range(100)
        ]

    names = [f"o{n}" for n in range(10)]
    before = {name: everything(name) for name in names}
    vertices = [vertex(name, 100, inputs=names[max(n - 1, 0) : n]) for n, name in enumerate(names)]
    assignment = assign(metadata(*(operator(n, s) for n, s in before.items())), *vertices)
    for name in names:
        for subtask in range(100):
            given = assignment.of_subtask(vertex_id(name), subtask)
            assert given == TaskState({name: before[name][subtask]})


def test_changed_parallelism_gives_every_subtask_all_files_of_the_savepoint() -> None:
    """The elements of the list state say which files a subtask needs."""
    files = [CarriedFile(f"rows {i}", file(f"file-{i}"), i) for i in range(2)]
    states = [
        OperatorSubtaskState((written(f"a-{i}", named("s", 0)),), files=(files[i],))
        for i in range(2)
    ]
    assignment = assign(metadata(operator("a", states)), vertex("a", 3))
    given = [assignment.of_subtask(vertex_id("a"), subtask) for subtask in range(3)]
    assert [g.operators["a"].files for g in given if g is not None] == [tuple(files)] * 3


def test_task_without_state_in_the_checkpoint_gets_no_state() -> None:
    """CP-35: also a task of a vertex unknown to the checkpoint."""
    states = [*list_states("a", 1), OperatorSubtaskState()]
    checkpoint = metadata(operator("a", states), operator("empty", [OperatorSubtaskState()]))
    assignment = assign(checkpoint, vertex("a", 2), vertex("new", 1), vertex("empty", 1))
    assert assignment.of_subtask(vertex_id("a"), 0) == TaskState({"a": states[0]})
    assert assignment.of_subtask(vertex_id("a"), 1) is None
    assert assignment.of_subtask(vertex_id("new"), 0) is None
    assert assignment.of_subtask(vertex_id("empty"), 0) is None


def test_task_of_chained_operators_gets_the_states_of_all_of_them() -> None:
    """CP-35"""
    checkpoint = metadata(operator("a", list_states("a", 1)), operator("b", list_states("b", 1)))
    chain = vertex("v", 1, VertexOperator("a", "a"), VertexOperator("b", "b"))
    given = assign(checkpoint, chain).of_subtask(vertex_id("v"), 0)
    assert given == TaskState({n: list_states(n, 1)[0] for n in "ab"})


# --- key groups -----------------------------------------------------------------------------------


def test_subtask_gets_the_intersection_of_its_key_groups_with_those_of_the_handle() -> None:
    """SA-10"""
    assert KeyGroupRange(0, 10).intersection(KeyGroupRange(3, 7)) == KeyGroupRange(3, 7)
    assert KeyGroupRange(0, 10).intersection(KeyGroupRange(11, 20)) == NO_KEY_GROUPS
    handle = keyed("f", 5, 9)
    (given,) = divide_keyed_state([handle], 10, 1)
    assert given == (handle,)
    low, high = divide_keyed_state([keyed("f", 2, 7)], 10, 2)
    assert [(h.first_key_group, h.last_key_group) for h in (*low, *high)] == [(2, 4), (5, 7)]
    assert [h.parts for h in (*low, *high)] == [keyed("f", 0, 0).parts] * 2


def test_keyed_state_handle_without_key_groups_is_given_to_no_subtask() -> None:
    """SA-10"""
    assert divide_keyed_state([keyed("f", *NO_KEY_GROUPS)], 10, 2) == [(), ()]


def test_rescaling_from_3_to_2_gives_keyed_state_to_the_owners_of_its_key_groups() -> None:
    """SA-10"""
    checkpoint = metadata(operator("k", keyed_by_range("k", 10, 3), max_parallelism=10))
    assignment = assign(checkpoint, vertex("k", 2, max_parallelism=10))
    first, second = (assignment.of_subtask(vertex_id("k"), i) for i in range(2))
    assert ranges(first, "k") == [("k-0", 0, 3), ("k-1", 4, 4)]
    assert ranges(second, "k") == [("k-1", 5, 6), ("k-2", 7, 9)]


@given(max_parallelism=st.integers(1, 60), data=st.data())
def test_each_key_group_is_given_to_its_owner_only(
    max_parallelism: int, data: st.DataObject
) -> None:
    """SA-10"""
    bounds = st.integers(0, max_parallelism - 1)
    pairs = data.draw(st.lists(st.tuples(bounds, bounds), max_size=6))
    handles = [keyed(str(n), min(p), max(p)) for n, p in enumerate(pairs)]
    parallelism = data.draw(st.integers(1, max_parallelism))

    def groups(handle: KeyedStateHandle) -> set[tuple[str, int]]:
        path = handle.parts[0].location.path  # type: ignore[union-attr]
        return {(path, g) for g in range(handle.first_key_group, handle.last_key_group + 1)}

    expected: list[set[tuple[str, int]]] = [set() for _ in range(parallelism)]
    for handle in handles:
        for path, group in groups(handle):
            expected[owner_of(group, max_parallelism, parallelism)].add((path, group))
    given = divide_keyed_state(handles, max_parallelism, parallelism)
    assert [set().union(*map(groups, each)) for each in given] == expected
    assert all(not handle.key_groups.is_empty for each in given for handle in each)


# --- max parallelism ------------------------------------------------------------------------------


def test_configured_max_parallelism_must_match_the_keyed_state() -> None:
    """CP-36"""
    checkpoint = metadata(operator("k", keyed_by_range("k", 64, 2), uid="u", max_parallelism=64))
    text = refusal(checkpoint, vertex("k", 2, max_parallelism=128))
    assert "'k'" in text
    assert "Set its max parallelism to 64" in text


def test_unconfigured_max_parallelism_becomes_that_of_the_restored_state() -> None:
    """CP-36"""
    checkpoint = metadata(operator("k", keyed_by_range("k", 64, 2), max_parallelism=64))
    assignment = assign(checkpoint, vertex("k", 4), vertex("other", 1))
    assert assignment.max_parallelism == {vertex_id("k"): 64, vertex_id("other"): 128}
    assert ranges(assignment.of_subtask(vertex_id("k"), 3), "k") == [("k-1", 48, 63)]


def test_different_max_parallelism_is_accepted_for_state_that_is_not_keyed() -> None:
    """CP-36"""
    checkpoint = metadata(operator("a", list_states("a", 2), max_parallelism=64))
    assignment = assign(checkpoint, vertex("a", 1, max_parallelism=10))
    assert assignment.max_parallelism == {vertex_id("a"): 10}


def test_more_subtasks_than_key_groups_of_the_state_are_refused() -> None:
    """CP-36"""
    checkpoint = metadata(operator("k", keyed_by_range("k", 4, 2), max_parallelism=4))
    assert "can be 4 at most" in refusal(checkpoint, vertex("k", 5))
    assert "can be 4 at most" not in str(assign(checkpoint, vertex("k", 4)).max_parallelism)


def test_chained_keyed_states_with_different_key_groups_are_refused() -> None:
    """CP-36"""
    checkpoint = metadata(
        operator("a", keyed_by_range("a", 64, 1), max_parallelism=64),
        operator("b", keyed_by_range("b", 128, 1), max_parallelism=128),
    )
    chain = vertex("v", 1, VertexOperator("a", "a"), VertexOperator("b", "b"))
    assert "'a' (without a uid) and 'b' (without a uid)" in refusal(checkpoint, chain)


# --- whose state it is ----------------------------------------------------------------------------


def test_state_is_found_by_the_uid_hash_or_else_by_the_generated_id() -> None:
    """SA-08"""
    states = {name: list_states(name, 1)[0] for name in ("generated", "hash")}
    both = metadata(*(operator(name, [state]) for name, state in states.items()))
    only_generated = metadata(operator("generated", [states["generated"]]))
    with_hash = vertex("v", 1, VertexOperator("generated", "n", uid_hash="hash"))
    without = vertex("v", 1, VertexOperator("generated", "n"))

    def given(checkpoint: CheckpointMetadata, of: RestoredVertex) -> TaskState | None:
        return assign(checkpoint, of, allow=True).of_subtask(vertex_id("v"), 0)

    assert given(both, with_hash) == TaskState({"generated": states["hash"]})
    assert given(only_generated, with_hash) == TaskState({"generated": states["generated"]})
    assert given(both, without) == TaskState({"generated": states["generated"]})


def test_state_of_an_operator_that_the_job_does_not_have_is_refused() -> None:
    """CP-35, JM-10: the error names the operator, its uid, and how to allow dropping the state."""
    gone = replace(operator("g1", list_states("g", 1), uid="totals"), name="sum")
    checkpoint = metadata(gone, operator("a", list_states("a", 1)))
    text = refusal(checkpoint, vertex("a", 1))
    assert "'sum' (uid 'totals'), id g1" in text
    assert "--allow-non-restored-state" in text
    assert "'a'" not in text


def test_error_about_state_without_an_operator_suggests_the_operator_of_equal_name() -> None:
    """JM-10"""
    gone = replace(operator("g1", list_states("g", 1)), name="sum")
    renamed = vertex("v", 1, VertexOperator("g2", "sum", uid="new"))
    text = refusal(metadata(gone), renamed)
    assert "'sum' (without a uid), id g1; the job has 'sum' (uid 'new')" in text


def test_error_about_state_without_operators_names_only_a_few_of_many_operators() -> None:
    """JM-10"""
    gone = [operator(f"g{n}", list_states("g", 1)) for n in range(7)]
    text = refusal(metadata(*gone), vertex("a", 1))
    assert "'g4'" in text
    assert "'g5'" not in text
    assert "and 2 more" in text
    assert "more" not in refusal(metadata(*gone[:5]), vertex("a", 1))


def test_state_without_an_operator_is_dropped_if_that_is_allowed() -> None:
    """CP-35, JM-10"""
    gone = operator("g", list_states("g", 1))
    assignment = assign(metadata(gone), vertex("a", 1), allow=True)
    assert assignment.not_restored == (gone,)
    assert assignment.of_subtask(vertex_id("a"), 0) is None


def test_stateless_operator_may_be_removed_unless_its_coordinator_has_state() -> None:
    """CP-35"""
    empty = operator("g", [OperatorSubtaskState()])
    assert assign(metadata(empty), vertex("a", 1)).not_restored == ()
    source = replace(empty, coordinator=InlineState(b"splits"))
    assert "'g'" in refusal(metadata(source), vertex("a", 1))


def test_coordinator_states_are_assigned_under_the_operator_ids_of_the_new_job() -> None:
    """SA-08"""
    source = replace(operator("h", [OperatorSubtaskState()]), coordinator=InlineState(b"splits"))
    v = vertex("v", 1, VertexOperator("generated", "n", uid_hash="h"), VertexOperator("o", "o"))
    assert dict(assign(metadata(source), v).coordinators()) == {"generated": InlineState(b"splits")}


@pytest.mark.parametrize(
    "other", [VertexOperator("1", "b", uid="y"), VertexOperator("2", "b", uid_hash="1")]
)
def test_two_operators_with_the_same_id_are_refused(other: VertexOperator) -> None:
    """SA-08: whether the id was generated or set by the author."""
    one = VertexOperator("1", "a", uid="x")
    text = refusal(metadata(), vertex("v", 1, one), vertex("w", 1, other))
    assert "'a' (uid 'x') and 'b'" in text
    assert "a uid of its own" in text


# --- data in flight -------------------------------------------------------------------------------


IN_FLIGHT = ChannelStateHandle(0, 0, file("channel"))
WITH_INPUT = OperatorSubtaskState(input_channels=(IN_FLIGHT,))
WITH_OUTPUT = OperatorSubtaskState(result_subpartitions=(IN_FLIGHT,))
NOTHING = OperatorSubtaskState()


@pytest.mark.parametrize(
    ("of_producer", "of_consumer"), [(WITH_OUTPUT, NOTHING), (NOTHING, WITH_INPUT)]
)
@pytest.mark.parametrize("parallelism", [(2, 3), (3, 2)])
def test_changed_parallelism_at_either_end_of_data_in_flight_is_refused(
    of_producer: OperatorSubtaskState,
    of_consumer: OperatorSubtaskState,
    parallelism: tuple[int, int],
) -> None:
    """SA-12"""
    checkpoint = metadata(operator("a", [of_producer] * 2), operator("b", [of_consumer] * 2))
    a, b = parallelism
    text = refusal(checkpoint, vertex("a", a), vertex("b", b, inputs="a"))
    assert "from 'a' to 'b'" in text
    assert "savepoint" in text
    unchanged = assign(checkpoint, vertex("a", 2), vertex("b", 2, inputs="a"))
    assert unchanged.of_subtask(vertex_id("b"), 0) == (
        None if of_consumer is NOTHING else TaskState({"b": of_consumer})
    )


def test_vertices_that_neither_send_nor_receive_data_in_flight_may_be_rescaled() -> None:
    """SA-12"""
    checkpoint = metadata(
        operator("a", [WITH_OUTPUT] * 2),
        operator("b", [WITH_INPUT] * 2),
        operator("c", list_states("c", 2)),
    )
    vertices = [vertex("a", 2), vertex("b", 2, inputs="a"), vertex("c", 1, inputs="b")]
    given = assign(checkpoint, *vertices).of_subtask(vertex_id("c"), 0)
    assert given is not None
    assert len(given.operators["c"].operator_state) == 2


EDGE = CheckpointedEdge("a", 0, "b", 0, "m", None, 0, "HASH")
"""From the chain of a and m to b."""


def on_its_way(*edges: CheckpointedEdge) -> CheckpointMetadata:
    """Data in flight of these edges."""
    a, m, b = (operator(name, [state]) for name, state in zip("amb", IN_CHAIN, strict=True))
    return replace(metadata(a, replace(m, uid="map"), replace(b, uid="slow")), edges=edges)


IN_CHAIN = (WITH_OUTPUT, NOTHING, WITH_INPUT)
WRITER = vertex("a", 1, VertexOperator("a", "a"), VertexOperator("m", "m"))


def reader(*edges: CheckpointedEdge, uid_hash: str | None = None) -> RestoredVertex:
    own = (VertexOperator("b" if uid_hash is None else edges[0].reader, "b", uid_hash=uid_hash),)
    return replace(vertex("b", 1, *own, inputs="a"), edges=edges)


@pytest.mark.parametrize(
    "edge",
    [
        pytest.param(replace(EDGE, result=1), id="an output was added before"),
        pytest.param(replace(EDGE, gate=1), id="an input was added before"),
        pytest.param(replace(EDGE, writer="m"), id="the writing chain begins elsewhere"),
        pytest.param(replace(EDGE, reader="c"), id="another operator reads it"),
        pytest.param(replace(EDGE, operator_id="a"), id="another operator of the chain writes it"),
        pytest.param(replace(EDGE, output_tag="late"), id="another output of the operator"),
        pytest.param(replace(EDGE, input_index=1), id="another input of the reader"),
        pytest.param(replace(EDGE, partitioner="REBALANCE"), id="it is divided otherwise"),
    ],
)
def test_data_in_flight_of_a_changed_edge_is_refused(
    edge: CheckpointedEdge,
) -> None:
    """SA-12"""
    text = refusal(on_its_way(EDGE), WRITER, reader(edge))
    assert "from 'm' (uid 'map') to 'b' (uid 'slow')" in text
    assert "savepoint" in text


def test_edges_without_data_in_flight_may_change() -> None:
    """SA-12"""
    gone, new = replace(EDGE, result=1, gate=1), replace(EDGE, result=1, gate=1, output_tag="late")
    given = assign(on_its_way(EDGE), WRITER, reader(EDGE, new))
    assert given.of_subtask(vertex_id("b"), 0) == TaskState({"b": WITH_INPUT})
    assert refusal(on_its_way(EDGE, gone), WRITER, reader(EDGE, new))


def test_operators_of_an_edge_with_data_in_flight_are_found_by_their_uid_hash() -> None:
    """SA-08, SA-12"""
    moved = reader(replace(EDGE, reader="generated"), uid_hash="b")
    given = assign(on_its_way(EDGE), WRITER, moved).of_subtask(vertex_id("b"), 0)
    assert given == TaskState({"generated": WITH_INPUT})


def test_data_in_flight_is_dropped_only_if_the_operators_at_both_ends_are_gone() -> None:
    """SA-12"""
    checkpoint = on_its_way(EDGE)
    assert len(assign(checkpoint, vertex("c", 1), allow=True).not_restored) == 2
    assert "in flight" in refusal(checkpoint, WRITER, allow=True)
    assert "in flight" in refusal(checkpoint, vertex("b", 1), allow=True)
