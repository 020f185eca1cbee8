"""Calls that no shipped module makes, because there is a better one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.sources import parsed

ROOT = Path(__file__).parents[2]

_OF_CODE = "flinkray.core.cloud_pickle: cloudpickle 3.1.3 drops the file names of the user's code"
FORBIDDEN = {
    ("asyncio", "wait_for"): (
        "flinkray.rpc.time_limit.within: before Python 3.12 wait_for loses cancellations"
    ),
    ("cloudpickle", "dump"): _OF_CODE,
    ("cloudpickle", "dumps"): _OF_CODE,
}
"""Package and name, with what to use instead."""


def forbidden(source: str) -> list[str]:
    """Where *source* uses what is forbidden."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            package, names = node.value.id, [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module:
            package, names = node.module.partition(".")[0], [alias.name for alias in node.names]
        else:
            continue
        found += [
            f"line {node.lineno}: {name}; use {FORBIDDEN[package, name]}"
            for name in names
            if (package, name) in FORBIDDEN
        ]
    return found


def shipped() -> list[Path]:
    return sorted(
        path
        for folder in ("flinkray", "actors", "scheduler")
        for path in ROOT.glob(f"{folder}/**/*.py")
    )


def test_no_shipped_module_makes_a_forbidden_call() -> None:
    assert len(shipped()) > 300
    uses = {
        str(path.relative_to(ROOT)): found
        for path in shipped()
        if (found := forbidden(path.read_text()))
    }
    assert uses == {}


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def f(): await asyncio.wait_for(g(), 1)",
        "from asyncio import sleep, wait_for",
        "from asyncio.tasks import wait_for as w",
        "import cloudpickle\ncloudpickle.dumps(1)",
    ],
)
def test_forbidden_call_is_found_whatever_form_of_import_the_source_uses(source: str) -> None:
    assert len(forbidden(source)) == 1


def test_wait_for_method_of_a_condition_is_not_a_forbidden_call() -> None:
    assert forbidden("async def f(c): await c.wait_for(lambda: True)") == []
