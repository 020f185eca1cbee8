"""Copies of what can be changed, and of nothing else."""

from __future__ import annotations

import collections
import dataclasses
import enum
import pickle
import threading
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest

from flinkray.core.frozen_dataclass import frozen_dataclass
from flinkray.core.values import own, own_all
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.records.row import Row, RowKind


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    name: str
    parts: Any


@dataclasses.dataclass
class Account:
    owner: str
    entries: list[int]


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class InheritsFrozen(Frozen):
    pass


@dataclasses.dataclass(slots=True)
class Slim:
    entries: list[int]


class Plain:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def see(self, value: int) -> None:
        self.seen.append(value)


class Noted(collections.namedtuple("Noted", "a b")):
    """Without ``__slots__``, as most are."""

    notes: list[int]

    def noted(self, notes: list[int]) -> Noted:
        self.notes = notes
        return self


class Locked:
    """Has no copy, because of one of its parts."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.lock = threading.Lock()


class Counted(Plain):
    copies = 0

    def __deepcopy__(self, memo: Any) -> Counted:
        Counted.copies += 1
        return Counted()


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        2.5,
        "text",
        b"bytes",
        (1, "a", None),
        (1, (2, (3,))),
        frozenset({1}),
        Colour.RED,
        Decimal("1.5"),
        datetime(2026, 1, 1, tzinfo=timezone.utc),
        np.int64(1),
        np.datetime64("2026-01-01"),
        pd.Timestamp("2026-01-01"),
        pa.scalar(1),
        pa.array([1]),
        pa.record_batch({"a": [1]}),
        pa.table({"a": [1]}),
        Pair("a", 1),
        Point(1, 2),
        OutputTag("late"),
        (OutputTag("late"), 1),
        len,
        Plain,
        Plain.__init__,
    ],
    ids=lambda value: type(value).__name__,
)
def test_immutable_value_is_not_copied_for_a_function(value: Any) -> None:
    assert own(value) is value
    values = [value, value]
    assert [one is value for one in own_all(values)] == [True, True]


@pytest.mark.parametrize(
    ("value", "change", "seen"),
    [
        ([1], lambda v: v.append(2), lambda v: v),
        ({"a": [1]}, lambda v: v["a"].append(2), lambda v: v),
        ({"a": 1}, lambda v: v.clear(), lambda v: v),
        ({1}, lambda v: v.add(2), lambda v: v),
        (([1],), lambda v: v[0].append(2), lambda v: v),
        ((1, (2, [3])), lambda v: v[1][1].append(4), lambda v: v),
        (Pair("a", [1]), lambda v: v.parts.append(2), lambda v: v),
        (bytearray(b"a"), lambda v: v.append(1), lambda v: v),
        (collections.deque([[1]], 3), lambda v: v[0].append(2), lambda v: (list(v), v.maxlen)),
        (collections.defaultdict(list, a=[1]), lambda v: v["a"].append(2), dict),
        (collections.Counter("aa"), lambda v: v.update("b"), dict),
        (Account("a", [1]), lambda v: v.entries.append(2), lambda v: v),
        (Account("a", [1]), lambda v: setattr(v, "owner", "b"), lambda v: v),
        (Point(1, [2]), lambda v: v.y.append(3), lambda v: v),
        (Slim([1]), lambda v: v.entries.append(2), lambda v: v),
        (Plain(), lambda v: v.seen.append(2), lambda v: v.seen),
        (Row(1, [2]), lambda v: v[1].append(3), lambda v: v),
        (Row(a=1), lambda v: v.__setitem__("a", 2), lambda v: v),
        (np.arange(3), lambda v: v.fill(9), lambda v: v.tolist()),
        (np.array([[1], None], object), lambda v: v[0].append(2), lambda v: v.tolist()),
        (pd.DataFrame({"a": [1]}), lambda v: v.__setitem__("a", [2]), lambda v: v.to_dict()),
        (pd.Series([1]), lambda v: v.__setitem__(0, 2), lambda v: v.to_dict()),
        (np.array([(1, 2)], [("x", int), ("y", int)])[0], lambda v: v.__setitem__("x", 9), tuple),
        (Noted([1], 2).noted([3]), lambda v: v.notes.append(4), lambda v: (v, v.notes)),
        (Noted(1, 2).noted([3]), lambda v: v.notes.append(4), lambda v: (v, v.notes)),
        (collections.Counter({(1, "a"): 2}), lambda v: v.update("b"), dict),
        ({Plain()}, lambda v: next(iter(v)).seen.append(1), lambda v: next(iter(v)).seen),
        (
            frozenset({Plain()}),
            lambda v: next(iter(v)).seen.append(1),
            lambda v: next(iter(v)).seen,
        ),
        ({Plain(): 1}, lambda v: next(iter(v)).seen.append(1), lambda v: next(iter(v)).seen),
        (Plain().see, lambda v: v(2), lambda v: v.__self__.seen),
    ],
    ids=lambda value: type(value).__name__,
)
def test_change_of_a_value_does_not_change_its_copy(value: Any, change: Any, seen: Any) -> None:
    copied = own(value)
    (in_list,) = own_all([value])
    before = repr(seen(value))
    change(value)
    assert repr(seen(value)) != before
    for one in (copied, in_list):
        assert type(one) is type(value)
        assert repr(seen(one)) == before


def test_copied_row_has_the_same_kind_and_field_names() -> None:
    row = Row(a=[1], b=2)
    row.set_row_kind(RowKind.DELETE)
    copied = own(row)
    assert copied == row
    assert copied is not row
    assert copied.get_row_kind() is RowKind.DELETE


def test_value_whose_class_defines_deepcopy_is_copied_by_this_method() -> None:
    own(Counted())
    assert Counted.copies == 1


def test_value_that_contains_itself_is_copied() -> None:
    value: list[Any] = [1]
    value.append(value)
    copied = own(value)
    assert copied is not value
    assert copied[1] is copied


def test_locks_and_generators_in_a_value_are_shared_by_its_copy() -> None:
    lock = threading.Lock()
    assert own(lock) is lock
    generator = (n for n in range(3))
    assert own(generator) is generator


def test_object_that_cannot_be_copied_is_shared_by_the_whole_copy_of_a_value() -> None:
    """No half-made copy of the object is found in the result."""
    inner = Locked([1])
    outer = Locked(inner)
    value = [outer, inner, [2]]
    copied = own(value)
    assert copied[0] is outer
    assert copied[1] is inner
    assert copied[2] is not value[2]


def test_object_that_occurs_twice_in_a_value_is_copied_once() -> None:
    part = [1]
    value: list[Any] = [part]
    for _ in range(100):  # 2 ** 100 lists, if each was copied where it is found
        value = [value, value, part]
    copied = own(value)
    assert copied[0] is copied[1]
    assert copied[2] is copied[0][2] is not part


CHANGEABLE = (list, dict, set, collections.deque, Account, Plain, Slim, Row)


def parts_of(value: Any) -> list[Any] | None:
    """None: it has none that could be changed."""
    if isinstance(value, Account | Plain | Point):
        return list(vars(value).values())
    if isinstance(value, Slim):
        return [value.entries]
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    return list(value) if isinstance(value, list | tuple | Row | collections.deque) else None


def shape(value: Any, seen: dict[int, int]) -> Any:
    """What it consists of, and which of its parts are the same object."""
    if isinstance(value, CHANGEABLE):
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
    parts = parts_of(value)
    described = repr(value) if parts is None else [shape(part, seen) for part in parts]
    return type(value).__name__, described


def changeable(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """All parts that can be changed."""
    if isinstance(value, CHANGEABLE):
        if id(value) in found:
            return found
        found[id(value)] = value
    for part in parts_of(value) or ():
        changeable(part, found)
    return found


def plain(part: Any) -> Plain:
    made = Plain()
    made.seen = part
    return made


@hypothesis.given(st.data())
def test_copy_of_a_value_shares_objects_in_the_same_way_as_its_pickled_copy(
    data: st.DataObject,
) -> None:
    parts: list[Any] = [1, "a", None, (1, 2.5), frozenset({1})]
    some = st.lists(st.integers(0, 1000), max_size=3).map(
        lambda places: [parts[-1 - place % len(parts)] for place in places]
    )
    of: list[Any] = [
        list,
        tuple,
        lambda made: dict(enumerate(made)),
        lambda made: {(0, place): part for place, part in enumerate(made)},
        lambda made: Pair("pair", made),
        lambda made: Account("account", made),
        lambda made: Point(1, made),
        lambda made: Slim(made),
        lambda made: Row(*made),
        collections.deque,
        plain,
    ]
    for make in data.draw(st.lists(st.sampled_from(of), min_size=1, max_size=12)):
        parts.append(make(data.draw(some)))
    for part in parts[-3:]:
        for other in parts:
            if type(part) is list and data.draw(st.booleans()):
                part.append(other)  # it may be within itself, then
    value = parts[-3:]
    before = shape(value, {})
    copied = own(value)
    assert shape(copied, {}) == before == shape(pickle.loads(pickle.dumps(value)), {})
    mine = set(map(id, changeable(value, {}).values()))
    assert not mine & set(map(id, changeable(copied, {}).values()))


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlim:
    part: Any


@attrs.frozen
class FrozenPlace:
    part: Any


class FrozenModel(pydantic.BaseModel, frozen=True):
    part: Any


@pytest.mark.parametrize("kind", [FrozenSlim, FrozenPlace, FrozenModel])
def test_frozen_object_with_only_immutable_fields_is_not_copied(kind: Any) -> None:
    plain, around = kind(part="a"), kind(part=[1])
    assert own(plain) is plain
    copied = own(around)
    assert copied == around
    assert copied.part is not around.part


def test_plain_subclass_of_a_frozen_dataclass_is_copied() -> None:
    """Other attributes can be set on it: without a copy, state changed together with the value of
    the user."""
    value: Any = InheritsFrozen(1)
    value.note = "first"
    owned = own(value)
    value.note = "second"
    assert (owned, owned.note) == (value, "first")


@frozen_dataclass
class Place:
    row: int
    name: str


def test_object_of_a_class_with_methods_compiled_late_is_not_copied() -> None:
    place = Place(1, "a")
    assert own(place) is place


def test_frozen_dataclass_in_a_frozen_dataclass_is_not_copied() -> None:
    nested = Point(1, Point(2, (3, 4)))
    assert own(nested) is nested
    assert own(Point(1, Point(2, [3]))).y.y is not nested.y.y


def test_frozen_object_that_occurs_twice_in_a_value_is_not_copied() -> None:
    nested = Point(1, (2, 3))
    first, second = own([nested, nested])
    assert first is second is nested


@dataclasses.dataclass(frozen=True)
class OneSlot:
    __slots__ = "part"
    part: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return OneSlot, (self.part,)


@dataclasses.dataclass(frozen=True)
class SlotsAndMore:
    __slots__ = ("__dict__", "part")
    part: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return SlotsAndMore, (self.part,), self.__dict__


def test_frozen_class_with_a_single_mutable_slot_is_copied() -> None:
    value = OneSlot([1])
    assert own(value).part is not value.part


def test_frozen_object_is_copied_if_it_has_a_mutable_attribute_beside_its_slots() -> None:
    value: Any = SlotsAndMore("a")
    assert own(value) is value
    object.__setattr__(value, "note", [1])
    assert own(value).note is not value.note


class OpenModel(pydantic.BaseModel):
    part: Any


class WideModel(pydantic.BaseModel, frozen=True, extra="allow"):
    pass


class SecretModel(pydantic.BaseModel, frozen=True):
    _part: list[int] = pydantic.PrivateAttr(default_factory=list)


def test_mutable_models_and_models_with_mutable_fields_are_copied() -> None:
    value = OpenModel(part="a")
    owned = own(value)
    value.part = "b"
    assert owned.part == "a"
    kind: Any = WideModel
    wide = kind(part=[1])
    assert own(wide).part is not wide.part
    secret = SecretModel()
    assert own(secret)._part is not secret._part
