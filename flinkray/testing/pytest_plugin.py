"""Adds options and reports for ``@simulate`` tests; pytest loads this if flinkray is installed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flinkray.testing.simulation.seed_runner import SeedChoice, SeedsRun


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation", "simulated clusters (flinkray.testing.simulation)")
    group.addoption("--seeds", type=int, metavar="N", help="run every @simulate test with N seeds")
    group.addoption("--seed", type=int, metavar="S", help="run every @simulate test with this seed")
    group.addoption(
        "--first-seed", type=int, default=0, metavar="S", help="begin with seed S (default: 0)"
    )
    group.addoption(
        "--seed-shard",
        type=_shard,
        default=(0, 1),
        metavar="I/N",
        help="run every N-th seed only, beginning with the I-th",
    )
    group.addoption(
        "--keep-going",
        action="store_true",
        help="run the other seeds of a @simulate test when one has failed, and show all that fail",
    )
    group.addoption(
        "--simulation-report",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for every @simulate test",
    )


def _shard(text: str) -> tuple[int, int]:
    index, _, step = text.partition("/")
    try:
        shard = int(index), int(step)
    except ValueError:
        shard = 0, 0
    if not 0 <= shard[0] < shard[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 0 <= I < N")
    return shard


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "simulation: a @simulate test, which runs with many seeds")


def seed_choice(config: pytest.Config) -> SeedChoice:
    """Return the seeds that the command line asks for. If this plugin is not loaded: the default
    choice."""
    from flinkray.testing.simulation.seed_runner import SeedChoice

    return SeedChoice(
        config.getoption("--seed", None),
        config.getoption("--seeds", None),
        config.getoption("--first-seed", 0),
        config.getoption("--seed-shard", (0, 1)),
    )


def show_progress(config: pytest.Config, line: str) -> None:
    """Write a line to the terminal at once, even while pytest captures output."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None:
        return
    if capture is None:
        reporter.write_line(line)
    else:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)


def write_report(config: pytest.Config, run: SeedsRun) -> None:
    path: Path | None = config.getoption("--simulation-report", None)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Add to a failed test's report the stories of the failed seeds, with the commands that replay
    them."""
    outcome = yield
    run = getattr(call.excinfo.value, "seeds_run", None) if call.excinfo is not None else None
    for failure in () if run is None else run.failures:
        outcome.get_result().sections.append((f"simulation of seed {failure.seed}", failure.text))
