"""Operator state is divided among new subtasks as Flink divides it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.checkpoint.handles import OperatorStateHandle, OperatorStateMode
from flinkray.scheduler.checkpoints.state_assignment import repartition
from tests.scheduler.checkpoints.checkpointed import BROADCAST, LIST, UNION, named, written

Element = tuple[str, str, int]
"""State, file, offset."""


def elements(handles: tuple[OperatorStateHandle, ...]) -> list[Element]:
    return [
        (state.name, handle.location.path, offset)  # type: ignore[union-attr]
        for handle in handles
        for state in handle.states
        for offset in state.offsets
    ]


def test_list_elements_are_split_into_contiguous_even_chunks() -> None:
    """SA-01"""
    old = [(written("0", named("s", 0, 1, 2, 3)),), (written("1", named("s", 0, 1, 2)),)]
    first, second, third = map(elements, repartition(old, 3))
    assert first == [("s", "0", 0), ("s", "0", 1), ("s", "0", 2)]
    assert second == [("s", "0", 3), ("s", "1", 0)]
    assert third == [("s", "1", 1), ("s", "1", 2)]


def test_surplus_elements_of_successive_list_states_go_to_subtasks_in_turn() -> None:
    """SA-01: states are taken in the order of their names, whatever their order in the handles."""
    old = [(written("0", named("b", 0, 1), named("a", 5), named("c", 7)),)]
    given = [elements(handles) for handles in repartition(old, 3)]
    assert given == [
        [("a", "0", 5), ("c", "0", 7)],
        [("b", "0", 0)],
        [("b", "0", 1)],
    ]


@pytest.mark.parametrize(("parallelism", "chunks"), [(3, [1, 1, 1, 1]), (1, [2, 2]), (2, [2, 2])])
def test_two_list_states_of_two_subtasks_are_each_divided_for_a_new_parallelism(
    parallelism: int, chunks: list[int]
) -> None:
    """SA-02: with an unchanged number of subtasks nothing changes."""
    old = [(written("0", named("t-1", 0, 10)),), (written("1", named("t-2", 0, 15)),)]
    new = repartition(old, parallelism)
    assert [len(s.offsets) for hs in new for h in hs for s in h.states] == chunks
    assert Counter(e for hs in new for e in elements(hs)) == Counter(
        [("t-1", "0", 0), ("t-1", "0", 10), ("t-2", "1", 0), ("t-2", "1", 15)]
    )
    if parallelism == 2:
        assert new == old


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_each_subtask_is_given_all_handles_of_a_union_state(parallelism: int) -> None:
    """SA-03: also with an unchanged number of subtasks. All subtasks get the same order."""
    held = written("0", named("u", 0, 10, mode=UNION)), written("1", named("u", 0, mode=UNION))
    assert repartition([(held[0],), (held[1],)], parallelism) == [held] * parallelism
    assert repartition([(held[0],), ()], parallelism) == [held[:1]] * parallelism


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_each_subtask_is_given_one_copy_of_a_broadcast_state(parallelism: int) -> None:
    """SA-04"""
    held = [written(str(i), named("b", 0, 1, 2, mode=BROADCAST)) for i in range(2)]
    new = repartition([(held[0],), (held[1],)], parallelism)
    assert new == [(held[i % 2],) for i in range(parallelism)]


def test_subtask_without_broadcast_state_gets_the_copy_of_another() -> None:
    """SA-04"""
    held = [written(str(i), named("b", 0, mode=BROADCAST)) for i in range(3)]
    assert repartition([(held[0],), (), (held[2],)], 3) == [(held[0],), (held[2],), (held[2],)]


def test_states_of_one_handle_with_different_modes_are_each_divided_by_their_mode() -> None:
    """SA-05"""
    old = [
        (
            written(
                path,
                named("l", 0, 1),
                named("u", 2, mode=UNION),
                named("b", 3, mode=BROADCAST),
            ),
        )
        for path in "01"
    ]
    first, second, third, fourth = (elements(handles) for handles in repartition(old, 4))
    assert first == [("l", "0", 0), ("u", "0", 2), ("b", "0", 3), ("u", "1", 2)]
    assert second == [("l", "0", 1), ("u", "0", 2), ("u", "1", 2), ("b", "1", 3)]
    assert third == [("u", "0", 2), ("b", "0", 3), ("l", "1", 0), ("u", "1", 2)]
    assert fourth == [("u", "0", 2), ("l", "1", 1), ("u", "1", 2), ("b", "1", 3)]


@pytest.mark.parametrize("parallelism", [2, 5, 10])
def test_scaling_up_from_one_subtask_gives_each_subtask_one_slice_of_each_list_state(
    parallelism: int,
) -> None:
    """SA-06"""
    old = [(written("0", named("s", *range(10)), named("t", *range(10, 20))),)]
    size = 10 // parallelism
    for subtask, handles in enumerate(repartition(old, parallelism)):
        slice_of = range(subtask * size, (subtask + 1) * size)
        assert elements(handles) == [
            *(("s", "0", i) for i in slice_of),
            *(("t", "0", 10 + i) for i in slice_of),
        ]


def test_repartitioning_leaves_a_list_state_without_elements_at_its_subtask() -> None:
    """SA-02"""
    old = [(written("0", named("s")),), ()]
    assert repartition(old, 2) == old


# --- beside an evaluator of a few lines -----------------------------------------------------------

MODES = {"a": LIST, "b": LIST, "c": LIST, "u": UNION, "w": BROADCAST}


@st.composite
def old_states(draw: st.DrawFn) -> list[tuple[OperatorStateHandle, ...]]:
    """Of one to five subtasks, with at most two handles each."""
    subtasks = []
    for subtask in range(draw(st.integers(1, 5))):
        handles = []
        for number in range(draw(st.sampled_from([0, 1, 1, 2]))):
            names = draw(st.lists(st.sampled_from("abcuw"), unique=True, max_size=5))
            sizes = [draw(st.integers(0, 7)) for _ in names]
            states = (named(n, *range(s), mode=MODES[n]) for n, s in zip(names, sizes, strict=True))
            handles.append(written(f"{subtask}/{number}", *states))
        subtasks.append(tuple(handles))
    return subtasks


def evaluate(old: list[tuple[OperatorStateHandle, ...]], parallelism: int) -> list[set[Element]]:
    """What each subtask has in the end, written as the cases are: element by element."""
    new: list[set[Element]] = [set() for _ in range(parallelism)]
    start = 0
    for name, mode in sorted(MODES.items()):
        of_subtask = [[e for e in elements(handles) if e[0] == name] for handles in old]
        everything = [element for some in of_subtask for element in some]
        if mode is UNION:
            for subtask in new:
                subtask.update(everything)
        elif mode is LIST and len(old) == parallelism:
            for subtask, own in zip(new, of_subtask, strict=True):
                subtask.update(own)
        elif mode is LIST:
            sizes = [len(everything) // parallelism] * parallelism
            odd = len(everything) % parallelism
            for chunk in range(odd):
                sizes[chunk] += 1
            for chunk, size in enumerate(sizes):
                new[(start + chunk) % parallelism].update(everything[:size])
                everything = everything[size:]
            start = (start + odd) % parallelism
        else:
            first_copies: dict[int, set[Element]] = {}
            for subtask_index, handles in enumerate(old):
                for handle in handles:
                    if any(state.name == name for state in handle.states):
                        copy = {e for e in elements((handle,)) if e[0] == name}
                        first_copies.setdefault(subtask_index, copy)
            holders = list(first_copies)
            for index, subtask in enumerate(new):
                if holders:
                    own_or_other = holders[index % len(holders)]
                    if len(old) == parallelism and index in first_copies:
                        own_or_other = index
                    subtask.update(first_copies[own_or_other])
    return new


@given(old=old_states(), parallelism=st.integers(1, 6))
def test_repartitioned_state_equals_that_of_a_naive_evaluator(
    old: list[tuple[OperatorStateHandle, ...]], parallelism: int
) -> None:
    """SA-01, SA-02, SA-03, SA-04, SA-05"""
    new = repartition(old, parallelism)
    listed = [elements(handles) for handles in new]
    assert [set(each) for each in listed] == evaluate(old, parallelism)
    assert all(len(each) == len(set(each)) for each in listed), "nothing is given twice"


@given(old=old_states(), parallelism=st.integers(1, 6))
def test_list_elements_are_divided_evenly_and_no_element_is_lost(
    old: list[tuple[OperatorStateHandle, ...]], parallelism: int
) -> None:
    """SA-01: counted over all list states, no subtask gets two elements more than another."""
    new = [elements(handles) for handles in repartition(old, parallelism)]
    lists = [[e for e in each if MODES[e[0]] is LIST] for each in new]
    before = [e for handles in old for e in elements(handles) if MODES[e[0]] is LIST]
    assert sorted(e for each in lists for e in each) == sorted(before)
    if len(old) != parallelism:
        assert max(map(len, lists)) - min(map(len, lists)) <= 1


def test_repartitioner_test_covers_every_operator_state_mode() -> None:
    assert set(MODES.values()) == set(OperatorStateMode)
