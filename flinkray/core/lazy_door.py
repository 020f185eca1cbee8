"""Loads the public names of a package or module at first use (PEP 562)."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator


def lazy_door(door: str) -> Callable[[str], object]:
    """Return a ``__getattr__`` for the module *door*, whose public names are in its ``__all__``.
    The module of a name is imported when the name is first used.

    Which module has a name is read in the source of *door*: its imports below ``if TYPE_CHECKING:``
    say so to type checkers, too. A name that is imported of *door* itself is a module of the
    package.
    """
    origins: dict[str, str] = {}

    def load(name: str) -> object:
        module = sys.modules[door]
        if name not in module.__all__:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        if not origins:
            origins.update(_imports_for_type_checkers(inspect.getsource(module)))
        origin = origins[name]
        value: object
        if origin == door:
            value = importlib.import_module(f"{door}.{name}")
        else:
            value = getattr(importlib.import_module(origin), name)
        setattr(module, name, value)
        return value

    return load


def _imports_for_type_checkers(source: str) -> Iterator[tuple[str, str]]:
    """Yield (imported name, module)."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for each in statement.body:
                if isinstance(each, ast.ImportFrom) and each.module is not None:
                    for alias in each.names:
                        yield alias.name, each.module
