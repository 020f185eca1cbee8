"""Show that the simulation notices when a safeguard is missing, and after how many seeds.

    python -m tools.safeguards            # print the table
    python -m tools.safeguards --write    # put it into docs/safeguards.md

Every safeguard is switched off in turn; then the seeds from each of several starting points are
run until one fails.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from pathlib import Path

from tests.simulation.safeguards import SAFEGUARDS, seeds_until_noticed

PAGE = Path(__file__).resolve().parents[1] / "docs" / "safeguards.md"
TABLE = re.compile(r"^\| Safeguard \|.*?(?=^\n|\Z)", re.MULTILINE | re.DOTALL)
STEP = 10_000
"""From one starting point to the next."""


def measure(starts: int, at_most: int) -> str:
    """The table, in Markdown."""
    lines = [
        f"| Safeguard | What it does | Seeds until noticed: median of {starts} | From each start | "
        "Noticed as |",
        "|---|---|---|---|---|",
    ]
    for name, (meaning, _) in SAFEGUARDS.items():
        counts: list[float] = []
        noticed_as = ""
        for first in range(0, starts * STEP, STEP):
            noticed = seeds_until_noticed(name, first, at_most)
            if noticed is None:
                counts.append(float("inf"))
            else:
                counts.append(noticed[0])
                noticed_as = noticed_as or noticed[1]
        shown = [f"> {at_most}" if count > at_most else f"{count:g}" for count in counts]
        median = statistics.median_low(counts)
        print(f"{name}: {', '.join(shown)}", file=sys.stderr)
        lines.append(
            f"| {name} | {meaning} | {'> ' if median > at_most else ''}"
            f"{min(median, at_most):g} | {', '.join(shown)} | {noticed_as} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=5, help="starting points (default: 5)")
    parser.add_argument("--at-most", type=int, default=1000, help="seeds from each (default: 1000)")
    parser.add_argument("--write", action="store_true", help=f"bring {PAGE.name} up to date")
    options = parser.parse_args(arguments)
    table = measure(options.starts, options.at_most)
    print(table)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda _: table, page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
