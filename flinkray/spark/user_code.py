"""The user's function on its way from the client to the Spark driver.

Functions of scripts and of the user's own modules travel by value, so that nothing has to be
installed on the cluster; installed packages are imported there.
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

from ray import cloudpickle as _cloudpickle

from flinkray.blob import BlobClient, BlobOwner
from flinkray.core.error_text import summary_of
from flinkray.core.errors import FlinkRayError, RpcConnectionError
from flinkray.rpc import RpcService
from flinkray.spark.gateway import SparkStageDescriptor

cloudpickle: Any = _cloudpickle  # untyped

_registry_lock = threading.RLock()

_END_OF_NAME = re.compile(r"[/.,]")
"""Of a module or package, in a line of RECORD."""

_MAGIC = b"flinkray user code, python "

SparkFunction = Callable[..., Any]
"""Takes the SparkSession, and a DataFrame for each input; returns a DataFrame or None."""

SparkEpochFunction = Callable[..., Any]
"""Takes a DataFrame, and the id of the checkpoint whose rows are in it; returns None."""


class UserCodeError(FlinkRayError):
    """The user's function cannot be sent to the cluster, or cannot be rebuilt there."""


def dump_function(function: Callable[..., Any]) -> bytes:
    """Pickle a function with all of the user's own code that it refers to.

    Raises:
        UserCodeError: *function* is no function, or refers to something that cannot be pickled;
            the text names it.
    """
    if not callable(function):
        raise UserCodeError(
            f"a Spark stage takes a function of one SparkSession, not {type(function).__name__}: "
            f"{function!r}"
        )
    try:
        with user_modules_by_value(cloudpickle):
            payload: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise UserCodeError(_unpicklable(function, error)) from error
    return _MAGIC + _python_version().encode() + b"\n" + payload


def load_function(code: bytes) -> SparkFunction:
    """Rebuild the function.

    Raises:
        UserCodeError: the client runs another Python, or a module that the function imports is
            not installed here; the text says what to do.
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
    function: SparkFunction = rebuild(payload)
    return function


def rebuild(payload: bytes) -> Any:
    """Unpickle what the client has pickled of the user's code.

    Raises:
        UserCodeError: a module that it imports is not installed here, or something cannot be
            unpickled; the text says what to do.
    """
    try:
        return cloudpickle.loads(payload)
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


async def fetch_code(rpc_service: RpcService, stage: SparkStageDescriptor) -> bytes:
    """The pickled function of a stage, from the blob server if it did not come along.

    Raises:
        BlobNotFoundError, BlobCorruptError, BlobStoreError, RpcError: see :class:`BlobClient`.
    """
    if isinstance(stage.code, bytes):
        return stage.code
    if stage.blob_server is None:
        raise RpcConnectionError(f"job {stage.job_id}: no blob server is known to have its code")
    client = BlobClient(rpc_service, stage.blob_server)
    return await client.get(BlobOwner.of_job(stage.job_id), stage.code)


@contextmanager
def user_modules_by_value(pickler: Any) -> Iterator[None]:
    """While active, *pickler* (the module cloudpickle, or Ray's copy of it) takes the user's own
    modules by value.  Threads take turns, because the registry is one for all."""
    with _registry_lock:
        already = pickler.list_registry_pickle_by_value()
        # By name: a module may be loaded under several.
        own = {m.__name__: m for m in tuple(sys.modules.values()) if _is_users_own(m)}
        registered = [module for name, module in own.items() if name not in already]
        for module in registered:
            pickler.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                if module.__name__ in pickler.list_registry_pickle_by_value():
                    pickler.unregister_pickle_by_value(module)


def _is_users_own(module: object) -> bool:
    """Neither built in nor installed, and not this framework."""
    if not issubclass(type(module), ModuleType):  # an object in place of its module, as of cffi
        return False
    known = ModuleType.__getattribute__(module, "__dict__")  # runs no code of a lazy module
    file = known.get("__file__")
    if not isinstance(file, str) or _is_installed(file):  # most are: asked first
        return False
    name = known.get("__name__", "")
    if sys.modules.get(name) is not module or name == "__main__":
        return False
    return str(name).partition(".")[0] != __name__.partition(".")[0]


@lru_cache(maxsize=100_000)
def _is_installed(file: str) -> bool:
    """Below the interpreter's own folders, or of a distribution in another one: a folder of
    ``PYTHONPATH`` or of another environment that a ``.pth`` file names.

    Kept, because every function that is sent asks for every loaded module.
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
    """The modules and packages of the distributions that are installed in the folder, by what
    their ``RECORD`` lists.  One in editable mode lists none: its code is the user's own."""
    names: set[str] = set()
    for installed in folder.glob("*.dist-info"):
        record = installed / "RECORD"
        if record.is_file():
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
            names.update(_END_OF_NAME.split(line, maxsplit=1)[0] for line in lines)
        else:  # system packages may have none
            names.add(installed.name.partition("-")[0])
    return frozenset(names - {""})


@lru_cache(maxsize=1)
def _installation_folders() -> tuple[Path, ...]:
    """Kept, because every loaded module is held against them: a second saved per function."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        paths.add(site.getusersitepackages())
    return tuple(Path(path).resolve() for path in sorted(paths) if path)


def _unpicklable(function: SparkFunction, error: BaseException) -> str:
    name = getattr(function, "__qualname__", repr(function))
    culprit = _culprit(function, set())
    if culprit is None:
        where, way_out = "something it refers to cannot be pickled", _WAY_OUT
    else:
        description, value = culprit
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        where = f"it refers to {description} of type {kind}"
        way_out = _WAY_OUT_OF_SPARK if kind.startswith("pyspark.") else _WAY_OUT
    return (
        f"the function {name} cannot be sent to the cluster: {where} ({summary_of(error)}). "
        f"{way_out}"
    )


_WAY_OUT = "Create such objects (sessions, connections, locks, open files) inside of the function"
_WAY_OUT_OF_SPARK = (
    "It belongs to a Spark of the client: use the SparkSession that the function is given, and "
    "make DataFrames of it inside of the function"
)


def _culprit(function: object, seen: set[int]) -> tuple[str, object] | None:
    """The first global, captured variable or default that does not pickle, of a function or of
    functions that it refers to.

    Args:
        seen: the ids of functions that need not be looked at.
    """
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
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 - whatever it raises
            if not isinstance(value, FunctionType):
                return description, value
            if (inner := _culprit(value, seen)) is not None:
                return inner
    return None


def _names_in(code: CodeType) -> Iterator[str]:
    """Of globals, and attributes: of its own, and of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
