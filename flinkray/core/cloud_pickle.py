"""Pickles values that may contain the user's own functions and classes, which go by value.

This module corrects cloudpickle. It keeps the file names of functions, without which a traceback
has no line of code; the slots of classes; and all names of enumerations with several names for one
value, and of flags with names for combinations.

References to Ray's objects are refused wherever they are nested. A reference that is pickled
outside of Ray names no owner: ``ray.get`` of the reference waits forever. Even with its owner, the
object would be gone when the program that submitted the job has ended.
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

_REFERENCES = ("ObjectRef", "ClientObjectRef")
_OF_RAY_CLIENT = ("ClientActorHandle", "ClientActorClass", "ClientRemoteFunc", "ClientRemoteMethod")
_REFUSED = frozenset(_REFERENCES + _OF_RAY_CLIENT)
"""Names of Ray's classes whose objects cannot be handed over. Ray is not imported for them."""


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(
        code.co_filename if isinstance(it, str) and it == _NAMELESS else it for it in arguments
    )


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    """Pickles like cloudpickle, but keeps file names, slots and enum names, and refuses Ray
    references."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind.__name__ in _REFUSED and kind.__module__.partition(".")[0] == "ray":
            raise pickle.PicklingError(_refusal(kind.__name__))
        reduced = super().reducer_override(value)
        if isinstance(value, enum.EnumMeta):
            return _with_all_names(value, reduced)
        if isinstance(value, type) and "__slots__" in vars(value):
            return _with_slots(value, reduced)
        return reduced


def _refusal(name: str) -> str:
    if name in _REFERENCES:
        return (
            f"{name} is a reference to an object of Ray, which lives no longer than the process "
            "that made it, and cannot be found by others: take the value with ray.get() and hand "
            "that over, or write it to storage, or let an actor keep it (handles of actors can be "
            "handed over)"
        )
    return (
        f"{name} belongs to this process's connection by Ray Client: give the actor a name, and "
        "call ray.get_actor() in open()"
    )


def _with_slots(kind: type, reduced: Any) -> Any:
    """Return *reduced* changed so that the rebuilt class has the ``__slots__`` of *kind*. *reduced*
    describes how to rebuild the class. A class that is pickled by name is returned unchanged."""
    if not isinstance(reduced, tuple) or reduced[0].__name__ != "_make_skeleton_class":
        return reduced
    make, (metaclass, name, bases, namespace, *others), *state = reduced
    if NamedTuple in bases:  # NamedTuple makes the slots itself and refuses others
        return reduced
    with_slots = {**namespace, "__slots__": vars(kind)["__slots__"]}
    return make, (metaclass, name, bases, with_slots, *others), *state


def _with_all_names(kind: enum.EnumMeta, reduced: Any) -> Any:
    """Return *reduced* changed so that the enumeration is rebuilt with all of its names at once.
    An enumeration that is pickled by name is returned unchanged."""
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
            self.by_value.append(value)  # otherwise the class is found by name
        return reduced


def dump(value: object, file: IO[bytes]) -> None:
    """Pickle *value* as :func:`dumps` does and write it to *file*; :func:`pickle.load` reads it."""
    CodePickler(file).dump(value)


def dumps(
    value: object,
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> bytes:
    """Pickle *value*; :func:`pickle.loads` is the inverse. Raises PicklingError, TypeError,
    AttributeError or RecursionError if *value* cannot be pickled."""
    with io.BytesIO() as file:
        CodePickler(file, protocol, buffer_callback).dump(value)
        return file.getvalue()


def dumps_with_classes(value: object) -> tuple[bytes, list[type]]:
    """Pickle *value* as :func:`dumps` does.
    Return the bytes and the classes that were pickled by value."""
    with io.BytesIO() as file:
        pickler = _ClassPickler(file)
        pickler.dump(value)
        return file.getvalue(), pickler.by_value
