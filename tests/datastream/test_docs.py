"""The examples of docs/datastream.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "datastream.md"


def test_examples_of_the_page_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 6
    names: dict[str, Any] = {"__name__": "docs_datastream"}
    for number, block in enumerate(blocks, 1):
        where = f"docs/datastream.md, block {number}"
        exec(compile(block, where, "exec", dont_inherit=True), names)
