"""Transport of the user's functions from the client to the processes of a job.

Functions of scripts and of the user's own modules travel by value, so that nothing has to be
installed on the cluster. Installed packages are imported there.
"""

from __future__ import annotations

import pickle
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from flinkray.core import cloud_pickle
from flinkray.core.error_text import summary_of
from flinkray.core.errors import FlinkRayError

_registry_lock = threading.RLock()

_END_OF_NAME = re.compile(r"[/.,]")
"""End of the name of a module or package in a line of RECORD."""

_MAGIC = b"flinkray user code, python "


class UserCodeError(FlinkRayError):
    """Raised if the user's function cannot be sent to the cluster, or cannot be rebuilt there."""


def dump_function(function: Callable[..., Any]) -> bytes:
    """Pickle a function with all of the user's own code that it refers to.

    Raises:
        UserCodeError: *function* is no function, or refers to something that cannot be pickled; the
            text names it.
    """
    if not callable(function):
        raise UserCodeError(
            "a job takes a function here (a Spark stage: a function of one SparkSession), not "
            f"{type(function).__name__}: {function!r}"
        )
    try:
        with user_modules_by_value():
            payload = cloud_pickle.dumps(function)
    except Exception as error:
        raise UserCodeError(_unpicklable(function, error)) from error
    return _MAGIC + _python_version().encode() + b"\n" + payload


def load_function(code: bytes) -> Callable[..., Any]:
    """Return the function that :func:`dump_function` has pickled.

    Raises:
        UserCodeError: the client runs another Python, or a module that the function imports is not
            installed here; the text says what to do.
    """
    header, _, payload = code.partition(b"\n")
    if not header.startswith(_MAGIC):
        raise UserCodeError("not a function pickled by flinkray: submit it with flinkray's client")
    version = header[len(_MAGIC) :].decode(errors="replace")
    if version != _python_version():
        raise UserCodeError(
            f"the function was sent by Python {version}, the cluster runs {_python_version()}: "
            "functions only travel between equal versions; use the same Python for the client"
        )
    function: Callable[..., Any] = rebuild(payload)
    return function


def rebuild(payload: bytes) -> Any:
    """Return the object that the client has pickled with user code in it.

    Raises:
        UserCodeError: a module that it imports is not installed here, or something cannot be
            unpickled; the text says what to do.
    """
    try:
        return pickle.loads(payload)
    except ModuleNotFoundError as error:
        raise UserCodeError(
            f"the function needs the module {error.name!r}, which is not installed on the "
            "cluster's nodes: install it there (your own modules travel with the function when "
            "they are not installed in site-packages of the client)"
        ) from error
    except (AttributeError, ImportError, TypeError, pickle.UnpicklingError, EOFError) as error:
        raise UserCodeError(
            f"the function could not be rebuilt on the cluster ({type(error).__name__}: {error}): "
            "the client and the cluster probably have different versions of a package"
        ) from error
    except Exception as error:
        raise UserCodeError(
            "the function could not be rebuilt on the cluster, because what it refers to cannot be "
            f"unpickled: {summary_of(error)}"
        ) from error


@contextmanager
def user_modules_by_value() -> Iterator[None]:
    """Context manager: in the block, :mod:`flinkray.core.cloud_pickle` pickles the functions and
    classes of the user's own modules with their code. Threads take turns, because they share one
    registry."""
    with _registry_lock:
        already = cloudpickle.list_registry_pickle_by_value()
        # By name: a module may be loaded under several names.
        own = {m.__name__: m for m in tuple(sys.modules.values()) if _is_users_own(m)}
        registered = [module for name, module in own.items() if name not in already]
        for module in registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                if module.__name__ in cloudpickle.list_registry_pickle_by_value():
                    cloudpickle.unregister_pickle_by_value(module)


def _is_users_own(module: object) -> bool:
    """Return whether a module is the user's own: neither built into Python nor installed, and no
    part of flinkray."""
    if not issubclass(type(module), ModuleType):  # cffi's module, for example
        return False
    known = ModuleType.__getattribute__(module, "__dict__")  # runs no code of a lazy module
    file = known.get("__file__")
    if not isinstance(file, str) or _is_installed(file):  # asked first: most are
        return False
    name = known.get("__name__", "")
    if sys.modules.get(name) is not module or name == "__main__":
        return False
    return str(name).partition(".")[0] != __name__.partition(".")[0]


@lru_cache(maxsize=100_000)
def _is_installed(file: str) -> bool:
    """Return whether a file belongs to the interpreter or to an installed distribution.

    The distribution may lie in another folder: of ``PYTHONPATH``, or of another environment that a
    ``.pth`` file names. Results are cached, because every function that is sent asks for every
    loaded module.
    """
    path = Path(file).resolve()
    if any(folder in path.parents for folder in _installation_folders()):
        return True
    return any(
        path.relative_to(folder).parts[0].partition(".")[0] in _installed_names(folder)
        for folder in path.parents
    )


@lru_cache(maxsize=10_000)
def _installed_names(folder: Path) -> frozenset[str]:
    """Return the modules and packages of the distributions in a folder, from their ``RECORD``.

    A distribution in editable mode lists none: its code is the user's own.
    """
    names: set[str] = set()
    for installed in folder.glob("*.dist-info"):
        record = installed / "RECORD"
        if record.is_file():
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
            names.update(_END_OF_NAME.split(line, maxsplit=1)[0] for line in lines)
        else:  # system packages may have no RECORD
            names.add(installed.name.partition("-")[0])
    return frozenset(names - {""})


@lru_cache(maxsize=1)
def _installation_folders() -> tuple[Path, ...]:
    """Return the folders of installations.

    The result is cached: this saves a second per function.
    """
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        paths.add(site.getusersitepackages())
    return tuple(Path(path).resolve() for path in sorted(paths) if path)


def _unpicklable(function: Callable[..., Any], error: BaseException) -> str:
    name = getattr(function, "__qualname__", repr(function))
    culprit = _culprit(function, set())
    if culprit is None:
        where, way_out = "something it refers to cannot be pickled", _WAY_OUT
    else:
        description, value = culprit
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        where = f"it refers to {description} of type {kind}"
        way_out = _WAY_OUT_OF_SPARK if kind.startswith("pyspark.") else _WAY_OUT
    if isinstance(error, pickle.PicklingError) and "Ray" in str(error):
        way_out = ""  # the error's text says what to do
    return (
        f"the function {name} cannot be sent to the cluster: {where} ({summary_of(error)}). "
        f"{way_out}"
    ).rstrip()


_WAY_OUT = "Create such objects (sessions, connections, locks, open files) inside of the function"
_WAY_OUT_OF_SPARK = (
    "It belongs to a Spark of the client: use the SparkSession that the function is given, and "
    "make DataFrames of it inside of the function"
)


def _culprit(function: object, seen: set[int]) -> tuple[str, object] | None:
    """Return (description, value) of the first global, captured variable or default of a function
    that cannot be pickled, also in functions that the function refers to. None: there is none.
    *seen*: ids of functions that need not be searched."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    code = function.__code__
    variables: list[tuple[str, object]] = [
        (f"the global {name!r}", function.__globals__[name])
        for name in _names_in(code)
        if name in function.__globals__
    ]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        variables.append((f"the captured variable {name!r}", cell.cell_contents))
    for value in function.__defaults__ or ():
        variables.append(("the default value", value))
    for description, value in variables:
        try:
            cloud_pickle.dumps(value)
        except Exception:  # noqa: BLE001 - whatever it raises
            if not isinstance(value, FunctionType):
                return description, value
            if (inner := _culprit(value, seen)) is not None:
                return inner
    return None


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and in the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
