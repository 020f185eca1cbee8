"""Declares message types: frozen dataclasses that may be sent to other processes.

The registry is the allow-list of the codec (flinkray.rpc.wire.codec). It is in ``core`` so that
packages without input and output can declare messages without importing the RPC code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TypeVar

from typing_extensions import dataclass_transform

from flinkray.core.frozen_dataclass import frozen_dataclass

T = TypeVar("T")

_OURS = "flinkray."

_types_by_name: dict[str, type] = {}


def type_name(cls: type) -> str:
    """Return the name by which messages refer to a type.
    flinkray's own types are named by their class alone, which is unique, so that they may move from
    module to module. Other types have ``module:qualified name``."""
    if cls.__module__.startswith(_OURS):
        return cls.__qualname__
    return f"{cls.__module__}:{cls.__qualname__}"


def register(cls: type[T]) -> type[T]:
    """Allow objects of *cls* in messages, under its :func:`type_name`. Use as a class decorator.
    Raises TypeError: another class object already uses that name."""
    name = type_name(cls)
    known = _types_by_name.get(name)
    if known is not None and known is not cls:
        raise TypeError(f"a message type named {name} is already registered")
    _types_by_name[name] = cls
    return cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Declare a frozen, slotted dataclass whose instances may be sent to other processes.
    Fields may hold None, bool, int (64 bit), float, str, bytes, ids, registered enums, messages,
    and tuples or string-keyed dicts of these. Stored types also need
    :func:`flinkray.core.schema.stored`. Raises TypeError: *cls* is a dataclass already, or another
    type uses its name."""
    if "__dataclass_fields__" in cls.__dict__:
        raise TypeError(
            f"{cls.__qualname__} is a dataclass already: @message makes one of it that is frozen "
            "and has slots; leave out its @dataclass"
        )
    return register(frozen_dataclass(cls))


def lookup(name: str) -> type | None:
    """Return the registered type with that name; None if there is none."""
    return _types_by_name.get(name)


def registered_types() -> Iterator[type]:
    """Return an iterator over all types that are allowed in messages, in order of registration."""
    return iter(tuple(_types_by_name.values()))
