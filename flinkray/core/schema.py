"""Declares the schemas of stored types, whose records later versions of flinkray must read.

A stored record may be read years later, by code in which classes have been moved, renamed and
changed. So each type in a stored record is declared with :func:`stored`. The declaration gives the
type a name that never changes, and a version that changes with its shape: the names and types of
its fields, or the members of an enum.

To change the shape of a stored type:

1. raise its version by one, and give :func:`stored` a migration from the version before;
2. run ``python -m tests.ha.golden --write``, which adds a golden file of the new version.

``tests/ha/test_golden.py`` fails until both are done. A migration of a dataclass takes the stored
field values by name and returns the field values of the next version; the values are instances of
today's types already. A migration of an enum takes the stored name of a member.

    >>> def from_1(fields: dict[str, Any]) -> dict[str, Any]:
    ...     return {"seconds": fields["milliseconds"] / 1000}

    >>> @stored("docs.Pause", version=2, migrations={1: from_1})
    ... @dataclass(frozen=True)
    ... class Pause:
    ...     seconds: float
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")

Migration = Callable[[Any], Any]
"""Converts the stored values of version n of a type to version n + 1."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The stored form of a type, and the migrations from earlier versions."""

    name: str
    version: int
    type: type
    migrations: Mapping[int, Migration]
    """Migrations by the version that they start from: one for each earlier version."""


_by_name: dict[str, Schema] = {}
_by_type: dict[type, Schema] = {}
_retired: set[str] = set()


def stored(
    name: str, *, version: int = 1, migrations: Mapping[int, Migration] = MappingProxyType({})
) -> Callable[[type[T]], type[T]]:
    """Declare that objects of a class may be part of stored records. Use as a class decorator.
    The class is a dataclass, an id, an enum or a subclass of str. *name* is the permanent name of
    the type in stored records. Raises TypeError if another type has that name, or the migrations do
    not match the version."""
    wanted = set(range(1, version))
    if set(migrations) != wanted:
        raise TypeError(
            f"{name} version {version} needs migrations from the versions {sorted(wanted)}, "
            f"not from {sorted(migrations)}"
        )

    def declare(cls: type[T]) -> type[T]:
        known = _by_name.get(name)
        if known is not None and known.type is not cls:
            raise TypeError(f"a stored type named {name} is declared already: {known.type}")
        schema = Schema(name, version, cls, MappingProxyType(dict(migrations)))
        _by_name[name] = _by_type[cls] = schema
        return cls

    return declare


def retired(name: str) -> None:
    """Declare that stored records may contain a type that no longer exists in the code; its values
    are read as None. The migrations of the types that had fields of this type drop these fields."""
    _retired.add(name)


def is_retired(name: str) -> bool:
    """Return whether a stored type of that name was declared with :func:`retired`."""
    return name in _retired


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Return *values* unchanged. Use as the migration to a version that has more fields, all with
    defaults."""
    return values


def with_more_members(name: str) -> str:
    """Return *name* unchanged. Use as the migration to a version of an enum that has more
    members."""
    return name


def schema_named(name: str) -> Schema | None:
    """Return the schema with that name; None if this process declares none."""
    return _by_name.get(name)


def schema_of(cls: type) -> Schema | None:
    """Return the schema of a type; None if the type is not declared."""
    return _by_type.get(cls)


def schemas() -> Iterator[Schema]:
    """Return an iterator over all schemas that are declared in this process, ordered by name."""
    return iter(sorted(_by_name.values(), key=lambda schema: schema.name))


def stored_fields(cls: type) -> tuple[str, ...]:
    """Return the names of a dataclass's stored fields: those that its constructor takes."""
    names = _fields.get(cls)
    if names is None:
        names = _fields[cls] = tuple(field.name for field in fields(cls) if field.init)
    return names


_fields: dict[type, tuple[str, ...]] = {}
