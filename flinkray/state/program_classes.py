"""The classes that travel with a job's functions, found by name.

Classes of the program itself and of the user's own modules are pickled by value: each submission
of a program makes classes of its own from them.  What an earlier submission has stored is to be
values of the present one's classes, or keys would not equal those that the functions make.  So the
code of each chain brings the job's classes along, with the names that they have in the program.

They are of the whole process: a process of tasks is of one job.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from cloudpickle import cloudpickle

Classes = Mapping[str, type]
"""By ``module:qualified name``, as the program has it."""

_lock = threading.RLock()
_latest: bytes | None = None
"""What was brought last; it goes before what was brought before."""
_waiting: list[tuple[bytes, Callable[[bytes], Classes]]] = []
"""Pickled classes that nobody has asked for yet."""
_by_name: dict[str, type] = {}
_names: dict[type, str] = {}
_made: set[str] = set()
"""What cloudpickle tracks classes by that were made from state."""


def bring_classes(pickled: bytes, load: Callable[[bytes], Classes]) -> None:
    """Those of a job whose code runs in this process; they are loaded when one is looked for."""
    global _latest
    with _lock:
        if pickled != _latest:
            _latest = pickled
            _waiting.append((pickled, load))


def _load() -> None:
    with _lock:
        while _waiting:
            pickled, load = _waiting[0]
            for name, kind in load(pickled).items():
                _by_name[name] = kind
                _names[kind] = name
            del _waiting[0]


def name_of(kind: type) -> str:
    """What the program calls it.  A class that was rebuilt has lost what it was nested in."""
    if _waiting:
        _load()
    return _names.get(kind) or f"{kind.__module__}:{kind.__qualname__}"


def class_named(name: str) -> Any:
    """The job's class of that name, or what is imported under it.

    Raises:
        ImportError, AttributeError: there is none.
    """
    if _waiting:
        _load()
    known = _by_name.get(name)
    if known is not None:
        return known
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module) or import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _present(module: str, name: str) -> type | None:
    """The only class of the job that has this name in its module, be it nested or not."""
    if _waiting:
        _load()
    known = {
        kind
        for own, kind in tuple(_by_name.items())
        if own.partition(":")[0] == module and kind.__name__ == name
    }
    return known.pop() if len(known) == 1 else None


def unpickled(data: bytes) -> tuple[Any, list[type]]:
    """What was pickled, with the job's classes in place of those that were pickled by value; and
    the classes that it has not, and that were made from what was pickled.

    Raises:
        Exception: what unpickling raises.
    """
    if b"_make_skeleton_" not in data:  # there is no class in it
        return pickle.loads(data), []
    unpickler: _Unpickler | _UnpicklerOfLostSlots = _Unpickler(io.BytesIO(data))
    try:
        return unpickler.load(), unpickler.made
    except AttributeError as error:
        if "'__dict__'" not in str(error):
            raise
    unpickler = _UnpicklerOfLostSlots(io.BytesIO(data))
    return unpickler.load(), unpickler.made


class _Classes:
    """What both unpicklers have in common."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # type: ignore[call-arg]
        self.made: list[type] = []
        self._found: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)  # type: ignore[misc]
        if module == cloudpickle.__name__:
            if name == "_make_skeleton_class":
                return partial(self._class, found)
            if name == "_make_skeleton_enum":
                return partial(self._enumeration, found)
            if name == "_class_setstate":
                return partial(self._set_state, found)
        return found

    def _class(self, make: Any, *made_of: Any) -> Any:
        _, name, _, attributes, tracked_as, _ = made_of
        return self._taken(attributes.get("__module__", ""), name, tracked_as, make, made_of)

    def _enumeration(self, make: Any, *made_of: Any) -> Any:
        _, name, _, _, module, tracked_as, _ = made_of
        return self._taken(module, name, tracked_as, make, made_of)

    def _taken(self, module: str, name: str, tracked_as: str, make: Any, made_of: Any) -> Any:
        is_tracked = tracked_as in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        if is_tracked and tracked_as not in _made:  # of this submission
            return make(*made_of)
        found = _present(module, name)
        if found is None:
            made: type = make(*made_of)
            _made.add(tracked_as)
            self.made.append(made)
            return made
        self._found.add(found)
        return found

    def _set_state(self, set_state: Any, kind: type, state: Any) -> Any:
        return kind if kind in self._found else set_state(kind, state)


class _Unpickler(_Classes, pickle.Unpickler):
    pass


class _UnpicklerOfLostSlots(_Classes, pickle._Unpickler):
    """For what was stored when classes with slots were rebuilt without: their objects had a
    dictionary, too."""

    stack: list[Any]

    def load_build(self) -> None:
        made, state = self.stack[-2:]
        if isinstance(state, tuple) and not hasattr(made, "__dict__"):
            of_dictionary, of_slots = state
            self.stack[-1] = None, {**(of_dictionary or {}), **(of_slots or {})}
        super().load_build()  # type: ignore[misc]

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: load_build,
    }


def is_job() -> bool:
    """Whether the code of a job runs in this process."""
    return _latest is not None
