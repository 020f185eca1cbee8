"""Message types: frozen dataclasses that may cross a process boundary.

The registry is the allow-list of the codec (flinkray.rpc.wire.codec): a dataclass that is not
declared with :func:`message` is refused at the sender.  The registry lives in ``core`` so that the
pure packages can declare their messages without knowing of the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from typing_extensions import dataclass_transform

T = TypeVar("T")

_OURS = "flinkray."

_types_by_name: dict[str, type] = {}


def type_name(cls: type) -> str:
    """The name under which a type travels.

    flinkray's own types travel under their class's name, which none of them has in common with
    another, and so may move from module to module.  Others have ``module:qualified name``.
    """
    if cls.__module__.startswith(_OURS):
        return cls.__qualname__
    return f"{cls.__module__}:{cls.__qualname__}"


def register(cls: type[T]) -> type[T]:
    """Allow *cls* on the wire under its :func:`type_name`.

    Raises:
        TypeError: another class object already uses that name.
    """
    name = type_name(cls)
    known = _types_by_name.get(name)
    if known is not None and known is not cls:
        raise TypeError(f"a message type named {name} is already registered")
    _types_by_name[name] = cls
    return cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Declare a frozen, slotted dataclass whose instances may be sent to other processes.

    Fields may hold None, bool, int (64 bit), float, str, bytes, ids, enums declared with
    :func:`register`, other messages, and tuples or string-keyed dicts of these.

    A message lives for a moment, and both ends are of one version of flinkray.  What is stored, and
    read by later versions, is declared with :func:`flinkray.core.schema.stored` besides.

    Raises:
        TypeError: *cls* is a dataclass already, or another type uses its name.
    """
    if "__dataclass_fields__" in cls.__dict__:
        raise TypeError(
            f"{cls.__qualname__} is a dataclass already: @message makes one of it that is frozen "
            "and has slots; leave out its @dataclass"
        )
    return register(dataclass(frozen=True, slots=True)(cls))


def lookup(name: str) -> type | None:
    """The registered type of that name, or None."""
    return _types_by_name.get(name)


def registered_types() -> Iterator[type]:
    """All registered types, in order of registration."""
    return iter(tuple(_types_by_name.values()))
