"""Stored state whose types have changed: read as it is, migrated, or refused with a clear text."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state import (
    KeyContext,
    KeyedSnapshot,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorSnapshot,
    OperatorStateBackend,
    StateMigrationError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.state.key_group_assignment import KEY_KINDS, key_group_of
from flinkray.state.key_values import as_key
from flinkray.state.row_table import RowTable
from flinkray.state.snapshots import SerializerSnapshot, TableSnapshot
from flinkray.state.state_serializer import StateSerializer
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row, RowKind
from flinkray.streaming.records.typeinfo import TypeInformation, Types
from tests.state.every_backend import make_backend, on_every_backend

Define = Callable[..., Any]


pytestmark = on_every_backend


@pytest.fixture
def define() -> Iterator[Define]:
    """Makes a dataclass of a module that can be imported, in place of the one before."""
    module = sys.modules["evolving"] = ModuleType("evolving")

    def define(*fields: Any, name: str = "Thing", **options: Any) -> Any:
        kind = make_dataclass(name, fields, **options)
        kind.__module__ = "evolving"
        setattr(module, name, kind)
        return kind

    yield define
    del sys.modules["evolving"]


def stored(key: Any, value: Any, descriptor: Any = None) -> KeyedSnapshot:
    backend = make_backend(now=lambda: 0)
    state = backend.state(descriptor or ValueStateDescriptor("state"))
    backend.context.key = key
    state.update(value)
    return backend.snapshot()


def restored(snapshot: KeyedSnapshot, key: Any, descriptor: Any = None) -> Any:
    backend = make_backend(now=lambda: 0)
    backend.restore([snapshot])
    state = backend.state(descriptor or ValueStateDescriptor("state"))
    backend.context.key = key
    return state.value()


def test_added_fields_get_their_defaults_and_removed_fields_are_dropped(define: Define) -> None:
    """OS-09: after migration."""
    was = define(("a", int), ("gone", str))
    snapshot = stored("k", [was(1, "x"), was(2, "y")])
    now = define(("b", list, field(default_factory=list)), ("a", int, 0), ("c", int, 7))
    one, other = restored(snapshot, "k")
    assert (one, other) == (now([], 1, 7), now([], 2, 7))
    assert one.b is not other.b
    assert restored(stored("k", [one]), "k") == [one]


class Defaults:
    """An object that can be changed, and is the default of a field all the same."""

    def __init__(self) -> None:
        self.values: list[int] = []


def test_each_migrated_value_has_its_own_copy_of_a_mutable_default(define: Define) -> None:
    was = define(("a", int))
    snapshot = stored("k", [was(1), was(2)])
    define(("a", int), ("b", Defaults, Defaults()))
    one, other = restored(snapshot, "k")
    one.b.values.append(1)
    assert other.b.values == []


def test_value_of_a_nan_key_in_a_hand_written_snapshot_is_found_after_a_restore(
    define: Define,
) -> None:
    """NaN is one key of state, although NaN is not equal to itself in a dict."""
    writer = StateSerializer(ValueStateDescriptor("state")).writer()
    payload = writer.write(([float("nan")], None), [5], ([], None))
    group = key_group_of(float("nan"), 128)
    table = TableSnapshot("value", False, True, {group: payload}, writer.snapshot())
    snapshot = KeyedSnapshot(KeyGroupRange(0, 127), {"state": table})
    assert restored(snapshot, as_key(float("nan"))) == 5


def test_stored_values_of_unchanged_classes_are_read_without_migration(define: Define) -> None:
    """OS-09: as is."""
    kind = define(("a", int), frozen=True)
    assert restored(stored(kind(1), kind(2)), kind(1)) == kind(2)


def test_added_field_without_default_is_refused_at_registration(
    define: Define,
) -> None:
    """OS-09: at registration, not at restore. OS-10: of a value."""
    snapshot = stored("k", define(("a", int))(1))
    define(("a", int), ("b", int))
    backend = make_backend()
    backend.restore([snapshot])
    with pytest.raises(StateMigrationError, match=r"'state': .*Thing .*defaults: b; give them"):
        backend.state(ValueStateDescriptor("state"))
    again = make_backend()
    again.restore([backend.snapshot()])
    define(("a", int), ("b", int, 3))
    again.context.key = "k"
    assert again.state(ValueStateDescriptor("state")).value().b == 3


def test_missing_or_non_dataclass_type_of_stored_state_is_refused(define: Define) -> None:
    """OS-09: incompatible."""
    snapshot = stored("k", define(("a", int))(1))
    sys.modules["evolving"].Thing = int  # type: ignore[attr-defined]
    with pytest.raises(StateMigrationError, match="no dataclass"):
        restored(snapshot, "k")
    del sys.modules["evolving"].Thing
    with pytest.raises(StateMigrationError, match=r"no evolving:Thing any more.*bring the class"):
        restored(snapshot, "k")


def test_removed_enumeration_member_in_stored_state_is_refused(define: Define) -> None:
    module = sys.modules["evolving"]
    for members in ("ONE TWO", "TWO"):
        kind: Any = enum.Enum("Number", members, module="evolving")  # type: ignore[misc]
        module.Number = kind  # type: ignore[attr-defined]
        if members == "ONE TWO":
            snapshot = stored("k", kind["ONE"])
    with pytest.raises(StateMigrationError, match="no member 'ONE' any more"):
        restored(snapshot, "k")


def test_missing_pickled_class_in_stored_state_is_refused(define: Define) -> None:
    class Opaque:
        pass

    Opaque.__module__, Opaque.__qualname__ = "evolving", "Opaque"
    sys.modules["evolving"].Opaque = Opaque  # type: ignore[attr-defined]
    snapshot = stored("k", Opaque())
    assert snapshot.tables["state"].serializer.pickled == ("evolving.Opaque",)
    del sys.modules["evolving"].Opaque
    with pytest.raises(StateMigrationError, match="what was pickled cannot be read"):
        restored(snapshot, "k")


def test_key_of_a_class_that_has_changed_is_refused_at_restore(define: Define) -> None:
    """OS-10: a key cannot be migrated, not even to a field with a default."""
    was = define(("a", int), frozen=True)
    of_table = stored(was(1), "value")
    backend = make_backend()
    backend.timer_queue("timers").add(5, was(1), None)
    of_timers = backend.snapshot()
    define(("a", int), ("b", int, 0), frozen=True)
    for snapshot in (of_table, of_timers):
        with pytest.raises(StateMigrationError, match=r"with b.*cannot be migrated"):
            make_backend().restore([snapshot])


def test_namespace_of_a_class_that_has_changed_is_refused_at_restore(define: Define) -> None:
    """OS-10"""
    was = define(("a", int), frozen=True)
    backend = make_backend()
    window = KeyContext()
    state = backend.state(ValueStateDescriptor("state"), window)
    window.key = ("k", was(1))
    state.update(1)
    snapshot = backend.snapshot()
    make_backend().restore([snapshot])
    define(("a", int), ("b", int, 0), frozen=True)
    with pytest.raises(StateMigrationError, match="keys and namespaces cannot be migrated"):
        make_backend().restore([snapshot])


def row_type(**fields: Any) -> Any:
    return Types.ROW_NAMED(list(fields), list(fields.values()))


def of(type_info: Any, *, expires: bool = False) -> ValueStateDescriptor[Any]:
    descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor("state", type_info)
    if expires:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(100).build())
    return descriptor


def test_declared_rows_are_migrated_to_added_removed_and_reordered_fields() -> None:
    """OS-09: after migration."""
    was = of(row_type(id=Types.INT(), gone=Types.STRING(), name=Types.STRING()))
    snapshot = stored("k", Row(id=1, gone="x", name="Ada"), was)
    fields = {"name": Types.STRING(), "id": Types.INT(), "new": Types.DOUBLE()}
    row = restored(snapshot, "k", of(row_type(**fields)))
    kind = Row.of_kind(RowKind.DELETE, 1, "x", "Ada")
    kind.set_field_names(["id", "gone", "name"])
    changed = restored(stored("k", kind, was), "k", of(row_type(**fields)))
    assert (changed.as_dict(), changed.get_row_kind()) == (row.as_dict(), RowKind.DELETE)
    assert (row.as_dict(), row._fields) == (
        {"name": "Ada", "id": 1, "new": None},
        ["name", "id", "new"],
    )


def ints(*names: str) -> Any:
    return row_type(**dict.fromkeys(names, Types.INT()))


def test_two_rows_with_equal_field_names_are_migrated_by_their_own_declarations() -> None:
    """OS-09"""
    was = row_type(l=ints("a", "b"), r=ints("a", "b"), z=ints("a", "b"))
    value = Row(l=Row(a=1, b=2), r=Row(a=3, b=4), z=Row(a=5, b=6))
    now = row_type(z=ints("a", "b"), l=ints("a", "b", "c"), r=ints("b"))
    row = restored(stored("k", value, of(was)), "k", of(now))
    assert row == Row.of(
        ["z", "l", "r"], [Row(a=5, b=6), Row(a=1, b=2, c=None), Row.of(["b"], [4])]
    )


def test_inner_and_outer_rows_with_equal_field_names_are_migrated_separately() -> None:
    """OS-09"""
    was = row_type(a=Types.INT(), b=ints("a", "b"))
    value = Row(a=1, b=Row(a=5, b=6))
    outer = restored(stored("k", value, of(was)), "k", of(row_type(b=ints("a", "b"))))
    assert outer == Row(b=Row(a=5, b=6))
    inner = row_type(a=Types.INT(), b=ints("a"))
    assert restored(stored("k", value, of(was)), "k", of(inner)) == Row(a=1, b=Row(a=5))


def test_rows_in_values_without_a_declared_type_are_not_migrated() -> None:
    """OS-09"""
    anything = Types.PICKLED_BYTE_ARRAY()
    was, now = row_type(a=anything, b=Types.INT()), row_type(a=anything)
    value = Row(a=[Row(a=1, b=2)], b=3)
    assert restored(stored("k", value, of(was)), "k", of(now)) == Row(a=[Row(a=1, b=2)])
    other = Row(x=Row(a=1, b=2))
    assert restored(stored("k", other, of(was)), "k", of(now)) == other


def test_positional_rows_are_migrated_by_their_declared_order() -> None:
    """OS-09"""
    snapshot = stored("k", Row(1, Row(2, 3)), of(row_type(x=Types.INT(), y=ints("a", "b"))))
    now = row_type(y=ints("c", "b"), new=Types.INT(), x=Types.INT())
    assert restored(snapshot, "k", of(now)) == Row(Row(None, 3), None, 1)
    assert restored(snapshot, "k", of(row_type(x=Types.INT()))) == Row(1)
    deleted = stored("k", Row.of_kind(RowKind.DELETE, 1, 2), of(ints("x", "y")))
    assert restored(deleted, "k", of(ints("y"))) == Row.of_kind(RowKind.DELETE, 2)
    others = stored("k", Row(1, 2, 3), of(ints("x", "y")))
    assert restored(others, "k", of(ints("y", "x"))) == Row(1, 2, 3)


def test_unnamed_row_fields_are_migrated_to_named_fields_by_position() -> None:
    """OS-09"""
    unnamed = Types.ROW([Types.INT(), Types.STRING()])
    named = row_type(x=Types.INT(), y=Types.STRING())
    longer = row_type(x=Types.INT(), y=Types.STRING(), z=Types.INT())
    assert restored(stored("k", Row(1, "a"), of(unnamed)), "k", of(named)) == Row(1, "a")
    assert restored(stored("k", Row(1, "a"), of(unnamed)), "k", of(longer)) == Row(1, "a", None)
    assert restored(stored("k", Row(1, "a"), of(named)), "k", of(unnamed)) == Row(1, "a")
    other = row_type(x=Types.STRING(), y=Types.INT())
    with pytest.raises(StateMigrationError, match="stored as Integer and is asked for as String"):
        restored(stored("k", Row(1, "a"), of(unnamed)), "k", of(other))


@pytest.mark.parametrize("expires", [False, True])
def test_rows_in_values_of_a_map_are_migrated_and_rows_in_its_keys_are_not(expires: bool) -> None:
    """OS-09"""
    was: Any = MapStateDescriptor("state", ints("a", "b"), ints("a", "b"))
    now: Any = MapStateDescriptor("state", ints("a", "b"), ints("b", "c"))
    if expires:
        for descriptor in (was, now):
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(100).build())
    backend, again = make_backend(now=lambda: 0), make_backend(now=lambda: 0)
    state = backend.state(was)
    backend.context.key = "k"
    state.put(Row(a=1, b=2), Row(a=3, b=4))
    again.restore([backend.snapshot()])
    migrated = again.state(now)
    again.context.key = "k"
    assert list(migrated.items()) == [(Row(a=1, b=2), Row(b=4, c=None))]


@pytest.mark.parametrize("expires", [False, True])
def test_rows_in_lists_are_migrated_to_the_current_fields(expires: bool) -> None:
    """OS-09"""
    was: Any = ListStateDescriptor("state", ints("a", "b"))
    now: Any = ListStateDescriptor("state", ints("b"))
    if expires:
        for descriptor in (was, now):
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(100).build())
    backend, again = make_backend(now=lambda: 0), make_backend(now=lambda: 0)
    state = backend.state(was)
    backend.context.key = "k"
    state.add(Row(a=1, b=2))
    state.add(Row(3, 4))
    again.restore([backend.snapshot()])
    migrated = again.state(now)
    again.context.key = "k"
    assert list(migrated.get()) == [Row(b=2), Row(4)]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (Types.INT(), Types.STRING()),
        (row_type(a=Types.INT()), row_type(a=Types.STRING())),
        (row_type(a=Types.INT()), Types.INT()),
        (Types.LIST(Types.INT()), Types.LIST(Types.LONG())),
        (int, str),
    ],
    ids=repr,
)
def test_restored_state_with_another_declared_type_is_refused(was: Any, now: Any) -> None:
    """OS-09: incompatible."""
    snapshot = stored("k", 1, of(was))
    with pytest.raises(StateMigrationError, match=r"'state': it was stored as .*asked for as"):
        restored(snapshot, "k", of(now))


@pytest.mark.parametrize("declared", [None, Types.PICKLED_BYTE_ARRAY(), Types.INT()], ids=repr)
def test_state_stored_or_restored_without_a_declared_type_accepts_every_type(declared: Any) -> None:
    assert restored(stored("k", 1, of(declared)), "k", of(None)) == 1
    assert restored(stored("k", 1, of(None)), "k", of(declared)) == 1


def test_restored_state_that_gains_or_loses_a_time_to_live_is_refused() -> None:
    plain, expiring = of(None), of(None, expires=True)
    for was, now in ((plain, expiring), (expiring, plain)):
        with pytest.raises(StateMigrationError, match="time to live"):
            restored(stored("k", 1, was), "k", now)
    assert restored(stored("k", 1, expiring), "k", expiring) == 1


def test_keyed_state_of_a_newer_serializer_version_is_refused() -> None:
    snapshot = stored("k", 1)
    table = snapshot.tables["state"]
    newer = table._replace(serializer=_newer(table.serializer))
    with pytest.raises(StateMigrationError, match=r"version 2.*use the flinkray that wrote it"):
        restored(KeyedSnapshot(snapshot.key_groups, {"state": newer}), "k")


def _newer(serializer: SerializerSnapshot) -> SerializerSnapshot:
    return replace(serializer, version=serializer.version + 1)


def test_operator_state_of_a_newer_serializer_version_is_refused() -> None:
    snapshot = of_operator(lambda backend: backend.list_state(ELEMENTS).add(1))
    state = snapshot.states["state"]
    newer = replace(state, elements=(), serializer=_newer(state.serializer))
    backend = OperatorStateBackend()
    backend.restore([OperatorSnapshot({"state": newer})])
    with pytest.raises(StateMigrationError, match=r"version 2.*use the flinkray that wrote it"):
        backend.list_state(ELEMENTS)


# --- operator state


def of_operator(fill: Callable[[OperatorStateBackend], None]) -> OperatorSnapshot:
    backend = OperatorStateBackend()
    fill(backend)
    snapshot = backend.snapshot()
    assert snapshot is not None
    return snapshot


ELEMENTS: ListStateDescriptor[Any] = ListStateDescriptor("state")
ENTRIES: MapStateDescriptor[Any, Any] = MapStateDescriptor("state")


@pytest.mark.parametrize("mode", ["list", "union", "broadcast key", "broadcast value"])
def test_operator_state_is_migrated_or_refused_at_registration(define: Define, mode: str) -> None:
    """OS-09"""
    was = define(("a", int), frozen=True)

    def state(backend: OperatorStateBackend) -> Any:
        if mode == "list":
            return backend.list_state(ELEMENTS)
        if mode == "union":
            return backend.union_list_state(ELEMENTS)
        return backend.broadcast_state(ENTRIES)

    def fill(backend: OperatorStateBackend) -> None:
        if mode in ("list", "union"):
            state(backend).add(was(1))
        else:
            state(backend).put(*((was(1), 0) if mode == "broadcast key" else (0, was(1))))

    snapshot = of_operator(fill)
    backend = OperatorStateBackend()
    backend.restore([snapshot])
    define(("a", int), ("b", int), frozen=True)
    with pytest.raises(StateMigrationError, match=r"'state': .*without defaults: b"):
        state(backend)
    now = define(("a", int), ("b", int, 5), frozen=True)
    found = state(backend)
    if mode in ("list", "union"):
        assert list(found.get()) == [now(1, 5)]
    else:
        assert now(1, 5) in (next(iter(found.keys())), next(iter(found.values())))


@dataclass
class Element:
    number: int


def test_operator_state_of_another_declared_type_is_refused() -> None:
    """OS-09"""
    typed: ListStateDescriptor[Any] = ListStateDescriptor("state", Types.INT())
    other: ListStateDescriptor[Any] = ListStateDescriptor("state", Types.STRING())
    snapshot = of_operator(lambda backend: backend.list_state(typed).add(1))
    backend = OperatorStateBackend()
    backend.restore([snapshot])
    with pytest.raises(StateMigrationError, match="stored as Integer"):
        backend.list_state(other)
    assert list(backend.list_state(typed).get()) == [1]


def test_operator_snapshot_names_types_that_only_pickle_can_store() -> None:
    """A warning can then name these types."""
    snapshot = of_operator(lambda backend: backend.list_state(ELEMENTS).add_all([object, Element]))
    assert snapshot.states["state"].serializer.pickled == ("builtins.type",)
    another = of_operator(lambda backend: backend.list_state(ELEMENTS).add(Defaults()))
    backend = OperatorStateBackend()
    backend.restore([snapshot, another])
    together = backend.snapshot()
    assert together is not None
    pickled = together.states["state"].serializer.pickled
    assert pickled == ("builtins.type", f"{__name__}.Defaults")


def test_rows_in_values_of_broadcast_state_are_migrated_and_keys_are_not() -> None:
    """OS-09"""
    was: Any = MapStateDescriptor("state", ints("a", "b"), ints("a", "b"))
    now: Any = MapStateDescriptor("state", ints("a", "b"), ints("b"))
    snapshot = of_operator(lambda b: b.broadcast_state(was).put(Row(a=1, b=2), Row(a=3, b=4)))
    backend = OperatorStateBackend()
    backend.restore([snapshot])
    assert list(backend.broadcast_state(now).items()) == [(Row(a=1, b=2), Row(b=4))]


def test_rows_in_operator_state_are_migrated_to_the_current_fields() -> None:
    """OS-09"""
    was: Any = ListStateDescriptor("state", ints("a", "b"))
    now: Any = ListStateDescriptor("state", ints("b"))
    snapshot = of_operator(lambda b: b.list_state(was).add(Row(a=1, b=2)))
    backend = OperatorStateBackend()
    backend.restore([snapshot])
    assert list(backend.list_state(now).get()) == [Row(b=2)]


def test_values_of_keys_that_a_new_key_type_moves_to_other_groups_are_refused() -> None:
    """If all keys stay in their key groups, the values are read."""
    before = make_backend(now=lambda: 0)
    state = before.state(ValueStateDescriptor("state"))
    for before.context.key in range(-10, 0):
        state.update(7)
    snapshot = before.snapshot()
    refused = r"state 'state' was stored for -\d+ in key group \d+, and that .*key_by the key_type"
    for key_type, text in (("INT", refused), ("DOUBLE", refused), ("STRING", "of the key_type")):
        after = make_backend(now=lambda: 0, hash_of=KEY_KINDS[key_type].hash_of)
        after.restore([snapshot])
        with pytest.raises(StateMigrationError, match=text):
            after.state(ValueStateDescriptor("state"))
    after = make_backend(now=lambda: 0, hash_of=KEY_KINDS["LONG"].hash_of)
    after.restore([snapshot])
    found, after.context.key = after.state(ValueStateDescriptor("state")), -3
    assert found.value() == 7


def test_timers_of_keys_that_a_new_key_type_moves_to_other_groups_are_refused() -> None:
    before = make_backend(now=lambda: 0)
    for key in range(-10, 0):
        before.timer_queue("timers").add(5, key, None)
    after = make_backend(now=lambda: 0, hash_of=KEY_KINDS["INT"].hash_of)
    with pytest.raises(StateMigrationError, match="a timer of 'timers' was stored for -"):
        after.restore([before.snapshot()])


def test_columns_of_keys_that_a_new_key_type_moves_to_other_groups_are_refused() -> None:
    """If all keys stay in their key groups, the columns are read."""
    before = make_backend(now=lambda: 0)
    table = before.columns("numbers")
    table.column("n", np.int64)
    keys = list(range(-10, 0))
    table.slots_of(keys)
    table.values("n")[:] = 7
    snapshot = before.snapshot()
    refused = (
        r"state 'numbers' was stored for -\d+ in key group \d+, and that .*key_by the key_type"
    )
    for key_type, text in (("INT", refused), ("DOUBLE", refused), ("STRING", "of the key_type")):
        after = make_backend(now=lambda: 0, hash_of=KEY_KINDS[key_type].hash_of)
        after.restore([snapshot])
        with pytest.raises(StateMigrationError, match=text):
            after.columns("numbers")
    after = make_backend(now=lambda: 0, hash_of=KEY_KINDS["LONG"].hash_of)
    after.restore([snapshot])
    found = after.columns("numbers")
    found.column("n", np.int64)
    assert sorted(found.keys) == keys
    assert found.values("n").tolist() == [7] * len(keys)


def test_rows_of_keys_that_a_new_key_type_moves_to_other_groups_are_refused() -> None:
    columns = Columns(pa.record_batch({"k": list(range(-10, 0))}))

    def table_of(backend: KeyedStateBackend, key_type: TypeInformation | None) -> RowTable:
        keys = Keys("k", key_type)
        return backend.rows("rows", keys_of=lambda batch: keys.of_columns(Columns(batch)))

    before = make_backend(now=lambda: 0)
    table_of(before, None).append(columns.batch)
    snapshot = before.snapshot()
    refused = (
        r"state 'rows' was stored for -\d+(\.0)? in key group \d+, and that .*key_by the key_ty"
    )
    for key_type, text in (
        (Types.INT(), refused),
        (Types.DOUBLE(), refused),
        (Types.STRING(), "state 'rows' was stored for keys that are not of the key_type"),
    ):
        after = make_backend(now=lambda: 0, hash_of=Keys("k", key_type).hash_of)
        after.restore([snapshot])
        with pytest.raises(StateMigrationError, match=text):
            table_of(after, key_type)
    after = make_backend(now=lambda: 0, hash_of=KEY_KINDS["LONG"].hash_of)
    after.restore([snapshot])
    assert sum(rows.batch.num_rows for rows in table_of(after, Types.LONG())) == 10
