"""Run every ``@simulate`` test with many seeds, on all processors::

    python -m flinkray.testing.simulation.sweep --seeds 10000 [--processes 2] [pytest's arguments]

Each process is a pytest that takes its share of the seeds of every test, to the first one that
fails, or with ``--keep-going`` to the last.  Ends with a summary; the exit status is 1 if a seed
failed, or if a process has ended before it had run its share.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROGRESS = re.compile(r": \d+ of \d+ seeds, |: seed \d+ failed: ")
_FAILURES = 1
_NO_TESTS = 5
"""pytest's exit status if it has found no tests; ``_FAILURES`` if tests have failed."""


@dataclass
class _Total:
    """The results of one test, added up over all pytest processes."""

    passed: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)
    """The failed seeds, with the ends of their stories."""


class SweepWorker:
    """Runs a pytest process with its share of the seeds, and collects its results."""

    def __init__(self, arguments: Sequence[str], report: Path) -> None:
        self.output: list[str] = []
        self._report = report
        self.progress = ""
        """The last progress line of the process; empty: there was none."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments, "--simulation-report", str(report)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.output.append(line)
                if _PROGRESS.search(line):
                    self.progress = line.strip()
                    sys.stdout.write(line)
                    sys.stdout.flush()

    def wait(self) -> int:
        """Wait until the pytest process has ended; return its exit status."""
        status = self._process.wait()
        self._reader.join()
        return status

    def end(self) -> None:
        """Kill the pytest process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self.wait()

    def results(self) -> list[dict[str, Any]]:
        """Return the results of each test that ran to its end."""
        if not self._report.exists():
            return []
        lines = self._report.read_text("utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def complaint(self, status: int) -> str:
        """Return a text that says why the process, which ended with *status*, cannot have run all
        its seeds. "": it has run them, or has reported a failed seed."""
        has_failed = any(result["failures"] for result in self.results())
        if status in (0, _NO_TESTS) or (status == _FAILURES and has_failed):
            return ""
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        last = f"; the last that was heard of it: {self.progress}" if self.progress else ""
        return f"the process {self._process.pid} {how}{last}"


def sweep(seeds: int, first_seed: int, processes: int, arguments: Sequence[str]) -> int:
    """Run every ``@simulate`` test with many seeds, divided among *processes* pytest processes.
    Print a summary, and return the exit status. *arguments*: further arguments for pytest."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            SweepWorker(
                _arguments(seeds, first_seed, (index, processes), arguments),
                Path(folder, f"{index}.jsonl"),
            )
            for index in range(processes)
        ]
        try:
            statuses = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.end()
        totals: dict[str, _Total] = {}
        for worker in workers:
            for result in worker.results():
                total = totals.setdefault(result["nodeid"], _Total())
                total.passed += result["passed"]
                total.seconds += result["seconds"]
                total.failures += [(it["seed"], it["text"]) for it in result["failures"]]
        complaints = []
        for worker, status in zip(workers, statuses, strict=True):
            if complaint := worker.complaint(status):
                complaints.append(complaint)
                sys.stdout.writelines(worker.output)
    _print_summary(totals, time.monotonic() - begin, complaints)
    failed = complaints or any(total.failures for total in totals.values())
    return 1 if failed or not totals else 0


def _arguments(
    seeds: int, first_seed: int, shard: tuple[int, int], arguments: Sequence[str]
) -> list[str]:
    chosen = ["-q", "-m", "simulation", "-p", "no:cacheprovider"]
    chosen += ["--seeds", str(seeds), "--first-seed", str(first_seed)]
    chosen += ["--seed-shard", f"{shard[0]}/{shard[1]}"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        chosen.append("--timeout=0")  # the default suits a few seeds
    return [*chosen, *arguments]


def _print_summary(totals: dict[str, _Total], seconds: float, complaints: Sequence[str]) -> None:
    failures = 0
    for nodeid, total in totals.items():
        for seed, text in total.failures:
            failures += 1
            sys.stdout.write(f"\n=== {nodeid}: seed {seed}\n{text}\n")
    sys.stdout.write("\n  passed   seconds\n")
    for nodeid, total in totals.items():
        failed = ", ".join(str(seed) for seed, _ in sorted(total.failures))
        mark = f"  FAILED with seed {failed}" if failed else ""
        sys.stdout.write(f"{total.passed:8d}  {total.seconds:8.1f}  {nodeid}{mark}\n")
    for complaint in complaints:
        sys.stdout.write(f"NOT ALL SEEDS HAVE RUN: {complaint}\n")
    passed = sum(total.passed for total in totals.values())
    sys.stdout.write(
        f"{passed} seeds of {len(totals)} tests passed in {seconds:.0f} s, {failures} failed, "
        f"{len(complaints)} processes did not run their share\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep that the command line asks for; return the exit status. *arguments* None: those
    of this process. The module's docstring lists them."""
    parser = argparse.ArgumentParser(
        prog="python -m flinkray.testing.simulation.sweep",
        description="Run every @simulate test with many seeds; other arguments are pytest's.",
    )
    parser.add_argument("--seeds", type=int, default=1000, help="of each test (default: 1000)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options, rest = parser.parse_known_args(arguments)
    return sweep(options.seeds, options.first_seed, options.processes, rest)


if __name__ == "__main__":
    sys.exit(main())
