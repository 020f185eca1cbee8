"""Finds the classes of a job's functions by name, also for stored values of earlier submissions.

Classes of the program itself and of the user's own modules are pickled by value, so each submission
of a program creates its own classes. Values that an earlier submission stored must become values of
the present submission's classes; otherwise keys would not equal the keys that the functions make.
So the code of each chain includes the job's classes, with their names in the program. The classes
are registered for the whole process, which is fine because a task process serves one job.
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
"""Classes by ``module:qualified name``, as named in the program."""

_lock = threading.RLock()
_latest: bytes | None = None
"""The pickled classes of the last :func:`bring_classes` call, which take precedence."""
_waiting: list[tuple[bytes, Callable[[bytes], Classes]]] = []
"""Pickled classes that are not loaded yet."""
_by_name: dict[str, type] = {}
_names: dict[type, str] = {}
_made: set[str] = set()
"""cloudpickle's tracker ids of the classes that were made from stored state."""


def bring_classes(pickled: bytes, load: Callable[[bytes], Classes]) -> None:
    """Register the classes of a job in this process: *load* is called with *pickled*, and returns
    them, when a class is first looked up."""
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
    """Return the name under which a class is stored.
    For a class of the job this is its name in the program, since a class rebuilt by pickle does not
    know the class it was nested in. For other classes it is ``module:qualified name``."""
    if _waiting:
        _load()
    return _names.get(kind) or f"{kind.__module__}:{kind.__qualname__}"


def class_named(name: str) -> Any:
    """Return the job's class of that name, or import it. Raises ImportError or AttributeError."""
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
    """Return the job's class named *name* that is defined in *module*, at the top or nested in
    another class. None if there is no such class, or more than one."""
    if _waiting:
        _load()
    known = {
        kind
        for own, kind in tuple(_by_name.items())
        if own.partition(":")[0] == module and kind.__name__ == name
    }
    return known.pop() if len(known) == 1 else None


def unpickled(data: bytes) -> tuple[Any, list[type]]:
    """Unpickle a value, with the job's classes in place of classes that were pickled by value.
    Returns (the value, the classes that the job does not have and that were made from the pickle).
    Raises any error of unpickling."""
    if b"_make_skeleton_" not in data:  # it contains no class
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
        if is_tracked and tracked_as not in _made:  # a class of this submission
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
    """Unpickles values of classes with ``__slots__`` that earlier versions stored. Those versions
    rebuilt such classes without the slots, so the objects had a ``__dict__``, too."""

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
    """Return whether this process runs the code of a job: :func:`bring_classes` was called."""
    return _latest is not None
