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

from _results import Figure, Results, parse

GOALS = {"flinkray --help": 0.2, "flinkray list": 1.0}
"""Seconds, of the median."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--address")
    arguments = parse(parser, "address")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import click": [sys.executable, "-c", "import click"],
        "flinkray --help": [sys.executable, "-m", "flinkray", "--help"],
    }
    if arguments.address:
        line = [sys.executable, "-m", "flinkray", "list", "--address", arguments.address]
        commands["flinkray list"] = line
    results = Results(arguments, "click", "ray")
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, line in commands.items():
            begun = time.perf_counter()
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begun)
    medians = {name: median(found) for name, found in times.items()}
    for name, found in times.items():
        print(
            f"{name}: fastest {min(found):.3f} s, median {medians[name]:.3f} s, "
            f"{medians[name] / medians['python -c pass']:.1f} x python, "
            f"{medians[name] / medians['import click']:.1f} x click"
        )
    for name, goal in GOALS.items():
        if name in medians:
            results.add(Figure(name, f"`{name}`", medians[name], goal, "s"))
    results.raw = times
    results.end()


if __name__ == "__main__":
    main()
