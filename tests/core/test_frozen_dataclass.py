"""Frozen dataclasses whose methods are compiled at first use behave like those of dataclasses."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import (
    FrozenInstanceError,
    asdict,
    dataclass,
    field,
    fields,
    is_dataclass,
    replace,
)
from typing import Any, Generic, TypeVar

import cloudpickle
import pytest

from flinkray.core.frozen_dataclass import frozen_dataclass

T = TypeVar("T")


@frozen_dataclass
class Lazy(Generic[T]):
    first: int
    second: str = "two"
    items: list[T] = field(default_factory=list, compare=False, repr=False)
    last: int = field(default=0, kw_only=True)
    double: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.first)


@dataclass(frozen=True, slots=True)
class Eager(Generic[T]):
    first: int
    second: str = "two"
    items: list[T] = field(default_factory=list, compare=False, repr=False)
    last: int = field(default=0, kw_only=True)
    double: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.first)


Lazy.__qualname__ = Eager.__qualname__  # for the comparison of texts


def test_class_has_fields_signature_texts_and_hash_of_a_dataclass() -> None:
    lazy: Lazy[str] = Lazy(1, "x", ["a"], last=3)
    eager: Eager[str] = Eager(1, "x", ["a"], last=3)
    assert is_dataclass(Lazy)
    assert [f.name for f in fields(Lazy)] == [f.name for f in fields(Eager)]
    assert inspect.signature(Lazy) == inspect.signature(Eager)
    assert (repr(lazy), hash(lazy), asdict(lazy)) == (repr(eager), hash(eager), asdict(eager))
    assert not hasattr(lazy, "__dict__")


def test_objects_are_equal_by_their_compared_fields_and_class() -> None:
    assert Lazy(1, items=[1]) == Lazy(1, items=[2])
    assert Lazy(1) != Lazy(2)
    assert Lazy(1) != object()


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy, lambda it: replace(it, first=1)])
def test_copy_is_equal(copies: object) -> None:
    assert callable(copies)
    assert copies(Lazy(1, "x", last=2)) == Lazy(1, "x", last=2)


def test_fields_can_neither_be_assigned_nor_deleted() -> None:
    it: Lazy[str] = Lazy(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'first'"):
        it.first = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'first'"):
        del it.first
    with pytest.raises(AttributeError):
        it.third = 2  # type: ignore[attr-defined]


def test_each_method_can_be_the_first_one_that_is_used() -> None:
    def define() -> Any:
        @frozen_dataclass
        class Local:
            x: int = 1

        return Local

    def empty(cls: Any) -> object:
        it = cls.__new__(cls)
        it.__setstate__([1])
        return it

    assert empty(define()).__repr__().endswith("Local(x=1)")
    assert hash(empty(define())) == hash((1,))
    assert inspect.signature(define()).parameters["x"].default == 1
    cls = define()
    assert empty(cls) == empty(cls)


def test_own_methods_and_those_of_subclasses_stay() -> None:
    @frozen_dataclass
    class Own:
        x: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

    class Plain(Own):
        pass

    @frozen_dataclass
    class More(Own):
        y: int = 2

    assert repr(Own(1)) == "own"
    assert Own(1) == Own(2)
    assert hash(Own(1)) == hash((1,))
    assert (Plain(3).x, Plain(3)) == (3, Own(4))
    assert (More(1, 5).x, More(1, 5).y, repr(More(1))) == (1, 5, f"{More.__qualname__}(x=1, y=2)")


def test_object_is_pickled_as_a_dataclass_is() -> None:
    assert pickle.loads(pickle.dumps(Picked(7, "x"))) == Picked(7, "x")
    assert Eager(7, "x").__getstate__() == Lazy(7, "x").__getstate__()  # type: ignore[attr-defined]


def test_class_that_travels_by_value_works_before_and_after_its_first_use() -> None:
    @frozen_dataclass
    class Travels:
        x: int

    for _ in range(2):
        other = cloudpickle.loads(cloudpickle.dumps(Travels))
        assert repr(other(1)).endswith("Travels(x=1)")
        assert Travels(1).x == 1


@frozen_dataclass
class Picked:
    first: int
    second: str
