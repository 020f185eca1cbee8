"""Loader of the function that a command line names.

Forms: ``script.py``, ``script.py:function``, ``module:function``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from flinkray.client.code_lines import line_of_user
from flinkray.core.errors import FlinkRayError

DEFAULT_FUNCTION = "pipeline"


class PipelineNotFoundError(FlinkRayError):
    """Raised when the named script, module or function does not exist or cannot be loaded."""


def load_pipeline(target: str) -> Callable[[Any], Any]:
    """Return the function that *target* names; the default function of a script is ``pipeline``. A
    script is executed as a module, not as ``__main__``, and can import files beside it. Raises
    PipelineNotFoundError; the text says what is missing, or what the code raised and where."""
    path, function_name = _split(target)
    if path.endswith(".py") or "/" in path:
        module = _load_script(Path(path))
    elif target.count(":") == 1:
        module = _import_module(path)
    else:
        raise PipelineNotFoundError(
            f"{target!r} is neither a script (ends with .py) nor module:function"
        )
    function = getattr(module, function_name, None)
    if function is None:
        names = sorted(
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        )
        known = f"; it has: {', '.join(names)}" if names else "; it defines no function at all"
        raise PipelineNotFoundError(
            f"{path} has no function {function_name!r}{known}{_of_programs(target)}"
        )
    if not callable(function):
        raise PipelineNotFoundError(
            f"{function_name!r} in {path} is no function but a {type(function).__name__}"
        )
    return function  # type: ignore[no-any-return]


def _of_programs(target: str) -> str:
    if not target.endswith(".py"):
        return ""
    return (
        "; a pipeline is a function that takes a SparkSession and returns a DataFrame or nothing; "
        f"if it is a program of streams, run it with: flinkray run --python {target}"
    )


def _split(target: str) -> tuple[str, str]:
    path, separator, function = target.rpartition(":")
    return (path, function or DEFAULT_FUNCTION) if separator else (target, DEFAULT_FUNCTION)


def _load_script(path: Path) -> ModuleType:
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise PipelineNotFoundError(f"the script {path} {what}")
    name = f"_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PipelineNotFoundError(f"{path} is not a Python script (its name must end with .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    loader = spec.loader
    _execute(lambda: loader.exec_module(module), str(path))
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise PipelineNotFoundError(f"cannot import the module {name!r}: {error}") from error
    if found is None:
        raise PipelineNotFoundError(f"there is no module {name!r} here or in this environment")
    module: ModuleType = _execute(lambda: importlib.import_module(name), name)
    return module


def _execute(load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except SystemExit as error:
        raise PipelineNotFoundError(f"{what} exits while it is loaded: {error}") from error
    except Exception as error:
        line = line_of_user(error)
        where = f" ({line[0]}, line {line[1]})" if line else ""
        if isinstance(error, SyntaxError):
            where = ""  # the error's text has the place
        raise PipelineNotFoundError(
            f"{what} cannot be loaded: {type(error).__name__}: {error}{where}"
        ) from error
