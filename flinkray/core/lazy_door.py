"""Loads the public names of a package or module at first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_door(
    door: str, modules: Mapping[str, str | None], package: str | None = None
) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a module that offers names of other modules, and imports the
    module of each name when the name is first used.

    Args:
        door: full name of the module that offers the names.
        modules: public name -> module that defines it, relative to *package*. None: the name is
            itself a module of the package.
        package: full name of the package of *modules*. None: *door* is the package.
    """
    origin = package or door

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        module = importlib.import_module(f"{origin}.{modules[name] or name}")
        value: object = module if modules[name] is None else getattr(module, name)
        setattr(sys.modules[door], name, value)
        return value

    return load
