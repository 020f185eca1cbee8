"""The examples of the pages on streams run, one after the other, and show every listed name."""

from __future__ import annotations

import importlib
import inspect
import re
from doctest import DocTestFinder
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from tests.datastream.test_api_surface import SURFACE, WITH_DOCTESTS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["datastream.md", "datastream-reference.md"]
GUIDES = ["testing.md", "tuning.md", "from-pyflink.md", "from-structured-streaming.md"]


def blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


@pytest.fixture
def _default_parallelism() -> Any:
    env = StreamExecutionEnvironment.get_execution_environment()
    before = env.get_default_local_parallelism()
    yield
    env.set_default_local_parallelism(before)


@pytest.mark.usefixtures("_default_parallelism")
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_each_reference_page_run(page: str) -> None:
    found = blocks(page)
    assert len(found) >= 6
    names: dict[str, Any] = {"__name__": "docs_datastream"}
    for number, block in enumerate(found, 1):
        exec(compile(block, f"docs/{page}, block {number}", "exec", dont_inherit=True), names)


@pytest.mark.usefixtures("_default_parallelism")
@pytest.mark.parametrize("page", GUIDES)
def test_examples_of_each_guide_run(page: str) -> None:
    found = blocks(page)
    assert found
    names: dict[str, Any] = {"__name__": "docs_guide"}
    for number, block in enumerate(found, 1):
        exec(compile(block, f"docs/{page}, block {number}", "exec", dont_inherit=True), names)


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """All words of the examples that are executed."""
    examples = [block for page in PAGES for block in blocks(page)]
    for name in WITH_DOCTESTS:
        module = importlib.import_module(f"flinkray.datastream.{name}")
        for test in DocTestFinder(exclude_empty=True).find(module):
            examples += [example.source for example in test.examples]
    return set(re.findall(r"\w+", "\n".join(examples)))


# What syntax calls, types that only annotate, a sink's own interface, and rare settings.
BY_SYNTAX = {"__contains__", "__getitem__", "__setitem__", "__iter__"}
WITHOUT_EXAMPLE = {
    "Context", "OnTimerContext", "create_writer", "get_value", "remove_array_element_separator",
    "set_allow_comments", "set_any_property_name", "set_array_element_separator",
    "set_escape_char", "set_line_separator", "set_quote_char", "set_skip_first_data_row",
    "set_strict_headers", "trigger_savepoint",
}  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "names"), SURFACE, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_listed_name_has_an_executed_example_and_a_docstring(
    owner: Any, names: set[str], shown: set[str]
) -> None:
    listed = names - BY_SYNTAX - WITHOUT_EXAMPLE
    assert listed - shown == set()
    methods = {name for name in listed if callable(getattr(owner, name))}
    assert {name for name in methods if not inspect.getdoc(getattr(owner, name))} == set()
