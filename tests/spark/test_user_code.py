"""The user's function travels by value where it is the user's own."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flinkray.spark.user_code import UserCodeError, dump_function, load_function


def run_elsewhere(code: bytes, directory: Path) -> str:
    """Load and call the function in a Python that has none of this process's modules."""
    pickled = directory / "function"
    pickled.write_bytes(code)
    program = (
        "import sys, pathlib\n"
        "from flinkray.spark.user_code import load_function\n"
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


def test_a_function_of_the_users_own_modules_runs_where_they_are_not_installed(
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


def test_pickling_leaves_the_registry_of_modules_as_it_was() -> None:
    from ray import cloudpickle

    before = set(cloudpickle.list_registry_pickle_by_value())

    dump_function(lambda session: None)

    assert set(cloudpickle.list_registry_pickle_by_value()) == before


def test_what_is_no_function_is_refused_with_what_it_is() -> None:
    with pytest.raises(UserCodeError, match="takes a function of one SparkSession, not int: 7"):
        dump_function(7)  # type: ignore[arg-type]


def test_a_captured_object_that_cannot_be_pickled_is_named() -> None:
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


def test_a_global_that_cannot_be_pickled_is_named() -> None:
    def guarded(session: object) -> None:
        with LOCK:
            return

    with pytest.raises(UserCodeError, match=r"the global 'LOCK' of type _thread\.lock"):
        dump_function(guarded)


def test_a_module_that_the_cluster_lacks_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipeline(session: object) -> object:
        import users_missing  # type: ignore[import-not-found]

        return users_missing

    from ray import cloudpickle

    module = import_users_module(tmp_path, "users_missing", "def f(s): pass\n", monkeypatch)
    by_reference = cloudpickle.dumps(module.f)  # type: ignore[attr-defined]
    header = dump_function(pipeline).partition(b"\n")[0]
    monkeypatch.delitem(sys.modules, "users_missing")
    (tmp_path / "users_missing.py").unlink()
    sys.path_importer_cache.pop(str(tmp_path), None)

    with pytest.raises(UserCodeError, match=r"needs the module 'users_missing'.*install it there"):
        load_function(header + b"\n" + by_reference)


def test_another_python_version_is_refused_with_both_versions() -> None:
    code = dump_function(lambda session: None)
    version = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    other = code.replace(version + b"\n", b"3.99\n", 1)

    with pytest.raises(UserCodeError, match=r"sent by Python 3\.99, the cluster runs 3\."):
        load_function(other)


@pytest.mark.parametrize("code", [b"", b"junk", b"\x80\x05."])
def test_bytes_that_no_client_sent_are_refused(code: bytes) -> None:
    with pytest.raises(UserCodeError, match="not a function pickled by flinkray"):
        load_function(code)
