"""Pickling of what may hold the user's own code: functions, and classes that have no module.

cloudpickle writes them by value.  From 3.1.3 on it leaves out which file they come from, and a
failing function is told at ``<dynamic-code>``, without its line of code.  What is pickled here
keeps its file names, whichever release is installed.

It also rebuilds classes with ``__slots__`` as classes without: their objects have a ``__dict__``
where they were rebuilt, and cannot be read where they come from.  Here they keep their slots.

And it cannot rebuild enumerations in which a value has several names, or flags with names for
several of them at once (from Python 3.11 on).  Here they have all their names.
"""

from __future__ import annotations

import enum
import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from typing import IO, Any, ClassVar, NamedTuple

import cloudpickle

_NAMELESS = "<dynamic-code>"


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(
        code.co_filename if isinstance(it, str) and it == _NAMELESS else it for it in arguments
    )


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """cloudpickle's pickler; code keeps the name of its file, and classes keep their slots."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(value, enum.EnumMeta):
            return _with_all_names(value, reduced)
        if isinstance(value, type) and "__slots__" in vars(value):
            return _with_slots(value, reduced)
        return reduced


def _with_slots(kind: type, reduced: Any) -> Any:
    """The class is made with them; if it is written by value."""
    if not isinstance(reduced, tuple) or reduced[0].__name__ != "_make_skeleton_class":
        return reduced
    make, (metaclass, name, bases, namespace, *others), *state = reduced
    if NamedTuple in bases:  # it makes the slots itself, and lets nobody else do so
        return reduced
    with_slots = {**namespace, "__slots__": vars(kind)["__slots__"]}
    return make, (metaclass, name, bases, with_slots, *others), *state


def _with_all_names(kind: enum.EnumMeta, reduced: Any) -> Any:
    """The enumeration is made with them, and is not given them afterwards; if it is written by
    value."""
    if not isinstance(reduced, tuple) or reduced[0].__name__ != "_make_skeleton_enum":
        return reduced
    make, (bases, name, qualname, _, *others), (namespace, slots), *state = reduced
    members: Any = kind.__members__
    values = {each: member.value for each, member in members.items()}
    rest = {each: it for each, it in namespace.items() if each not in members}
    return make, (bases, name, qualname, values, *others), (rest, slots), *state


class _ClassPickler(CodePickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.by_value: list[type] = []

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(value, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            self.by_value.append(value)  # else it is a call that finds the class
        return reduced


def dump(value: object, file: IO[bytes]) -> None:
    """As :func:`dumps`, into *file*; :func:`pickle.load` reads it."""
    CodePickler(file).dump(value)


def dumps(
    value: object,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes:
    """Pickle *value*; :func:`pickle.loads` is the inverse.

    Raises:
        pickle.PicklingError, TypeError, AttributeError, RecursionError: something in *value* cannot
            be pickled.
    """
    with io.BytesIO() as file:
        CodePickler(file, protocol, buffer_callback).dump(value)
        return file.getvalue()


def dumps_with_classes(value: object) -> tuple[bytes, list[type]]:
    """The same, and the classes that were written by value."""
    with io.BytesIO() as file:
        pickler = _ClassPickler(file)
        pickler.dump(value)
        return file.getvalue(), pickler.by_value
