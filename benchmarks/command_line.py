"""How long the command line takes, from the start of its process to the end.

    python benchmarks/command_line.py [--rounds N] [--address HOST:PORT]

``flinkray list`` is measured if there is an address of a Ray with a cluster.  Commands take turns;
what is printed are the fastest and the median of all rounds, and the median's ratio to that of
``python -c pass`` and ``import click``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

from _machine import facts

GOALS = {"flinkray --help": 0.2, "flinkray list": 1.0}
"""Seconds, of the median."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import click": [sys.executable, "-c", "import click"],
        "flinkray --help": [sys.executable, "-m", "flinkray", "--help"],
    }
    if arguments.address:
        line = [sys.executable, "-m", "flinkray", "list", "--address", arguments.address]
        commands["flinkray list"] = line
    for name, value in facts("click", "ray").items():
        print(f"{name}: {value}")
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, line in commands.items():
            begun = time.perf_counter()
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begun)
    medians = {name: median(found) for name, found in times.items()}
    missed = False
    for name, found in times.items():
        goal = GOALS.get(name)
        print(
            f"{name}: fastest {min(found):.3f} s, median {medians[name]:.3f} s, "
            f"{medians[name] / medians['python -c pass']:.1f} x python, "
            f"{medians[name] / medians['import click']:.1f} x click"
            + ("" if goal is None else f" (goal: below {goal:g} s)")
        )
        missed |= goal is not None and medians[name] >= goal
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
