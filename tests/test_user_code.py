"""The user's function travels by value where it is the user's own."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import cloudpickle
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from flinkray.spark.micro_batches import streamed
from flinkray.spark.tables import with_key
from flinkray.user_code import (
    UserCodeError,
    dump_function,
    load_function,
    user_modules_by_value,
)


def run_elsewhere(code: bytes, directory: Path) -> str:
    """Load and call the function in a Python that has none of this process's modules."""
    pickled = directory / "function"
    pickled.write_bytes(code)
    program = (
        "import sys, pathlib\n"
        "from flinkray.user_code import load_function\n"
        "print(load_function(pathlib.Path(sys.argv[1]).read_bytes())('session'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, str(pickled)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    return answer.stdout + answer.stderr


def import_users_module(
    directory: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> object:
    (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(directory))
    module = __import__(name)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_function_of_a_users_module_runs_where_the_module_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_users_module(tmp_path, "users_rates", "def rate(x):\n    return x + '!'\n", monkeypatch)
    module = import_users_module(
        tmp_path,
        "users_pipeline",
        "from users_rates import rate\nimport json\n\ndef pipeline(session):\n"
        "    return json.dumps([rate(session)])\n",
        monkeypatch,
    )

    assert run_elsewhere(dump_function(module.pipeline), tmp_path) == '["session!"]\n'  # type: ignore[attr-defined]


def test_function_of_a_module_that_is_loaded_under_two_names_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_users_module(tmp_path, "users_twice", "def f(s):\n    return s\n", monkeypatch)
    monkeypatch.setitem(sys.modules, "users_alias", module)

    assert run_elsewhere(dump_function(module.f), tmp_path) == "session\n"  # type: ignore[attr-defined]


def test_function_can_be_sent_although_odd_objects_are_loaded_as_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loaded module is inspected, and an object in place of a module may raise anything."""

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError(f"{name} needs an optional dependency")

    class Odd:
        __file__ = str(tmp_path / "odd.py")

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    class Claims:
        """As a library of cffi does."""

        __class__ = ModuleType  # type: ignore[assignment]

    assert isinstance(Claims(), ModuleType)
    odd_ones = {"users_lazy": Lazy("users_lazy"), "users_odd": Odd(), "users_claims": Claims()}
    for name, odd in odd_ones.items():
        monkeypatch.setitem(sys.modules, name, odd)
    module = import_users_module(tmp_path, "users_plain", "def f(s):\n    return s\n", monkeypatch)
    assert run_elsewhere(dump_function(module.f), tmp_path) == "session\n"  # type: ignore[attr-defined]


def test_pickling_error_is_raised_although_the_module_registry_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a framework that sends functions while this function is pickled."""
    module = import_users_module(tmp_path, "users_known", "def f(s): pass\n", monkeypatch)

    def meddle() -> None:
        with user_modules_by_value():
            cloudpickle.unregister_pickle_by_value(module)
            raise KeyError("the function's own")

    with pytest.raises(KeyError, match="the function's own"):
        meddle()


def test_two_threads_can_send_functions_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_users_module(tmp_path, "users_shared", "def f(s): pass\n", monkeypatch)
    answers: list[bool] = []

    def is_by_value() -> None:
        with user_modules_by_value():
            answers.append("users_shared" in cloudpickle.list_registry_pickle_by_value())

    other = threading.Thread(target=is_by_value)
    with user_modules_by_value():
        other.start()
        other.join(0.1)
        assert answers == []
    other.join(10)

    assert answers == [True]


INSTALLED_PACKAGE = """
import threading

LOCK = threading.Lock()

def guarded(session):
    with LOCK:
        return session
"""


def test_installed_distribution_in_a_folder_of_its_own_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As created by ``pip install --target``, or an environment that a .pth file names."""
    dependencies, own = tmp_path / "dependencies", tmp_path / "own"
    (dependencies / "users_dependency").mkdir(parents=True)
    (dependencies / "users_dependency" / "__init__.py").write_text(INSTALLED_PACKAGE)
    (dependencies / "users_dependency-1.0.dist-info").mkdir()
    (dependencies / "users_dependency-1.0.dist-info" / "RECORD").write_text(
        "../bin/users,sha256=abc,5\nusers_dependency/__init__.py,sha256=abc,12\n"
    )
    own.mkdir()
    monkeypatch.syspath_prepend(str(dependencies))
    monkeypatch.setitem(sys.modules, "users_dependency", __import__("users_dependency"))
    module = import_users_module(
        own,
        "users_caller",
        "from users_dependency import guarded\n\ndef pipeline(session):\n"
        "    return guarded(session)\n",
        monkeypatch,
    )

    code = dump_function(module.pipeline)  # type: ignore[attr-defined]

    assert "needs the module 'users_dependency'" in run_elsewhere(code, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(dependencies), prepend=":")
    assert run_elsewhere(code, tmp_path) == "session\n"


def test_users_modules_beside_installed_distributions_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "something-1.0.dist-info").mkdir()
    (tmp_path / "something-1.0.dist-info" / "RECORD").write_text("something/__init__.py,,\n")
    module = import_users_module(tmp_path, "users_beside", "def f(s):\n    return s\n", monkeypatch)

    assert run_elsewhere(dump_function(module.f), tmp_path) == "session\n"  # type: ignore[attr-defined]


def test_pickling_a_function_leaves_cloudpickles_module_registry_unchanged() -> None:
    before = set(cloudpickle.list_registry_pickle_by_value())

    dump_function(lambda session: None)

    assert set(cloudpickle.list_registry_pickle_by_value()) == before


def test_object_that_is_not_a_function_is_refused_with_its_type_and_value() -> None:
    wanted = r"takes a function here \(.*of one SparkSession\), not int: 7"
    with pytest.raises(UserCodeError, match=wanted):
        dump_function(7)  # type: ignore[arg-type]


def test_error_names_a_captured_variable_that_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def guarded(session: object) -> None:
        with lock:
            return

    with pytest.raises(UserCodeError) as caught:
        dump_function(guarded)

    assert "guarded" in str(caught.value)
    assert "the captured variable 'lock' of type _thread.lock" in str(caught.value)
    assert "inside of the function" in str(caught.value)


LOCK = threading.Lock()


def test_error_names_a_global_that_cannot_be_pickled() -> None:
    def guarded(session: object) -> None:
        with LOCK:
            return

    with pytest.raises(UserCodeError, match=r"the global 'LOCK' of type _thread\.lock"):
        dump_function(guarded)


class Unsendable:
    """What is pickled may raise anything, as PySpark's contexts do."""

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("only valid on the driver")


UNSENDABLE = Unsendable()


def test_error_shows_whatever_exception_pickling_raises() -> None:
    def pipeline(session: object) -> object:
        return [UNSENDABLE for _ in range(3)]

    told = (
        r"the global 'UNSENDABLE' of type .*Unsendable \(RuntimeError: only valid on the driver\)"
    )
    with pytest.raises(UserCodeError, match=told):
        dump_function(pipeline)


@pytest.mark.spark
def test_error_about_a_captured_spark_session_suggests_the_session_of_the_cluster() -> None:
    """As in scripts that begin with ``SparkSession.builder.getOrCreate()``."""
    spark = SparkSession.__new__(SparkSession)
    spark._sc = SparkContext.__new__(SparkContext)

    def numbers() -> object:
        return spark.range(3)

    def pipeline(session: object) -> object:
        return numbers()

    with pytest.raises(UserCodeError) as caught:
        dump_function(pipeline)

    assert "the captured variable 'spark' of type pyspark.sql.session.SparkSession" in str(
        caught.value
    )
    assert "use the SparkSession that the function is given" in str(caught.value)


def test_error_names_the_variable_of_an_inner_function_that_cannot_be_pickled() -> None:
    lock = threading.Lock()

    def guarded(session: object) -> object:
        return lock

    with pytest.raises(UserCodeError, match=r"function .*guarded cannot be sent.* variable 'lock'"):
        dump_function(streamed(guarded, None, "append"))
    with pytest.raises(UserCodeError, match=r"function .*guarded cannot be sent.* variable 'lock'"):
        dump_function(with_key(guarded, ["key"]))


def test_unpicklable_global_is_found_in_functions_that_refer_to_each_other() -> None:
    def one(session: object) -> object:
        return other, UNSENDABLE

    def other(session: object) -> object:
        return one

    with pytest.raises(UserCodeError, match="the global 'UNSENDABLE'"):
        dump_function(other)


def test_error_names_a_module_missing_on_the_cluster_and_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipeline(session: object) -> object:
        import users_missing  # type: ignore[import-not-found]

        return users_missing

    module = import_users_module(tmp_path, "users_missing", "def f(s): pass\n", monkeypatch)
    by_reference = cloudpickle.dumps(module.f)  # type: ignore[attr-defined]
    header = dump_function(pipeline).partition(b"\n")[0]
    monkeypatch.delitem(sys.modules, "users_missing")
    (tmp_path / "users_missing.py").unlink()
    sys.path_importer_cache.pop(str(tmp_path), None)

    with pytest.raises(UserCodeError, match=r"needs the module 'users_missing'.*install it there"):
        load_function(header + b"\n" + by_reference)


class Unwilling:
    def __getstate__(self) -> dict[str, int]:
        return {"a": 1}

    def __setstate__(self, state: object) -> None:
        raise LookupError("not to be unpickled")


def test_error_shows_whatever_exception_unpickling_raises() -> None:
    unwilling = Unwilling()
    told = "refers to cannot be unpickled: LookupError: not to be unpickled"
    with pytest.raises(UserCodeError, match=told):
        load_function(dump_function(lambda session: unwilling))


def test_function_of_another_python_version_is_refused_with_both_versions() -> None:
    code = dump_function(lambda session: None)
    version = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    other = code.replace(version + b"\n", b"3.99\n", 1)

    with pytest.raises(UserCodeError, match=r"sent by Python 3\.99, the cluster runs 3\."):
        load_function(other)


@pytest.mark.parametrize("code", [b"", b"junk", b"\x80\x05."])
def test_bytes_that_are_no_pickled_function_are_refused(code: bytes) -> None:
    with pytest.raises(UserCodeError, match="not a function pickled by flinkray"):
        load_function(code)
