"""What mkdocs does to the pages of docs/ beside rendering them (mkdocs.yml).

Links that lead out of docs/, to code and tests, are for readers of the repository: the site shows
their text alone. The records in docs/design become a section of their own.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")
"""Text, target and anchor; a text may go over the end of a line."""
FIRST_PAGES = {"design": "design/index.md", "api": "api/client.md"}
"""For each folder that pages link to: the page that the site shows, as it cannot list a folder."""
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Add the section "Decisions" to the navigation: the index, then all records by number."""
    records = sorted(Path(config["docs_dir"]).glob("design/0*.md"))
    pages = ["design/index.md", *(f"design/{record.name}" for record in records)]
    config["nav"].append({"Decisions": pages})
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    return without_links_out(markdown, page.file.src_uri)


def without_links_out(markdown: str, page: str) -> str:
    """
    Args:
        page: its path below docs/.
    """
    pieces: list[str] = []
    end = 0
    for block in CODE.finditer(markdown):
        pieces += [_text(markdown[end : block.start()], page), block[0]]
        end = block.end()
    return "".join([*pieces, _text(markdown[end:], page)])


def _text(text: str, page: str) -> str:
    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        if target in FIRST_PAGES:
            first = posixpath.relpath(FIRST_PAGES[target], posixpath.dirname(page) or ".")
            return f"[{link[1]}]({first})"
        return link[1] if target.startswith("..") else link[0]

    return LINK.sub(shown, text)
