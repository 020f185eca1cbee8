"""What is stored: types whose records are read by later versions of flinkray.

A message between processes lives for a moment, and both ends are of one version.  A record in a
store is read years later, by code in which classes have been moved, renamed and changed.  So each
type that is part of a stored record is declared with :func:`stored`, which gives it a name that
never changes and a version that changes with its shape: the names and types of its fields, or the
members of an enum.

To change the shape of a stored type:

1. raise its version by one, and give :func:`stored` a migration from the version before;
2. run ``python -m tests.ha.golden --write``, which adds a golden file of the new version.

``tests/ha/test_golden.py`` fails until both are done.  A migration of a dataclass takes the values
of a stored record's fields, by name, and returns those of the next version; the values in it are
instances of today's types already.  A migration of an enum takes the stored name of a member.

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
"""From what version n of a type has stored to what version n + 1 would have."""


@dataclass(frozen=True, slots=True)
class Schema:
    """How a type is stored today, and how what earlier versions have stored is read."""

    name: str
    version: int
    type: type
    migrations: Mapping[int, Migration]
    """By the version that they migrate from: one for each version before this one."""


_by_name: dict[str, Schema] = {}
_by_type: dict[type, Schema] = {}


def stored(
    name: str, *, version: int = 1, migrations: Mapping[int, Migration] = MappingProxyType({})
) -> Callable[[type[T]], type[T]]:
    """Declare that a dataclass, an id, an enum or a subclass of str is part of stored records.

    *name* is what stored records call the type, for good: it stays when the class is renamed.

    Raises:
        TypeError: another type has that name, or a migration is missing or too much.
    """
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


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """The migration to a version that has more fields than the one before, all with defaults."""
    return values


def with_more_members(name: str) -> str:
    """The migration to a version of an enum that has more members than the one before."""
    return name


def schema_named(name: str) -> Schema | None:
    """None: no type of that name is declared in this process."""
    return _by_name.get(name)


def schema_of(cls: type) -> Schema | None:
    """None: the type is not declared."""
    return _by_type.get(cls)


def schemas() -> Iterator[Schema]:
    """All that are declared in this process, by name."""
    return iter(sorted(_by_name.values(), key=lambda schema: schema.name))


def stored_fields(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields that are stored: those that its constructor takes."""
    names = _fields.get(cls)
    if names is None:
        names = _fields[cls] = tuple(field.name for field in fields(cls) if field.init)
    return names


_fields: dict[type, tuple[str, ...]] = {}
