"""Run every ``@simulate`` test with many seeds, on all processors::

    python -m flinkray.testing.simulation.sweep --seeds 10000 [--processes 2] [pytest's arguments]

Each process is a pytest that takes its share of the seeds of every test.  Ends with a summary; the
exit status is 1 if a seed failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_NO_TESTS = 5
"""pytest's exit status when it has found none."""


@dataclass
class _Total:
    """What became of one test in all processes."""

    seeds: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seeds, with the ends of their stories."""


class SweepWorker:
    """One pytest with its share of the seeds."""

    def __init__(self, arguments: Sequence[str], report: Path) -> None:
        self.output: list[str] = []
        self._report = report
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
                if " seeds, " in line and " of " in line:
                    sys.stdout.write(line)
                    sys.stdout.flush()

    def wait(self) -> int:
        """Its exit status."""
        status = self._process.wait()
        self._reader.join()
        return status

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self.wait()

    def results(self) -> list[dict[str, object]]:
        """One for each test that ran."""
        if not self._report.exists():
            return []
        return [json.loads(line) for line in self._report.read_text("utf-8").splitlines()]


def sweep(seeds: int, first_seed: int, processes: int, arguments: Sequence[str]) -> int:
    """Run and print the summary; returns the exit status."""
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
                total = totals.setdefault(str(result["nodeid"]), _Total())
                total.seeds += int(str(result["done"]))
                total.seconds += float(str(result["seconds"]))
                if result["failed_seed"] is not None:
                    failure = int(str(result["failed_seed"])), str(result["text"])
                    total.failures.append(failure)
    failed = _print_summary(totals, time.monotonic() - begin)
    for worker, status in zip(workers, statuses, strict=True):
        if status not in (0, _NO_TESTS) and not failed:
            sys.stdout.writelines(worker.output)
            failed = True
    return 1 if failed or not totals else 0


def _arguments(
    seeds: int, first_seed: int, shard: tuple[int, int], arguments: Sequence[str]
) -> list[str]:
    chosen = ["-q", "-m", "simulation", "-p", "no:cacheprovider"]
    chosen += ["--seeds", str(seeds), "--first-seed", str(first_seed)]
    chosen += ["--seed-shard", f"{shard[0]}/{shard[1]}"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        chosen.append("--timeout=0")  # it is made for one seed, or a few
    return [*chosen, *arguments]


def _print_summary(totals: dict[str, _Total], seconds: float) -> bool:
    """Returns whether a seed has failed."""
    failures = 0
    for nodeid, total in totals.items():
        for seed, text in total.failures:
            failures += 1
            sys.stdout.write(f"\n=== {nodeid}: seed {seed}\n{text}\n")
    sys.stdout.write("\n   seeds   seconds\n")
    for nodeid, total in totals.items():
        failed = ", ".join(str(seed) for seed, _ in sorted(total.failures))
        mark = f"  FAILED with seed {failed}" if failed else ""
        sys.stdout.write(f"{total.seeds:8d}  {total.seconds:8.1f}  {nodeid}{mark}\n")
    seeds = sum(total.seeds for total in totals.values())
    sys.stdout.write(
        f"{seeds} seeds of {len(totals)} tests in {seconds:.0f} s, {failures} failures\n"
    )
    return failures > 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
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
