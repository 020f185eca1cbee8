"""One name, one concept: no two classes of the package have the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.house.sources import parsed

PACKAGE = Path(__file__).parents[2] / "flinkray"


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that several classes have, with their modules; *sources* are texts by module."""
    modules = defaultdict(list)
    for module, source in sources.items():
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module)
    return {name: found for name, found in modules.items() if len(found) > 1}


def test_classes_of_different_modules_have_different_names() -> None:
    sources = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path.read_text()
        for folder in sorted(PACKAGE.iterdir())
        if folder.is_dir()
        for path in sorted(folder.rglob("*.py"))
    }
    assert "flinkray.scheduler.job.job_scheduler" in sources  # through the link
    assert shared_names(sources) == {}


def test_name_used_by_two_classes_is_found_unless_it_is_private() -> None:
    sources = {
        "a": "class Slot: ...\nclass _State: ...\nclass Task: ...",
        "b": "class _State: ...\nclass Slot: ...",
    }
    assert shared_names(sources) == {"Slot": ["a", "b"]}
