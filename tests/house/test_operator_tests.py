"""Every operator, source and sink of streams has tests."""

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


CLASSES = [
    pytest.param(name, folder, id=name)
    for base, folder in ((StreamOperator, "operators"), (Source, "sources"), (Sink, "sinks"))
    for name in classes_of(base)
]


def test_check_for_untested_operators_finds_the_operator_source_and_sink_classes() -> None:
    operators, sources, sinks = (classes_of(base) for base in (StreamOperator, Source, Sink))
    assert len(operators) >= 33
    assert {"MapOperator", "AlignedWindowOperator", "WindowJoinOperator"} <= {*operators}
    assert {"ArrowSource", "SocketSource"} <= {*sources}
    assert {"CallbackSink", "FileSink"} <= {*sinks}


@pytest.mark.parametrize(("name", "folder"), CLASSES)
def test_each_operator_source_and_sink_is_constructed_in_a_test_of_its_folder(
    name: str, folder: str
) -> None:
    texts = [path.read_text() for path in (TESTS / folder).glob("test_*.py")]
    assert any(re.search(rf"^[^#]*\b{name}\b[(,.]", text, re.MULTILINE) for text in texts)
