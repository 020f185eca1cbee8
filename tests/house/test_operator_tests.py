"""Every operator, source and sink of streams has a file of tests of its own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import flinkray.streaming
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.sinks.sink import Sink
from flinkray.streaming.sources.source import Source

TESTS = Path(__file__).parents[1] / "streaming"
BASES = {
    "StreamOperator",
    "FunctionOperator",
    "KeyedFunctionOperator",
    "KeyedTimersOperator",
    "LastOperator",
    "TimelessOperator",
    "WithTimers",
    "TwoInputs",
}
"""What other operators have in common; no stream has one of these."""


def classes_of(base: type) -> list[str]:
    """Names of the public classes below *base* that the package defines."""
    found = set()
    for module in pkgutil.walk_packages(flinkray.streaming.__path__, "flinkray.streaming."):
        for name, member in inspect.getmembers(importlib.import_module(module.name)):
            if (
                inspect.isclass(member)
                and issubclass(member, base)
                and not inspect.isabstract(member)
                and member.__module__ == module.name
            ):
                found.add(name)
    return sorted(name for name in found - BASES if not name.startswith("_"))


def file_of(name: str, folder: Path) -> Path:
    words = re.findall("[A-Z][a-z]*", name)
    return folder / f"test_{'_'.join(words).lower()}.py"


FILES = [
    pytest.param(name, file_of(name, TESTS / folder), id=name)
    for base, folder in ((StreamOperator, "operators"), (Source, "sources"), (Sink, "sinks"))
    for name in classes_of(base)
]


def test_operator_test_check_finds_the_operators_sources_and_sinks() -> None:
    operators, sources, sinks = (classes_of(base) for base in (StreamOperator, Source, Sink))
    assert len(operators) >= 33
    assert {"MapOperator", "AlignedWindowOperator", "WindowJoinOperator"} <= {*operators}
    assert {"ArrowSource", "SocketSource"} <= {*sources}
    assert {"CallbackSink", "FileSink"} <= {*sinks}


@pytest.mark.parametrize(("name", "path"), FILES)
def test_each_operator_source_and_sink_has_a_test_file_that_uses_the_class(
    name: str, path: Path
) -> None:
    assert path.exists(), f"{name} has no tests of its own: {path.relative_to(TESTS.parent)}"
    text = path.read_text()
    assert re.search(rf"\b{name}\b", text), f"{path.name} does not use {name}"
    assert re.search(r"^def test_", text, re.MULTILINE), f"there is no test in {path.name}"


def test_every_operator_test_file_belongs_to_one_operator() -> None:
    assert {*(TESTS / "operators").glob("test_*.py")} <= {file.values[1] for file in FILES}
