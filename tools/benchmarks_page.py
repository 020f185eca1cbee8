"""Keep the tables of docs/benchmarks.md as the files in benchmarks/results say.

Before each table the page names the benchmarks whose rows the table has.

    python -m tools.benchmarks_page            # exit 1 and say if the page is out of date
    python -m tools.benchmarks_page --write    # bring the page up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from _results import RESULTS, Row, rows  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks.md"
TABLE = re.compile(r"^(<!-- results: ([\w\s]+) -->\n)(?:.*\n)*?(<!-- end of results -->)$", re.M)
HEAD = ("What is measured", "Goal", "Newest figure", "Peer", "Machine", "Command")


class PageError(Exception):
    """The page names a benchmark twice or without a results file, or leaves one out."""


def results() -> dict[str, list[Row]]:
    """Rows of each results file, by the name of its benchmark."""
    return {file.stem: rows(file) for file in sorted(RESULTS.glob("*.json"))}


def render(page: str, known: Mapping[str, Sequence[Row]]) -> str:
    """The page with its tables brought up to date.

    Raises:
        PageError: the tables and the results files do not have the same benchmarks, each once.
    """
    named = [name for _, names, _ in TABLE.findall(page) for name in names.split()]
    if sorted(named) != sorted(known):
        raise PageError(f"tables are of {sorted(named)}, results files of {sorted(known)}")

    def table(found: re.Match[str]) -> str:
        lines = [cells(HEAD), "|---" * len(HEAD) + "|"]
        command = ""
        for row in (row for name in found[2].split() for row in known[name]):
            lines.append(line(row, command))
            command = row.command
        return "\n".join([found[1], *lines, "", found[3]])

    return TABLE.sub(table, page)


def line(row: Row, command: str) -> str:
    """A row of the table. A *command* that is that of the row above is not repeated."""
    verdict = {None: "", True: ": met", False: ": **missed**"}[row.met]
    when = ", ".join(filter(None, (row.date, row.commit, row.load)))
    figure = f"{row.figure}{verdict} ({when})"
    shown = "" if row.command == command else f"`{row.command}`"
    figure += row.note and f". {row.note}"
    return cells((row.what, row.goal, figure, row.peer, row.machine, shown))


def cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="bring the page up to date")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    try:
        current = render(page, results())
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    if current == page:
        return 0
    if not options.write:
        print(
            "docs/benchmarks.md is out of date: python -m tools.benchmarks_page --write",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
