"""Figures of a benchmark and their goals: printed, judged, and recorded for docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

RESULTS = Path(__file__).resolve().parent / "results"
"""Folder with a JSON file for each benchmark."""
LOAD = "load before (1, 5, 15 min)"


@dataclass(frozen=True)
class Figure:
    """One measured value, with a goal or without."""

    id: str
    """Name of the row in the results file. Empty: the figure has no row, and is only judged."""
    what: str
    value: float
    bound: float | None = None
    """The goal. None: there is no goal."""
    unit: str = ""
    _: KW_ONLY
    at_least: bool = False
    """Whether the value may be more than the bound, and not less."""
    shown: str = "{}"
    """Text of the figure; ``{}`` in it stands for the value with its unit."""
    peer: str = ""
    """What the value is compared with, and the peer's own figure."""

    @property
    def text(self) -> str:
        return self.shown.replace("{}", f"{number(self.value)} {self.unit}".rstrip())

    @property
    def goal(self) -> str:
        if self.bound is None:
            return ""
        return f"at {'least' if self.at_least else 'most'} {self.bound:,g} {self.unit}".rstrip()

    @property
    def is_met(self) -> bool | None:
        """None: there is no goal."""
        if self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        verdict = {None: "", True: "met", False: "MISSED"}[self.is_met]
        kind = "figure" if self.bound is None else "goal"
        return f"{kind}: {self.what}: {self.text}   {self.goal}   {verdict}".rstrip()


@dataclass
class Section:
    """What one part of a benchmark found."""

    title: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    """For the results file, in seconds, bytes and calls per second."""
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, *cells: str) -> None:
        self.rows.append((name, *cells))

    def show(self) -> None:
        print(f"\n== {self.title}")
        table = [self.columns, *self.rows]
        widths = [max(len(row[index]) for row in table) for index in range(len(self.columns))]
        for row in table:
            name, *cells = row
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            print("  ".join([name.ljust(widths[0]), *padded]).rstrip())
        for note in self.notes:
            print(note)


@dataclass(frozen=True)
class Row:
    """A row of docs/benchmarks.md, as it stands in a results file."""

    id: str
    what: str
    goal: str
    figure: str
    met: bool | None
    """None: there is no goal."""
    peer: str
    machine: str
    date: str
    commit: str
    """Short hash; empty if it was not noted."""
    load: str
    """Load average of the machine before the run, as text. Empty: the load was not noted."""
    command: str
    note: str = ""
    """Written by hand; a new figure replaces it."""


def rows(file: Path) -> list[Row]:
    """Rows of a results file."""
    return [Row(**row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


def parse(parser: ArgumentParser, *free: str) -> Namespace:
    """Parse the command line of this script, which gets the option ``--record``.

    Without a FILE, only a whole run is recorded: all options but those named in *free* must have
    their defaults, or be larger numbers.
    """

    def is_whole(name: str, value: Any) -> bool:
        default = parser.get_default(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return bool(value == default or name in free or (is_number and value > default))

    own = RESULTS / f"{Path(parser.prog).stem}.json"
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=own,
        metavar="FILE",
        help=f"write the figures to results/{own.name}, or to FILE",
    )
    options = parser.parse_args()
    partial = [name for name, value in vars(options).items() if not is_whole(name, value)]
    if options.record == own and partial != ["record"]:
        shown = [f"--{name.replace('_', '-')}" for name in partial if name != "record"]
        parser.error(f"--record takes a whole run, without {' and '.join(shown)}; or give a FILE")
    return options


class Results:
    """What one run has measured."""

    def __init__(self, options: Namespace, *packages: str) -> None:
        """Print what a reader must know of the machine, and the versions of *packages*."""
        self._file: Path | None = options.record
        self._figures: list[Figure] = []
        self.raw: dict[str, Any] = {}
        """For the results file, beside the figures."""
        self._machine = facts(*packages)
        for name, value in self._machine.items():
            print(f"{name:<28}{value}")

    def add(self, *figures: Figure) -> None:
        """Print figures, and keep them for the end of the run."""
        for figure in figures:
            print(figure, flush=True)
        self._figures += figures

    def show(self, section: Section) -> None:
        """Print a section with its figures, and keep them for the end of the run."""
        section.show()
        self.add(*section.figures)
        self.raw[section.title] = section.raw

    def end(self) -> NoReturn:
        """Record the run if that was asked for, and exit: with 1 if a goal was missed."""
        if self._file:
            record(self._file, self._figures, self._machine, self.raw)
            print(f"recorded in {self._file}; next: python -m tools.benchmarks_page --write")
        sys.exit(1 if any(figure.is_met is False for figure in self._figures) else 0)


def record(
    file: Path, figures: Sequence[Figure], machine: dict[str, str], raw: dict[str, Any]
) -> None:
    """Write the figures to a results file. Rows with other ids, and runs of other commands, stay.

    Args:
        machine: as `facts` gives it.
        raw: what the figures were computed from.
    """
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    options = [option for option in sys.argv[1:] if option not in ("--record", str(file))]
    run = {
        "machine": machine["processor"],
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": commit(),
        "load": f"load {machine[LOAD].split()[0]}",
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *options]),
    }
    by_id = {row["id"]: row for row in known.get("rows", [])}
    for it in figures:
        if it.id:
            row = Row(it.id, it.what, it.goal, it.text, it.is_met, it.peer, **run)
            by_id[it.id] = asdict(row)
    one = {"date": run["date"], "commit": run["commit"], "machine": machine, "raw": raw}
    runs = {**known.get("runs", {}), run["command"]: one}
    results = {"rows": list(by_id.values()), "runs": runs}
    text = json.dumps(results, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def commit() -> str:
    """Short hash of the commit; with a plus sign if files other than results have changed."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    others = (":/", ":!/benchmarks/results", ":!/docs/benchmarks.md")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *others)
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def facts(*packages: str) -> dict[str, str]:
    """Cores, memory, kernel, Python, versions of *packages* and the load before the run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
        LOAD: " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def number(value: float) -> str:
    """About three digits; all of a whole number."""
    size = abs(value)
    digits = 0 if float(value).is_integer() or size >= 100 else 1 + (size < 10) + (size < 1)
    return f"{value:,.{digits}f}"


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure over the rounds."""
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
