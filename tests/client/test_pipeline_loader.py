"""From what stands on a command line to a function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.client.pipeline_loader import PipelineNotFoundError, load_pipeline
from flinkray.user_code import dump_function, load_function


@pytest.fixture(autouse=True)
def _restored_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without what the scripts of a test were loaded as; what they import stays."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    for name, module in tuple(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def script(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_script_is_loaded_as_its_function_pipeline_or_as_the_named_function(tmp_path: Path) -> None:
    path = script(
        tmp_path / "flights.py",
        "def pipeline(spark): return 1\ndef other(spark): return 2\n"
        "if __name__ == '__main__': raise SystemExit('must not be run')\n",
    )
    assert load_pipeline(path)(None) == 1
    assert load_pipeline(f"{path}:other")(None) == 2
    assert load_pipeline(f"{path}:")(None) == 1


def test_script_function_is_pickled_with_the_modules_beside_the_script(tmp_path: Path) -> None:
    script(tmp_path / "beside_it.py", "def twice(n): return 2 * n\n")
    path = script(
        tmp_path / "main.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "import beside_it\n"
        "@dataclass\nclass Row:\n    n: int\n"
        "def pipeline(spark): return beside_it.twice(Row(spark).n)\n",
    )
    code = dump_function(load_pipeline(path))
    for name in ("_script_main", "beside_it"):
        del sys.modules[name]
    sys.path.remove(str(tmp_path))
    assert load_function(code)(21) == 42


def test_pipeline_in_a_module_of_the_current_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "my_pipelines.py", "def daily(spark): return 'daily'\n")
    assert load_pipeline("my_pipelines:daily")(None) == "daily"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("nothing.py", "the script nothing.py does not exist"),
        (".", "neither a script"),
        ("./", "is not a file"),
        ("word", "neither a script"),
        ("no_such_module:f", "no module 'no_such_module'"),
        ("no_such_package.module:f", "cannot import the module 'no_such_package.module'"),
        (":f", "there is no module ''|neither a script|cannot import"),
        ("json:nothing", "json has no function 'nothing'; it has: .*dumps"),
        ("json:__name__", "'__name__' in json is no function but a str"),
        ("bad.py", "bad.py cannot be loaded: SyntaxError"),
        ("raises.py", r"raises.py cannot be loaded: KeyError: 'x' \(.*raises.py, line 2\)"),
        ("source.py", r"StreamError: unknown file format 'orc'.* \(.*source.py, line 3\)"),
        ("helped.py", r"StreamError: unknown file format 'orc'.* \(.*helper.py, line 3\)"),
        ("library.py", r"JSONDecodeError: .* \(.*library.py, line 2\)"),
        ("exits.py", "exits.py exits while it is loaded: 3"),
        ("empty.py", "empty.py has no function 'pipeline'; it defines no function at all"),
        ("empty.py", "a pipeline is a function that takes a SparkSession"),
        ("empty.py", "program of streams, run it with: flinkray run --python empty.py"),
        ("data.txt/../data", "data.txt/../data"),
    ],
)
def test_pipeline_that_cannot_be_loaded_raises_an_error_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "bad.py", "def pipeline(spark:\n")
    script(tmp_path / "raises.py", "import os\n{}['x']\n")
    source = "from flinkray.datastream.connectors import FileSource\n"
    script(tmp_path / "source.py", source + "\nFileSource('data', file_format='orc')\n")
    script(tmp_path / "helper.py", source + "def f():\n    FileSource('x', file_format='orc')\n")
    script(tmp_path / "helped.py", "import helper\nhelper.f()\n")
    script(tmp_path / "library.py", "import json\njson.loads('{')\n")
    script(tmp_path / "exits.py", "import sys\nsys.exit(3)\n")
    script(tmp_path / "empty.py", "")
    with pytest.raises(PipelineNotFoundError, match=text):
        load_pipeline(target)
