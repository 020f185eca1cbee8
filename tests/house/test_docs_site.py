"""The site of the documentation is built strictly, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.docs_hooks import without_links_out

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^>]*>")


def test_links_to_files_outside_the_docs_folder_are_replaced_by_their_text() -> None:
    page = (
        "See [the\ntest](../tests/a.py#x), [state](state.md#y), [why](design/), "
        "![a](pictures/a.svg).\n"
        "```\n[kept](../as/it.is)\n```\n"
    )
    assert without_links_out(page, "clusters.md") == (
        "See the\ntest, [state](state.md#y), [why](design/index.md), "
        "![a](pictures/a.svg).\n"
        "```\n[kept](../as/it.is)\n```\n"
    )


def test_links_between_folders_of_the_docs_are_kept() -> None:
    page = "[rpc](../rest.md) [code](../../README.md)"
    assert without_links_out(page, "design/0062-rest-as-a-client.md") == "[rpc](../rest.md) code"


@pytest.mark.slow
def test_site_is_built_strictly_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 90
    from_elsewhere = {
        found[0] for page in pages for found in LOADED.finditer(page.read_text("utf-8"))
    }
    assert {link for link in from_elsewhere if 'rel="canonical"' not in link} == set()
