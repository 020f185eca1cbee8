"""Operator state in files: read element by element, divided by arithmetic on handles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.checkpoint import state_format
from flinkray.checkpoint.errors import (
    CheckpointStorageError,
    CorruptCheckpointError,
    UnknownCheckpointFormatError,
)
from flinkray.checkpoint.handles import (
    FileState,
    InlineState,
    OperatorStateHandle,
    OperatorStateMode,
)
from flinkray.checkpoint.state_files import StateOutput
from flinkray.checkpoint.state_format import read_operator_state, write_operator_state
from flinkray.state import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend

NUMBERS: ListStateDescriptor[Any] = ListStateDescriptor("numbers")
ALL: ListStateDescriptor[Any] = ListStateDescriptor("all")
RULES: MapStateDescriptor[Any, Any] = MapStateDescriptor("rules")
NOTHING: ListStateDescriptor[Any] = ListStateDescriptor("nothing")


def backend_with(numbers: list[Any], union: list[Any], rules: dict[Any, Any]) -> Any:
    backend = OperatorStateBackend()
    backend.list_state(NUMBERS).add_all(numbers)
    backend.union_list_state(ALL).add_all(union)
    backend.broadcast_state(RULES).put_all(rules)
    backend.list_state(NOTHING)
    return backend


def written(
    backend: OperatorStateBackend, threshold: int = 1 << 30, path: str = ""
) -> OperatorStateHandle:
    snapshot = backend.snapshot()
    assert snapshot is not None
    with StateOutput(path, threshold) as output:
        return write_operator_state(snapshot, output)


def restored(*handles: OperatorStateHandle) -> OperatorStateBackend:
    backend = OperatorStateBackend()
    backend.restore(read_operator_state(handles))
    return backend


def part_of(handle: OperatorStateHandle, name: str, offsets: slice) -> OperatorStateHandle:
    """With some elements of one state."""
    (state,) = (state for state in handle.states if state.name == name)
    return replace(handle, states=(replace(state, offsets=state.offsets[offsets]),))


def test_operator_states_of_all_modes_are_read_back_unchanged(tmp_path: Path) -> None:
    """OS-05, OS-08"""
    backend = backend_with([1, "two", [3]], ["u"], {"a": 1, "b": [2]})
    for threshold in (0, 1 << 30):
        handle = written(backend, threshold, str(tmp_path / "state"))
        assert isinstance(handle.location, InlineState if threshold else FileState)
        assert [(it.name, it.mode, len(it.offsets)) for it in handle.states] == [
            ("numbers", OperatorStateMode.SPLIT_DISTRIBUTE, 3),
            ("all", OperatorStateMode.UNION, 1),
            ("nothing", OperatorStateMode.SPLIT_DISTRIBUTE, 0),
            ("rules", OperatorStateMode.BROADCAST, 2),
        ]
        again = restored(handle)
        assert again.names() == ["numbers", "all", "nothing", "rules"]
        assert list(again.list_state(NUMBERS).get()) == [1, "two", [3]]
        assert list(again.union_list_state(ALL).get()) == ["u"]
        assert dict(again.broadcast_state(RULES).items()) == {"a": 1, "b": [2]}
        assert list(again.list_state(NOTHING).get()) == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(), max_size=8), min_size=1, max_size=4),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_each_list_element_is_restored_once_however_the_offsets_are_divided(
    subtasks: list[list[int]], after: int, random: Any
) -> None:
    handles = [written(backend_with(numbers, [], {})) for numbers in subtasks]
    given_to: list[list[OperatorStateHandle]] = [[] for _ in range(after)]
    expected: list[list[int]] = [[] for _ in range(after)]
    for handle, numbers in zip(handles, subtasks, strict=True):
        owners = [random.randrange(after) for _ in numbers]
        for owner in range(after):
            places = [place for place, it in enumerate(owners) if it == owner]
            (state,) = (state for state in handle.states if state.name == "numbers")
            offsets = tuple(state.offsets[place] for place in places)
            given_to[owner].append(replace(handle, states=(replace(state, offsets=offsets),)))
            expected[owner] += [numbers[place] for place in places]
    for owner in range(after):
        found = restored(*given_to[owner])
        assert list(found.list_state(NUMBERS).get()) == expected[owner]


def test_union_state_is_joined_and_broadcast_state_is_read_from_one_subtask() -> None:
    first = written(backend_with([], ["a", "b"], {"x": 1, "y": 2}))
    second = written(backend_with([], ["c"], {"x": 1, "y": 2}))
    unions = [part_of(handle, "all", slice(None)) for handle in (first, second)]
    assert list(restored(*unions).union_list_state(ALL).get()) == ["a", "b", "c"]
    of_one = restored(part_of(second, "rules", slice(None)))
    assert dict(of_one.broadcast_state(RULES).items()) == {"x": 1, "y": 2}


class Counting:
    """A file that writes down what is read of it."""

    name = "a counted file"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        assert offset + length <= self.size
        self.reads.append((offset, length))
        return self._data[offset : offset + length]


def test_subtask_reads_only_the_header_and_its_own_elements_of_operator_state() -> None:
    handle = written(backend_with([bytes([n]) * 20_000 for n in range(30)], [], {}))
    assert isinstance(handle.location, InlineState)
    part = part_of(handle, "numbers", slice(10, 13))
    file = Counting(handle.location.data)
    snapshot = state_format._read(file, part.states)
    assert len(snapshot.states["numbers"].elements) == 3
    begin, end = part.states[0].offsets[0], handle.states[0].offsets[13]
    header, *others = file.reads
    assert header == (0, 8_192)
    assert all(begin <= offset and offset + length <= end for offset, length in others)
    assert sum(length for _, length in others) < 2 * (end - begin)
    assert len(others) <= 3


def test_any_damage_to_an_operator_state_file_raises_a_clear_error() -> None:
    whole = written(backend_with([1, "two"], [], {"a": 1}))
    assert isinstance(whole.location, InlineState)
    data = whole.location.data
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        for damaged in (bytes(flipped), data[:place]):
            with pytest.raises(CheckpointStorageError) as caught:
                restored(replace(whole, location=InlineState(damaged)))
            assert type(caught.value) in (CorruptCheckpointError, UnknownCheckpointFormatError)
            if place > len(b"flinkray operator state\n"):
                assert type(caught.value) is CorruptCheckpointError


def test_operator_state_handle_that_names_a_state_missing_in_its_file_is_refused() -> None:
    handle = written(backend_with([1], [], {}))
    other = replace(handle, states=(replace(handle.states[0], name="other"),))
    with pytest.raises(CorruptCheckpointError, match="'other', which is not in it"):
        restored(other)
