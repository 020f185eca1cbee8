"""Checks that operators can call a function: its arguments, and that it is no coroutine."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from flinkray.streaming.functions.functions import Function

_FIRST = "runtime_context"


def expect_function(function: Any, method: str, what: str, values: int = 1) -> Any:
    """Return *function* if it is an object with the method *method*, or a plain function of
    *values* arguments. *what*: name of the needed kind of object, for errors. Raises TypeError:
    *function* is neither, is an ``async def``, or takes other arguments."""
    forgotten = isinstance(function, type) and (
        issubclass(function, Function) or (method == "map_batch" and hasattr(function, method))
    )
    if not forgotten and (callable(getattr(function, method, None)) or callable(function)):
        refuse_coroutines(function, method)
        refuse_signatures(function, method, values)
        return function
    hint = "; make an object of it" if forgotten else ""
    raise TypeError(f"{what} or a function is needed, got {function!r}{hint}")


def expect_kind(function: Any, kind: type, what: str) -> Any:
    """Return *function* if it is an object of class *kind*. Raises TypeError: it is of another
    class, or has a method that is ``async def`` or takes other arguments."""
    if not isinstance(function, kind):
        raise TypeError(f"{what}, got {function!r}")
    refuse_coroutines(function)
    refuse_signatures(function)
    return function


def refuse_signatures(function: Any, method: str = "", values: int = 1) -> None:
    """Raise TypeError if a function, or a method that operators call, takes other arguments.
    *method* is checked even if *function* is of no class of flinkray. *values*: number of arguments
    of this method, or of a plain function."""
    for call, names in _calls(function, method, values):
        try:
            signature = inspect.signature(call)
        except (TypeError, ValueError):  # written in C, with unknown arguments
            continue
        try:
            signature.bind(*names)
        except TypeError as error:
            name = getattr(call, "__qualname__", repr(call)).rpartition("<locals>.")[2]
            takes = ", ".join(signature.parameters)
            raise TypeError(f"{name}({takes}) is called with {_text(names)}: {error}") from None


def _text(names: tuple[str, ...]) -> str:
    if names == ("",):
        return "a single value, which may be a tuple"
    count = "a single value" if len(names) == 1 else f"{len(names)} values"
    return f"{count}, {' and '.join(names)}" if all(names) and names else count


def _calls(function: Any, method: str, values: int) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield (callable, argument names) of *function*, or of each of its methods that operators
    call. An argument name is empty if it is unknown. *values*: number of arguments of a plain
    function."""
    declared = dict(_declared(type(function)))
    for name, names in declared.items():
        yield getattr(function, name), names
    if declared:
        return
    named = getattr(function, method, None) if method else None
    if named is None:
        yield function, ("",) * values
        return
    yield named, ("",) * values
    begin = getattr(function, "open", None)
    if begin is not None and not isinstance(function, type):
        yield begin, (_FIRST,)


def _declared(kind: type) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (name, argument names) of each method of *kind* that overrides a method of a class of
    flinkray. The argument names are those of flinkray's method."""
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] != "flinkray":
            continue
        for name, declared in vars(base).items():
            if name.startswith("_") or not inspect.isfunction(declared):
                continue
            if getattr(kind, name, None) is not declared:
                _, *parameters = inspect.signature(declared).parameters.values()
                if all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters):
                    yield name, tuple(one.name for one in parameters)


def refuse_coroutines(function: Any, method: str = "") -> None:
    """Raise TypeError if a function, or a method that operators call, is ``async def``.
    *method* is checked even if no class of flinkray declares it."""
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
    """Yield the methods of *kind* that a class of flinkray declares, also those that *kind*
    overrides. Operators call no other methods."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "flinkray":
            for name in vars(base):
                if not name.startswith("_"):
                    yield getattr(kind, name)
