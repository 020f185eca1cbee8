"""Measure which small changes of decision code and of the RPC core the nearest tests notice.

    python -m tools.mutants                                        # every mutant
    python -m tools.mutants --sample 400 --seed 1                  # of each folder so many
    python -m tools.mutants scheduler/job scheduler/slots/slot_pool.py
    python -m tools.mutants scheduler/job --survivors               # with the tests that are new

What was found out is kept in .mutants/, and a run goes on where another one ended. A mutant is
tried again when its function has changed, or, if it has survived, a test that comes by it. The
mutants of equivalent.yaml change nothing that a test could notice, for the reason given there, and
are not counted. The exit status is 1 if fewer than 90 % of the others are killed in a folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from tools.mutants.operators import Mutant, mutants_of
from tools.mutants.session import MutantSession, Verdict

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
KEPT = ROOT / ".mutants"
GOAL = 90.0
NEAREST = {"scheduler": "tests/scheduler", "flinkray/rpc": "tests/rpc"}
"""Which folders are mutated, and where the tests near them are."""
LEFT_OUT = ("flinkray/rpc/ray/",)
"""The glue to Ray, which only a real Ray can test."""
PYTEST_OPTIONS = (
    *("-m", "not (ray or spark or kill or ray_up or slow)"),
    *("--hypothesis-profile", "mutants"),
    *("-o", "timeout=0"),  # each test has a limit of its own here
    *("-s", "-qq", "-p", "no:cacheprovider"),
    *("--tb", "native"),  # nothing is parsed to show it: ast.parse may not be called within itself
)


def modules(wanted: list[str]) -> dict[str, str]:
    """The sources that are mutated, by path, for which *wanted* names a folder or the file."""
    found: dict[str, str] = {}
    for folder in NEAREST:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(LEFT_OUT):
                continue
            if not wanted or any(name == w or name.startswith(f"{w.rstrip('/')}/") for w in wanted):
                found[name] = path.read_text(encoding="utf-8")
    return found


def mutants_below(wanted: list[str]) -> list[Mutant]:
    return [m for name, source in modules(wanted).items() for m in mutants_of(name, source)]


def folder_of(mutant: Mutant) -> str:
    return mutant.module.rpartition("/")[0]


class Results:
    """What earlier runs have found out, one line for each verdict."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._verdicts: dict[str, Verdict] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                key = record.pop("mutant")
                self._verdicts[key] = Verdict(**record)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)

    def of(self, mutant: Mutant) -> Verdict | None:
        return self._verdicts.get(_key(mutant))

    def is_known(self, mutant: Mutant, tests: str) -> bool:
        verdict = self.of(mutant)
        return verdict is not None and (verdict.killed or verdict.tests == tests)

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        self._verdicts[_key(mutant)] = verdict
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutant": _key(mutant), **asdict(verdict)}) + "\n")


def _key(mutant: Mutant) -> str:
    return _digest(f"{mutant.name}\n{mutant.function_text}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def equivalents(path: Path = EQUIVALENT) -> dict[str, str]:
    """By name, why nobody can notice them."""
    listed = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    reasons: dict[str, str] = {}
    for place, changes in listed.items():
        for change, reason in changes.items():
            reasons[f"{place}: {change}"] = reason
    return reasons


def choose(mutants: Iterable[Mutant], sample: int | None, seed: int) -> list[Mutant]:
    """*sample* mutants of each folder.  For a seed most are the same when some code has changed."""
    by_folder: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_folder.setdefault(folder_of(mutant), []).append(mutant)
    chosen: list[Mutant] = []
    for folder in sorted(by_folder):
        all_of_it = by_folder[folder]
        if sample is not None and len(all_of_it) > sample:
            by_chance = sorted(all_of_it, key=lambda mutant: _digest(f"{seed} {mutant.name}"))
            all_of_it = by_chance[:sample]
        chosen += all_of_it
    return chosen


class Progress:
    def __init__(self, total: int) -> None:
        self.total = total
        self.tried = self.killed = 0
        self._began = self._told = time.monotonic()

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        self.tried += 1
        self.killed += verdict.killed
        now = time.monotonic()
        if not verdict.killed:
            print(f"survived: {mutant.name} (line {mutant.line}; {verdict.by})", flush=True)
        if now - self._told > 10:
            self._told = now
            rate = self.tried / (now - self._began)
            print(
                f"{self.tried} tried of at most {self.total}, {self.killed} killed, "
                f"{rate:.1f}/s, now in {mutant.module}",
                flush=True,
            )


def report(chosen: list[Mutant], results: Results, known: dict[str, str]) -> bool:
    """Print the figures; whether the goal is reached in every folder."""
    good = True
    print("\n| Folder | Mutants tried | Killed | Survived | Equivalent | Killed, % |")
    print("|---|---|---|---|---|---|")
    totals = [0, 0, 0, 0]
    for folder in [*sorted({folder_of(mutant) for mutant in chosen}), ""]:
        if folder:
            here = [mutant for mutant in chosen if folder_of(mutant) == folder]
            alike = sum(mutant.name in known for mutant in here)
            verdicts = [results.of(mutant) for mutant in here if mutant.name not in known]
            killed = sum(verdict is not None and verdict.killed for verdict in verdicts)
            survived = sum(verdict is not None and not verdict.killed for verdict in verdicts)
            figures = [killed + survived, killed, survived, alike]
            totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        else:
            figures = totals
        percent = 100 * figures[1] / figures[0] if figures[0] else 100.0
        good = good and percent >= GOAL
        name = f"`{folder}`" if folder else "all"
        print(f"| {name} | {' | '.join(map(str, figures))} | {percent:.1f} |")
    return good


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="folders or files; all, if none are named")
    parser.add_argument("--sample", type=int, metavar="N", help="of each folder so many")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument(
        "--survivors", action="store_true", help="those that have survived, and no others, again"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what was found out before")
    options = parser.parse_args(arguments)

    everything = {mutant.name: mutant for folder in NEAREST for mutant in mutants_below([folder])}
    mutants = mutants_below(options.modules)
    if not mutants:
        parser.error(f"nothing is mutated of {', '.join(options.modules)}")
    known = equivalents()
    gone = known.keys() - everything.keys()
    if gone:
        print(f"{EQUIVALENT.name} lists mutants that are no more:", *sorted(gone), sep="\n")
    if options.fresh:
        (KEPT / "results.jsonl").unlink(missing_ok=True)
    results = Results(KEPT / "results.jsonl")
    if options.survivors:
        mutants = [m for m in mutants if (v := results.of(m)) is not None and not v.killed]
    chosen = choose(mutants, options.sample, options.seed)
    if not chosen:
        print("none has survived")
        return 0
    progress = Progress(len(chosen))

    def tell(mutant: Mutant, verdict: Verdict) -> None:
        results.add(mutant, verdict)
        progress.add(mutant, verdict)

    near = [folder for folder in NEAREST if any(m.module.startswith(folder) for m in mutants)]
    session = MutantSession(
        modules(near),  # not those of some mutants alone: what is known of the tests stays so
        lambda: (mutant for mutant in chosen if mutant.name not in known),
        (lambda *_: False) if options.survivors else results.is_known,
        tell,
        KEPT / "reached",
    )
    tests = [NEAREST[folder] for folder in near]
    status = pytest.main([*tests, *PYTEST_OPTIONS], plugins=[session])
    survivors = [
        mutant
        for mutant in chosen
        if mutant.name not in known and (v := results.of(mutant)) is not None and not v.killed
    ]
    (KEPT / "survivors.txt").write_text(
        "".join(f"{mutant.module}:{mutant.line}: {mutant.name}\n" for mutant in survivors)
    )
    good = report(chosen, results, known)
    if status != pytest.ExitCode.OK:
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
