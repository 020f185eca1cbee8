"""How much an object holds on to: for tests that it does not grow with what has come and gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

_COLLECTIONS = (dict, list, set, frozenset, deque, tuple)


def held_entries(root: object) -> int:
    """The entries of all collections that are reached from *root* through our own objects."""
    seen: set[int] = set()
    waiting = [root]
    found = 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _COLLECTIONS):
            found += len(value)
        waiting.extend(_parts(value))
    return found


def _parts(value: object) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, _COLLECTIONS):
        yield from value
    elif isinstance(value, FunctionType | MethodType | type):
        return
    elif type(value).__module__.startswith(("flinkray.", "tests.")):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
        for cls in type(value).__mro__:
            for name in getattr(cls, "__slots__", ()):
                if hasattr(value, name):
                    yield getattr(value, name)
