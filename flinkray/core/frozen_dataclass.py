"""Frozen, slotted dataclasses that are cheap to define.

:func:`dataclasses.dataclass` compiles six methods for each class, which takes 0.5 ms. flinkray has
hundreds of such classes, and a process uses few of the classes that it imports, and often only
their constructors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields, make_dataclass
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(cls: type[T]) -> type[T]:
    """Like ``dataclass(frozen=True, slots=True)``, but the code of a method is compiled when the
    class is first used. Then a wrong order of fields with and without defaults is also reported."""
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    own = vars(made)
    for name, method in _SHARED.items():
        if name not in own:
            setattr(made, name, method)
    for name in ("__init__", "__repr__", "__eq__", "__hash__"):
        is_given = name in cls.__dict__ and not (
            name == "__hash__" and cls.__hash__ is None and "__eq__" in cls.__dict__
        )
        if not is_given:
            setattr(made, name, _CompiledAtFirstUse(made, name))
    return made


def is_made_by_frozen_dataclass(kind: type) -> bool:
    """Return whether :func:`frozen_dataclass` has made the class itself, not a base class."""
    return kind.__dict__.get("__setattr__") is _setattr


class _CompiledAtFirstUse:
    """The place of a method, which is compiled and put there by the first access."""

    def __init__(self, cls: type, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: object, owner: type) -> Any:
        cls, name = self._cls, self._name
        is_init = name == "__init__"
        made = make_dataclass(
            cls.__name__,
            [(each.name, each.type, each) for each in fields(cls)],
            namespace={k: getattr(cls, k) for k in ("__post_init__",) if hasattr(cls, k)},
            init=is_init,
            frozen=is_init,
            repr=name == "__repr__",
            eq=name == "__eq__",
            unsafe_hash=name == "__hash__",
        )
        method = vars(made)[name]
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
        return method.__get__(instance, owner)


def _setattr(self: Any, name: str, value: object) -> None:
    if name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delattr(self: Any, name: str) -> None:
    if name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _getstate(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in fields(self)]


def _setstate(self: Any, state: Sequence[object]) -> None:
    for each, value in zip(fields(self), state, strict=False):
        object.__setattr__(self, each.name, value)


_SHARED = {
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
"""Methods that are the same for all classes. The form of a pickle is that of a dataclass."""
