"""README and docs/ say only what is there: links, commands, code."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z0-9-]*)", re.MULTILINE)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

LINE_LENGTH = 100


def links(page: Path) -> list[str]:
    return LINK.findall(CODE_BLOCK.sub("", page.read_text(encoding="utf-8")))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_to_existing_files(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_of_pages_have_at_most_a_hundred_columns(page: Path) -> None:
    """Except rows of tables and links, which cannot be broken."""
    lines = page.read_text(encoding="utf-8").splitlines()
    too_long = [
        f"{number}: {line}"
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_LENGTH
        and not line.startswith("|")
        and not re.fullmatch(r"\s*(?:[-*] )?\S+", line)
    ]
    assert too_long == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_named_in_pages_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    assert set(MAKE.findall(page.read_text(encoding="utf-8"))) <= targets


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_in_documentation_pages_compile(page: Path) -> None:
    for number, block in enumerate(PYTHON_BLOCK.findall(page.read_text(encoding="utf-8")), 1):
        compile(block, f"{name(page)}, block {number}", "exec", dont_inherit=True)


PUBLIC_PLACES = frozenset(
    [
        "flinkray",
        "flinkray.datastream",
        "flinkray.datastream.arrays",
        "flinkray.datastream.async_retry_predicates",
        "flinkray.datastream.common",
        "flinkray.datastream.common.io",
        "flinkray.datastream.common.watermark_strategy",
        "flinkray.datastream.connectors",
        "flinkray.datastream.connectors.file_system",
        "flinkray.datastream.connectors.kafka",
        "flinkray.datastream.connectors.postgresql",
        "flinkray.datastream.formats.csv",
        "flinkray.datastream.formats.json",
        "flinkray.datastream.functions",
        "flinkray.datastream.state",
        "flinkray.datastream.time_domain",
        "flinkray.datastream.window",
        "flinkray.errors",
        "flinkray.rpc",
        "flinkray.state_reader",
        "flinkray.testing",
        "flinkray.testing.simulation",
    ]
)
"""Modules that the pages may tell users to import from."""


def imports_from_flinkray(page: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import of flinkray in the page; the name may be empty."""
    for block in PYTHON_BLOCK.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flinkray"):
                yield from ((node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                modules = (alias.name for alias in node.names)
                yield from ((name, "") for name in modules if name.startswith("flinkray"))


@pytest.mark.parametrize("page", [page for page in PAGES if "design" not in page.parts], ids=name)
def test_pages_import_public_names_from_public_places_only(page: Path) -> None:
    """Pages name a module that is a public place, and a name of its ``__all__`` if it has one."""
    found = sorted(set(imports_from_flinkray(page)))
    assert [each for each in found if each[0] not in PUBLIC_PLACES] == []
    for module, public in found:
        place = importlib.import_module(module)
        assert not public or public in getattr(place, "__all__", vars(place)), f"{module}.{public}"


def test_every_page_is_reached_from_readme_or_index() -> None:
    reached: set[Path] = set()
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        for target in links(page):
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


FILE_PIECE = re.compile(r"# ((?:\w+/)+\w+\.py)\n(.*)", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_of_a_page_that_name_one_file_make_up_the_whole_file(page: Path) -> None:
    """The blocks start with a comment that has the path. The file is tested, and so are the
    blocks."""
    pieces: dict[str, list[str]] = defaultdict(list)
    for block in PYTHON_BLOCK.findall(page.read_text(encoding="utf-8")):
        piece = FILE_PIECE.fullmatch(block)
        if piece is not None:
            pieces[piece[1]].append(piece[2])
    for path, parts in pieces.items():
        assert "\n\n".join(parts) == (ROOT / path).read_text(encoding="utf-8"), path


def test_blocks_of_the_tutorial_name_their_files_and_its_line_counts_are_true() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = PYTHON_BLOCK.findall(page)
    assert len(blocks) == 8
    assert all(FILE_PIECE.fullmatch(block) for block in blocks)
    source = (ROOT / "examples" / "team.py").read_text(encoding="utf-8")
    lines = {
        node.name: sum(map(bool, source.splitlines()[node.lineno - 1 : node.end_lineno]))
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
    said = re.search(
        r"The two endpoints are (\d+) lines, the contracts between them (\d+) more", page
    )
    assert said is not None
    assert int(said[1]) == lines["Leader"] + lines["Worker"] <= 60
    assert int(said[2]) == lines["LeaderGateway"] + lines["WorkerGateway"]


FENCE = re.compile(r"^```([^`\n]*)$", re.MULTILINE)
INFO = re.compile(r"[a-z]*(?: title=\"[^\"]+\")?")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_fences_have_only_a_language_and_a_title(page: Path) -> None:
    """The site shows the code behind another fence as text, and the text after it as code."""
    fences = FENCE.findall(page.read_text(encoding="utf-8"))
    assert [info for info in fences if not INFO.fullmatch(info)] == []
    assert len(fences) % 2 == 0
