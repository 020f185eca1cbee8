"""Refuses coroutine functions where operators do not await the results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any


def refuse_coroutines(function: Any, method: str = "") -> None:
    """Raise TypeError if a function, or a method that operators call, is ``async def``.

    Args:
        function: a plain function, or an object with methods that operators call.
        method: a method that is checked even if no class of flinkray declares it.

    Raises:
        TypeError: a function that would be called is ``async def``.
    """
    for call in _called(function, method):
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
            while isinstance(call, partial):
                call = call.func
            name = getattr(call, "__qualname__", repr(call))
            raise TypeError(
                f"{name} is `async def`: its results would be coroutines, which are not awaited "
                "here; give a plain function that returns results, or an AsyncFunction to "
                "AsyncDataStream"
            )


def _called(function: Any, method: str) -> Iterator[Any]:
    yield function
    declared = list(_declared_methods(type(function)))
    named = getattr(function, method, None) if method else None
    if named is not None:
        yield named
    elif not declared:
        yield getattr(type(function), "__call__", None)  # noqa: B004 - it is looked at, not tested
    yield from declared


def _declared_methods(kind: type) -> Iterator[Any]:
    """Yield the methods of *kind* that a class of flinkray declares.
    Other methods are never called."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "flinkray":
            for name in vars(base):
                if not name.startswith("_"):
                    yield getattr(kind, name)
