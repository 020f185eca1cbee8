"""README and docs/ say only what is there: links, commands, code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    assert set(MAKE.findall(page.read_text(encoding="utf-8"))) <= targets


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_compile(page: Path) -> None:
    for number, block in enumerate(PYTHON_BLOCK.findall(page.read_text(encoding="utf-8")), 1):
        compile(block, f"{name(page)}, block {number}", "exec", dont_inherit=True)


def test_every_page_is_reached_from_readme_or_index() -> None:
    reached: set[Path] = set()
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            reached |= set(found.rglob("*.md")) if found.is_dir() else {found}
    pages = set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "index.md"}
    assert {name(page) for page in pages - reached} == set()


def test_development_page_names_every_marker() -> None:
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^markers = \[\n(.*?)^\]", config, re.MULTILINE | re.DOTALL)
    assert block is not None
    markers = set(re.findall(r'^    "(\w+):', block[1], re.MULTILINE))
    page = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    assert markers
    assert {marker for marker in markers if f"| `{marker}` |" not in page} == set()
