"""Identifiers."""

from __future__ import annotations

import pickle

import pytest

from flinkray.core.ids import (
    AllocationID,
    DispatcherId,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    JobVertexID,
    LeaderSessionID,
    ResourceID,
    ResultPartitionID,
    SlotID,
    random_bytes_from,
)


def test_id_is_read_from_and_written_as_32_hex_digits() -> None:
    job = JobID.from_hex("00112233445566778899aabbccddeeff")
    assert str(job) == job.hex() == "00112233445566778899aabbccddeeff"
    assert job.short() == "00112233"
    assert JobID(job.value) == job
    assert repr(job) == f"JobID({job})"
    assert pickle.loads(pickle.dumps(job)) == job


def test_ids_of_different_types_are_never_equal() -> None:
    assert JobID(bytes(16)) != AllocationID(bytes(16))
    assert len({JobID(bytes(16)), AllocationID(bytes(16)), JobID(bytes(16))}) == 2
    with pytest.raises(TypeError):
        assert JobID(bytes(16)) < AllocationID(bytes(16))  # type: ignore[operator]


def test_ids_are_ordered_by_value_within_their_type() -> None:
    low, high = JobID(bytes(16)), JobID(b"\x01" + bytes(15))
    assert sorted([high, low]) == [low, high]
    assert low <= high  # type: ignore[operator]  # mypy: total_ordering of a self type


@pytest.mark.parametrize("text", ["", "xyz", "00", "0" * 31, "0" * 33, "g" * 32, "00 " * 16])
def test_malformed_id_is_refused_with_its_type_and_text(text: str) -> None:
    with pytest.raises(ValueError, match="JobID") as caught:
        JobID.from_hex(text)
    assert repr(text) in str(caught.value)


def test_an_id_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 16 bytes, got 3"):
        JobID(b"abc")


def test_new_ids_are_made_of_bytes_of_the_given_random_source() -> None:
    with random_bytes_from(lambda size: b"\x07" * size):
        assert JobID.generate() == JobID(b"\x07" * 16)
    assert JobID.generate() != JobID.generate()


def test_leader_session_of_a_fencing_token_can_be_read_from_it() -> None:
    session = LeaderSessionID.generate()
    token = JobMasterId.of(session)
    assert token.leader_session() == session
    assert token != DispatcherId.of(session)
    assert DispatcherId.of(LeaderSessionID.standalone()).value == bytes(16)


def test_text_of_a_compound_id_has_the_texts_of_its_components() -> None:
    vertex = ExecutionVertexID(JobVertexID(b"\xab" * 16), 3)
    assert str(vertex) == "abababab_3"
    graph = ExecutionGraphID(b"\xcd" * 16)
    assert str(ExecutionAttemptID(graph, vertex, 2)) == "cdcdcdcd_abababab_3_2"
    data_set = IntermediateDataSetID(b"\xef" * 16)
    partition = ResultPartitionID(graph, data_set, 3, 2)
    assert str(partition) == "efefefef#3 of attempt 2 in cdcdcdcd"
    assert str(SlotID(ResourceID("TaskExecutor-1"), 0)) == "TaskExecutor-1_0"
