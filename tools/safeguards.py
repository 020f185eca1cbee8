"""Show that the simulation notices when a safeguard is missing, and after how many seeds.

    python -m tools.safeguards                         # print a line for each safeguard
    python -m tools.safeguards --write                 # and put it into docs/safeguards.md
    python -m tools.safeguards --scenario cluster --only fencing --only reconciliation

Every safeguard is switched off in turn; then the seeds from each of several starting points are
run until one fails.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from pathlib import Path

from tests.simulation.safeguards import (
    CLUSTER,
    MASTERS,
    REGISTRATIONS,
    STALLS,
    STREAMING,
    TOGETHER,
    TRIPLES,
    WRITERS,
    Scenario,
    seeds_until_noticed,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "safeguards.md"
SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "registrations": (REGISTRATIONS, 5),
    "cluster": (CLUSTER, 3),
    "streaming": (STREAMING, 5),
    "masters": (MASTERS, 3),
    "together": (TOGETHER, 3),
    "writers": (WRITERS, 5),
    "triples": (TRIPLES, 3),
    "stalls": (STALLS, 5),
}
"""With how many starting points are measured if nothing else is said."""
STEP = 10_000
"""From one starting point to the next."""
HEAD = (
    "| Safeguard | What it does | Seeds until noticed: median | From each start | Noticed as |",
    "|---|---|---|---|---|",
)
_ID = re.compile(r"\b[0-9a-f]{16,}\b")


def measure(scenario: Scenario, name: str, starts: int, at_most: int) -> str:
    """The row of one safeguard, in Markdown."""
    counts: list[float] = []
    noticed_as = ""
    for first in range(0, starts * STEP, STEP):
        noticed = seeds_until_noticed(scenario, name, first, at_most)
        counts.append(float("inf") if noticed is None else noticed[0])
        if noticed is not None:
            noticed_as = noticed_as or in_short(noticed[1])
    shown = [f"> {at_most}" if count > at_most else f"{count:g}" for count in counts]
    median = statistics.median_low(counts)
    meaning = scenario.safeguards[name].meaning
    return (
        f"| {name} | {meaning} | {'> ' if median > at_most else ''}{min(median, at_most):g} | "
        f"{', '.join(shown)} | {noticed_as} |"
    )


def in_short(error: str) -> str:
    """What a seed failed with, as long as it fits into a table."""
    text = _ID.sub(lambda found: f"{found.group()[:4]}…", error).replace("|", "/")
    return text if len(text) <= 160 else f"{text[:159]}…"


def table_of(page: str, title: str) -> tuple[int, int]:
    """Where in *page* the table of a scenario begins and ends."""
    begin = page.index(HEAD[0], page.index(f"<!-- safeguards: {title} -->"))
    end = page.find("\n\n", begin)
    return begin, len(page.rstrip("\n")) if end < 0 else end


def put_row(title: str, scenario: Scenario, name: str, row: str) -> None:
    """Into the page, in the order of the registry; rows of safeguards that are no more go."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = table_of(page, title)
    rows = {line.split("|")[1].strip(): line for line in page[begin:end].splitlines()[2:]}
    rows[name] = row
    lines = [*HEAD, *(rows[known] for known in scenario.safeguards if known in rows)]
    PAGE.write_text(page[:begin] + "\n".join(lines) + page[end:], encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", choices=SCENARIOS, help="only that one")
    parser.add_argument("--only", action="append", metavar="SAFEGUARD", help="only this one")
    parser.add_argument("--starts", type=int, help="starting points")
    parser.add_argument("--at-most", type=int, default=1000, help="seeds from each (default: 1000)")
    parser.add_argument("--write", action="store_true", help=f"bring {PAGE.name} up to date")
    options = parser.parse_args(arguments)
    known = {name for scenario, _ in SCENARIOS.values() for name in scenario.safeguards}
    if unknown := set(options.only or ()) - known:
        parser.error(f"no scenario has a safeguard {', '.join(sorted(unknown))}")
    for title, (scenario, starts) in SCENARIOS.items():
        if options.scenario not in (None, title):
            continue
        for name in scenario.safeguards:
            if options.only and name not in options.only:
                continue
            row = measure(scenario, name, options.starts or starts, options.at_most)
            print(row, flush=True)
            if options.write:
                put_row(title, scenario, name, row)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
