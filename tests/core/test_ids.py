"""Identifiers and message types."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

import flinkray
from flinkray.core.errors import RemoteError
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
from flinkray.core.message import lookup, message, register, registered_types, type_name
from flinkray.rpc import RpcGateway


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


@message
class Known:
    """A message."""

    number: int


def test_message_type_is_found_by_its_name_and_its_instances_are_frozen() -> None:
    assert type_name(Known) == f"{__name__}:Known"
    assert lookup(type_name(Known)) is Known
    assert Known in registered_types()
    with pytest.raises(FrozenInstanceError):
        Known(1).number = 2  # type: ignore[misc]
    assert not hasattr(Known(1), "__dict__")


def test_class_decorated_as_dataclass_is_refused_as_message_type() -> None:
    with pytest.raises(
        TypeError, match=r"Twice is a dataclass already: .* leave out its @dataclass"
    ):

        @message
        @dataclass(frozen=True)
        class Twice:
            number: int


def test_lookup_of_an_unknown_type_name_returns_none() -> None:
    assert lookup("nowhere:Nothing") is None


def test_second_message_type_with_a_registered_name_is_refused() -> None:
    double: Any = type("Known", (), {"__module__": __name__})
    with pytest.raises(TypeError, match="Known is already registered"):
        register(double)
    assert register(Known) is Known


def test_flinkray_types_are_registered_by_class_name_without_their_module() -> None:
    assert type_name(JobID) == "JobID"
    assert lookup("JobID") is JobID
    assert type_name(RemoteError) == "RemoteError"
    moved: Any = type("JobMoved", (), {"__module__": "flinkray.core.ids"})
    register(moved)
    assert lookup("JobMoved") is moved
    double: Any = type("JobMoved", (), {"__module__": "flinkray.somewhere.else"})
    with pytest.raises(TypeError, match="JobMoved is already registered"):
        register(double)


def test_all_message_types_and_gateways_of_flinkray_have_different_names() -> None:
    """A duplicate message type is refused when its module is loaded; this test loads all
    modules."""
    for module in pkgutil.walk_packages(flinkray.__path__, "flinkray."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = [cls for cls in registered_types() if cls.__module__.startswith("flinkray.")]
    gateways = [cls for cls in _subclasses(RpcGateway) if cls.__module__.startswith("flinkray.")]
    assert len(ours) > 150
    assert len(gateways) > 8
    shared = Counter(map(type_name, {*ours, *gateways}))
    assert {name: number for name, number in shared.items() if number > 1} == {}


def _subclasses(cls: type[RpcGateway]) -> Iterator[type[RpcGateway]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
