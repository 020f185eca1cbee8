"""Queryable states: their registry, and how queries and answers are serialized."""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobVertexID,
)
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.core.kv_states import (
    KvStateRegistration,
    MalformedKvStateError,
    UnknownKvStateIdError,
)
from flinkray.datastream import Row, Types
from flinkray.state import (
    HeapKeyedStateBackend,
    KeyContext,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateError,
    StateMigrationError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.state.key_group_assignment import KEY_KINDS, KeyHash, stable_hash
from flinkray.state.kv_state_registry import (
    ALL_JOBS,
    KvStateEntry,
    KvStateRegistry,
    KvStateRegistryListener,
    TaskKvStateRegistry,
)
from flinkray.state.kv_state_serializer import (
    KvStateSerializer,
    deserialize_keys_and_namespace,
    serialize_keys_and_namespace,
)
from flinkray.state.table import MISSING
from flinkray.streaming.windowing.window import TimeWindow

JOB, OTHER_JOB = JobID(b"j" * 16), JobID(b"o" * 16)
VERTEX = ExecutionVertexID(JobVertexID(b"v" * 16), 1)
ATTEMPT = ExecutionAttemptID(ExecutionGraphID(b"g" * 16), VERTEX, 3)


class Heard(KvStateRegistryListener):
    def __init__(self) -> None:
        self.registered: list[KvStateRegistration] = []
        self.unregistered: list[KvStateRegistration] = []

    def kv_state_registered(self, registration: KvStateRegistration) -> None:
        self.registered.append(registration)

    def kv_state_unregistered(self, registration: KvStateRegistration) -> None:
        self.unregistered.append(registration)


class Task:
    """One with a backend, whose states go to a registry."""

    def __init__(
        self, registry: KvStateRegistry, job_id: JobID = JOB, hash_of: KeyHash = stable_hash
    ) -> None:
        self.now = 1000
        self.registry: TaskKvStateRegistry = registry.task_registry(job_id, ATTEMPT, "p/server")
        backend = HeapKeyedStateBackend(
            128, KeyGroupRange(64, 127), lambda: self.now, hash_of=hash_of
        )
        backend.publish = lambda descriptor, table: self.registry.publish(
            "op", backend, descriptor, table
        )
        self.backend = backend

    def state(self, descriptor: StateDescriptor, context: KeyContext | None = None) -> Any:
        return self.backend.state(descriptor, context)


def named(descriptor: StateDescriptor, name: str = "q", ttl: int | None = None) -> StateDescriptor:
    descriptor.set_queryable(name)
    if ttl is not None:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(ttl).build())
    return descriptor


def value(name: str = "q", ttl: int | None = None) -> StateDescriptor:
    return named(ValueStateDescriptor("v", default_value=7), name, ttl)


def entry_of(registry: KvStateRegistry, task: Task) -> KvStateEntry:
    [kv_state_id] = task.registry._registered
    return registry.get(kv_state_id)


@pytest.fixture
def registry() -> KvStateRegistry:
    return KvStateRegistry()


def test_queryable_state_is_registered_when_first_used_and_unregistered_once(
    registry: KvStateRegistry,
) -> None:
    heard = Heard()
    registry.register_listener(JOB, heard)
    task = Task(registry, hash_of=KEY_KINDS["INT"].hash_of)
    descriptor = value()
    task.state(ValueStateDescriptor("other"))
    assert heard.registered == []
    task.state(descriptor)
    task.state(descriptor)
    [registration] = heard.registered
    assert (registration.job_id, registration.attempt_id) == (JOB, ATTEMPT)
    assert registration.key_groups == KeyGroupRange(64, 127)
    assert (registration.name, registration.operator_id) == ("q", "op")
    assert (registration.kind, registration.key_type) == ("value", "INT")
    assert registration.server_address == "p/server"
    assert registry.get(registration.kv_state_id).registration == registration
    task.registry.unregister_all()
    task.registry.unregister_all()
    assert heard.unregistered == [registration]
    with pytest.raises(UnknownKvStateIdError, match=str(registration.kv_state_id)):
        registry.get(registration.kv_state_id)


def test_two_states_with_the_same_query_name_are_refused(registry: KvStateRegistry) -> None:
    task = Task(registry)
    task.state(value())
    with pytest.raises(StateError, match="'v' and 'w' are both queryable as 'q'"):
        task.state(named(ValueStateDescriptor("w")))


def test_second_or_empty_query_name_of_a_state_is_refused() -> None:
    descriptor = value()
    assert (descriptor.is_queryable(), descriptor.get_queryable_state_name()) == (True, "q")
    assert not ValueStateDescriptor("w").is_queryable()
    with pytest.raises(StateError, match="'v' is queryable as 'q' already"):
        descriptor.set_queryable("other")
    with pytest.raises(StateError, match="queried under a name, got ''"):
        ValueStateDescriptor("w").set_queryable("")


def test_listener_is_notified_only_about_its_own_job(registry: KvStateRegistry) -> None:
    """QS-07."""
    mine, other = Heard(), Heard()
    registry.register_listener(JOB, mine)
    registry.register_listener(OTHER_JOB, other)
    task, of_other = Task(registry), Task(registry, OTHER_JOB)
    task.state(value())
    of_other.state(value())
    task.registry.unregister_all()
    assert [r.job_id for r in mine.registered + mine.unregistered] == [JOB, JOB]
    assert [r.job_id for r in other.registered + other.unregistered] == [OTHER_JOB]
    registry.unregister_listener(OTHER_JOB)
    of_other.registry.unregister_all()
    assert other.unregistered == []


def test_listener_for_all_jobs_replaces_listeners_for_single_jobs(
    registry: KvStateRegistry,
) -> None:
    """QS-07."""
    everything, mine = Heard(), Heard()
    registry.register_listener(JOB, mine)
    registry.register_listener(ALL_JOBS, everything)
    Task(registry).state(value())
    Task(registry, OTHER_JOB).state(value())
    assert [r.job_id for r in everything.registered] == [JOB, OTHER_JOB]
    assert mine.registered == []


def test_each_thread_that_answers_queries_has_its_own_serializer_for_a_state(
    registry: KvStateRegistry,
) -> None:
    """QS-08."""
    task = Task(registry)
    task.state(value())
    entry = entry_of(registry, task)
    found = [entry.serializer(), entry.serializer()]
    all_there = threading.Barrier(3)

    def ask() -> None:
        found.append(entry.serializer())
        all_there.wait(10)  # a thread that has ended gives its number to another

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    all_there.wait(10)
    for thread in threads:
        thread.join()
    assert found[0] is found[1]
    assert len({id(one) for one in found}) == 3
    assert len(entry._serializers) == 3
    task.registry.unregister_all()
    assert len(entry._serializers) == 0


def test_query_returns_missing_for_a_key_without_a_stored_value(registry: KvStateRegistry) -> None:
    """QS-09."""
    task = Task(registry)
    state = task.state(value())
    task.backend.context.key = "a"
    assert state.value() == 7
    state.update([1])
    assert entry_of(registry, task).read(["a", "b"]) == [[1], MISSING]


def test_queryable_state_cannot_be_read_once_it_is_unregistered(registry: KvStateRegistry) -> None:
    task = Task(registry)
    task.state(value())
    entry = entry_of(registry, task)
    task.registry.unregister_all()
    with pytest.raises(UnknownKvStateIdError):
        entry.read(["a"])


def test_unregistering_a_state_waits_for_its_readers(registry: KvStateRegistry) -> None:
    """The backend may free its memory or close its files as soon as unregister_all returns."""
    task = Task(registry)
    task.state(value())
    entry = entry_of(registry, task)
    began, may_go_on, order = threading.Event(), threading.Event(), []

    def slow(places: Any) -> list[Any]:
        began.set()
        assert may_go_on.wait(10)
        order.append("read")
        return [MISSING for _ in places]

    entry._read = slow
    reader = threading.Thread(target=lambda: entry.read(["a"]))
    reader.start()
    assert began.wait(10)

    def give_up() -> None:
        task.registry.unregister_all()
        order.append("gone")

    owner = threading.Thread(target=give_up)
    owner.start()
    may_go_on.set()
    for thread in (reader, owner):
        thread.join(10)
    assert order == ["read", "gone"]


def test_query_of_window_state_without_a_namespace_is_refused(registry: KvStateRegistry) -> None:
    task = Task(registry)
    state = task.state(value(), context := KeyContext())
    context.key = ("a", "window")
    state.update(3)
    entry = entry_of(registry, task)
    assert entry.read(["a", "b"], "window") == [3, MISSING]
    assert entry.read(["a"], "another") == [MISSING]
    with pytest.raises(MalformedKvStateError, match="is queried without a namespace"):
        entry.read(["a"])


def test_query_with_a_namespace_of_state_without_windows_is_refused(
    registry: KvStateRegistry,
) -> None:
    task = Task(registry)
    task.state(value())
    with pytest.raises(MalformedKvStateError, match="is queried with a namespace"):
        entry_of(registry, task).read(["a"], "window")


@pytest.mark.parametrize(
    ("descriptor", "fill", "before", "after"),
    [
        (ValueStateDescriptor("v"), lambda s, n: s.update(n), 2, 2),
        (ListStateDescriptor("v"), lambda s, n: s.add(n), [1, 2], [2]),
        (MapStateDescriptor("v"), lambda s, n: s.put(n, n), {1: 1, 2: 2}, {2: 2}),
    ],
)
def test_query_returns_no_expired_state_and_does_not_renew_a_time_to_live(
    registry: KvStateRegistry, descriptor: StateDescriptor, fill: Any, before: Any, after: Any
) -> None:
    task = Task(registry)
    state = task.state(named(descriptor, ttl=100))
    task.backend.context.key = "a"
    fill(state, 1)
    task.now += 50
    fill(state, 2)
    entry = entry_of(registry, task)
    assert entry.read(["a"]) == [before]
    task.now += 60
    assert entry.read(["a"]) == [after]
    task.now += 40
    assert entry.read(["a"]) == [MISSING]


def test_query_returns_expired_state_if_the_state_is_configured_so(
    registry: KvStateRegistry,
) -> None:
    task = Task(registry)
    descriptor = value()
    descriptor.enable_time_to_live(
        StateTtlConfig.new_builder(100).return_expired_if_not_cleaned_up().build()
    )
    state = task.state(descriptor)
    task.backend.context.key = "a"
    state.update(1)
    task.now += 100
    assert entry_of(registry, task).read(["a"]) == [1]


def test_registration_of_a_queryable_state_contains_its_key_type() -> None:
    for name in ("BOOLEAN", "LONG", "FLOAT", "DOUBLE", "STRING"):
        registry, heard = KvStateRegistry(), Heard()
        registry.register_listener(JOB, heard)
        Task(registry, hash_of=KEY_KINDS[name].hash_of).state(value())
        assert [r.key_type for r in heard.registered] == [name]


@dataclass(frozen=True)
class Place:
    country: str
    number: int


VALUES = [7, "text", (1, "two"), Place("DE", 3), datetime.date(2026, 1, 2), None]
LIST: StateDescriptor = ListStateDescriptor("elements")
MAP: StateDescriptor = MapStateDescriptor("entries")


@pytest.mark.parametrize("key", VALUES, ids=str)
@pytest.mark.parametrize("namespace", [None, TimeWindow(0, 10), "n"], ids=str)
def test_keys_and_namespace_of_a_query_are_equal_after_serialization(
    key: Any, namespace: Any
) -> None:
    sent = serialize_keys_and_namespace([key, key], namespace)
    assert deserialize_keys_and_namespace(sent) == ([key, key], namespace)


@pytest.mark.parametrize("namespace", [None, TimeWindow(0, 10)], ids=str)
def test_truncated_or_extended_bytes_of_keys_are_refused(namespace: Any) -> None:
    """QS-13: an OSError is raised, and no other error."""
    sent = serialize_keys_and_namespace([Place("DE", 3), Place("FR", 4)], namespace)
    for end in range(len(sent)):
        with pytest.raises(OSError, match="bytes are no keys"):
            deserialize_keys_and_namespace(sent[:end])
    for more in (b"\x00", b"\xc0", sent):
        with pytest.raises(MalformedKvStateError, match="bytes are no keys"):
            deserialize_keys_and_namespace(sent + more)


@given(st.binary(max_size=40))
def test_random_bytes_are_refused_as_keys_and_namespace(data: bytes) -> None:
    """QS-13."""
    with pytest.raises((MalformedKvStateError, StateMigrationError)):
        deserialize_keys_and_namespace(data)


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_of_a_query_answer_are_equal_after_serialization(value: Any) -> None:
    serializer = KvStateSerializer(ValueStateDescriptor("value"))
    assert KvStateSerializer(None).deserialize_one(serializer.serialize([value])) == value


def test_truncated_or_extended_bytes_of_an_answer_are_refused() -> None:
    """QS-13."""
    for descriptor, contents in ((LIST, [1, "two"]), (MAP, {"a": 1}), (None, Place("DE", 3))):
        serializer = KvStateSerializer(descriptor)
        sent = serializer.serialize([contents])
        assert serializer.deserialize_one(sent) == contents
        for end in range(1, len(sent)):
            with pytest.raises(OSError, match="bytes are no answer"):
                serializer.deserialize_one(sent[:end])
        for more in (b"\x00", sent):
            with pytest.raises(OSError, match="bytes are no answer"):
                serializer.deserialize_one(sent + more)
        with pytest.raises(OSError, match="2 values in place of one"):
            serializer.deserialize_one(serializer.serialize([contents, contents]))


def test_empty_query_answer_is_read_as_an_empty_list_or_map() -> None:
    """QS-13."""
    assert KvStateSerializer(LIST).deserialize_one(b"") == []
    assert KvStateSerializer(MAP).deserialize_one(b"") == {}
    with pytest.raises(OSError, match="no answer"):
        KvStateSerializer(ValueStateDescriptor("value")).deserialize_one(b"")


def test_query_answer_with_a_value_that_cannot_be_stored_raises_an_error() -> None:
    """QS-09."""
    with pytest.raises(StateError, match="generator cannot be stored"):
        KvStateSerializer(None).serialize([(n for n in range(3))])


def test_query_with_another_declared_type_is_refused() -> None:
    stored = KvStateSerializer(ValueStateDescriptor("v", Types.LONG())).serialize([1])
    reader = KvStateSerializer(ValueStateDescriptor("v", Types.STRING()))
    with pytest.raises(StateMigrationError, match="stored as Long and is asked for as String"):
        reader.deserialize(stored)


def test_query_that_declares_other_row_fields_gets_none_for_fields_not_stored() -> None:
    def declared(*names: str) -> StateDescriptor:
        types = [Types.LONG()] * len(names)
        return ValueStateDescriptor("row", Types.ROW_NAMED(list(names), types))

    stored = KvStateSerializer(declared("a", "b")).serialize([Row(a=1, b=2)])
    assert KvStateSerializer(declared("b", "c")).deserialize(stored) == [Row(b=2, c=None)]


def test_query_answer_from_state_with_a_time_to_live_contains_the_plain_value() -> None:
    expiring: StateDescriptor = ValueStateDescriptor("v", Types.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(10).build())
    stored = KvStateSerializer(expiring).serialize([1])
    assert KvStateSerializer(ValueStateDescriptor("v", Types.LONG())).deserialize(stored) == [1]


def test_copy_of_a_queryable_state_serializer_shares_no_writer_with_the_original() -> None:
    """QS-08."""
    serializer = KvStateSerializer(LIST)
    copied = serializer.copy()
    assert copied.serialize([[1]]) == serializer.serialize([[1]])
    assert copied._writer is not serializer._writer


@pytest.mark.parametrize("namespace", [[0, 10], {"a": 1}, ([0],)], ids=str)
def test_namespace_that_cannot_be_hashed_is_refused(namespace: Any) -> None:
    with pytest.raises(MalformedKvStateError, match="no keys with a namespace"):
        deserialize_keys_and_namespace(serialize_keys_and_namespace(["k"], namespace))


def test_damaged_decimal_in_a_queried_key_is_refused() -> None:
    """The text of the decimal 1.2 is cut so that it is no number."""
    decimal = b"\x92\x92\x90\x93\x02\xa7Decimal\x92\x00\x91\xa31.\x13\x92\x90\x92\x00\x90"
    with pytest.raises(MalformedKvStateError, match="no keys with a namespace"):
        deserialize_keys_and_namespace(decimal)
