"""``@simulate`` in pytest: options, reports, replay."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from flinkray.testing.simulation.sweep import main as sweep

_SCENARIO = """
from flinkray.testing.simulation import Faults, Simulation, simulate

@simulate(seeds=4)
async def test_passes(simulation: Simulation, tmp_path) -> None:
    assert tmp_path.is_dir()
    with open("seeds", "a") as file:
        file.write(f"{simulation.seed}\\n")

@simulate(seeds=100)
async def test_fails_with_seed_7(simulation: Simulation) -> None:
    simulation.tell("the seed is %d", simulation.seed)
    assert simulation.seed != 7, "seven"
"""

_PLUGINS = ("-p", "flinkray.testing.pytest_plugin", "-p", "no:asyncio")


@pytest.fixture
def scenario(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a file of two tests; the plugin is asked for as often as it can be."""
    pytester.makeconftest('pytest_plugins = ["flinkray.testing.pytest_plugin"]')
    pytester.makepyfile(test_scenario=_SCENARIO)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    return pytester


def run(scenario: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """In this process: to begin another one costs some seconds, and sweeps do."""
    return scenario.runpytest_inprocess(*_PLUGINS, "-W", "error", *arguments)


def seeds_run(scenario: pytest.Pytester) -> list[int]:
    return [int(line) for line in (scenario.path / "seeds").read_text().split()]


def test_failing_seed_is_shown_with_its_event_log_and_the_command_to_replay_the_seed(
    scenario: pytest.Pytester,
) -> None:
    result = run(scenario, "--simulation-report", "report.jsonl")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: seven*",
            "*simulation of seed 7*",
            "*test *the seed is 7",
            "seed 7 failed at 0.000000 s, after * steps; trace *",
            'replay: pytest "test_scenario.py::test_fails_with_seed_7" --seed 7',
        ]
    )
    result.stdout.no_fnmatch_line("*the seed is 6*")
    assert seeds_run(scenario) == [0, 1, 2, 3]
    passed, failed = map(json.loads, (scenario.path / "report.jsonl").read_text().splitlines())
    assert (passed["passed"], passed["failures"]) == (4, [])
    assert (failed["passed"], [it["seed"] for it in failed["failures"]]) == (7, [7])


def test_repeated_polling_does_not_push_earlier_lines_out_of_the_printed_event_log(
    scenario: pytest.Pytester,
) -> None:
    scenario.makepyfile(
        test_scenario="""
from flinkray.testing.simulation import Simulation, simulate

@simulate(seeds=1)
async def test_waits(simulation: Simulation) -> None:
    simulation.tell("before all")
    simulation.tell("the cause")
    numbers = iter(range(10_000))

    def is_done() -> bool:
        simulation.tell("ask is_done #%d", next(numbers))
        simulation.tell("result #%d", next(numbers))
        return False

    await simulation.eventually(is_done, within=30)
"""
    )
    result = run(scenario)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test *before all",
            "*test *the cause",
            "... * more of kinds that are below",
            "*test *ask is_done #*",
            "seed 0 failed at 30.* s, after * steps; trace *",
        ]
    )
    assert str(result.stdout).count("ask is_done") == 4  # once in the source


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def test_it(simulation): ...", "TypeError: test_it: a scenario is an `async def`"),
        ("async def test_it(): ...", "TypeError: test_it: a scenario takes a parameter*"),
    ],
)
def test_scenario_that_is_not_async_or_takes_no_simulation_is_refused(
    scenario: pytest.Pytester, source: str, error: str
) -> None:
    begin = "from flinkray.testing.simulation import simulate\n\n@simulate()\n"
    scenario.makepyfile(test_scenario=f"{begin}{source}")
    result = run(scenario)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"E*{error}"])


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        (["--seeds", "2"], [0, 1]),
        (["--seeds", "2", "--first-seed", "10"], [10, 11]),
        (["--seed", "7"], [7]),
        (["--seeds", "7", "--seed-shard", "1/3"], [1, 4]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value[0], str) else "",
)
def test_command_line_options_choose_the_seeds(
    scenario: pytest.Pytester, options: list[str], seeds: list[int]
) -> None:
    run(scenario, *options, "-k", "passes").assert_outcomes(passed=1, deselected=1)
    assert seeds_run(scenario) == seeds


def test_malformed_seed_shard_is_refused(scenario: pytest.Pytester) -> None:
    result = run(scenario, "--seed-shard", "3/3")
    result.stderr.fnmatch_lines(["*'3/3' is not I/N with 0 <= I < N*"])


def test_scenarios_have_the_marker_simulation(scenario: pytest.Pytester) -> None:
    run(scenario, "-m", "not simulation").assert_outcomes(deselected=2)


def test_scenario_without_the_parameter_simulation_is_refused(scenario: pytest.Pytester) -> None:
    scenario.makepyfile(
        test_wrong=_SCENARIO.partition("@")[0] + "@simulate()\nasync def test_it() -> None: ..."
    )
    result = run(scenario, "test_wrong.py")
    result.stdout.fnmatch_lines(["*test_it: a scenario takes a parameter `simulation`*"])


def test_sweep_runs_all_seeds_in_several_processes_and_prints_a_summary(
    scenario: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    status = sweep(["--seeds", "10", "--processes", "2", *_PLUGINS])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert status == 1
    passed = next(line for line in lines if "test_scenario.py::test_passes" in line)
    failed = next(line for line in lines if line[-4:] == ["FAILED", "with", "seed", "7"])
    assert int(passed[0]) == 10
    assert int(failed[0]) == 8  # 0, 2, 4, 6, 8 by one process, 1, 3, 5 by the other
    assert [
        "replay:",
        "pytest",
        '"test_scenario.py::test_fails_with_seed_7"',
        "--seed",
        "7",
    ] in lines
    assert sweep(["--seeds", "4", "--processes", "1"]) == 0


_ODD_SEEDS = """
import os, signal
from flinkray.testing.simulation import Simulation, simulate

@simulate()
async def test_fails_with_odd_seeds(simulation: Simulation) -> None:
    assert simulation.seed % 2 == 0, f"{simulation.seed} is odd"

@simulate()
async def test_kills(simulation: Simulation) -> None:
    if simulation.seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sweep_with_keep_going_lists_all_failing_seeds_and_killed_processes(
    scenario: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.makepyfile(test_scenario=_ODD_SEEDS)
    arguments = ["--seeds", "6", "--processes", "2", "--keep-going", *_PLUGINS]
    assert sweep(arguments) == 1
    out = capsys.readouterr().out
    assert "test_fails_with_odd_seeds: seed 3 failed: AssertionError: 3 is odd" in out
    assert "=== test_scenario.py::test_fails_with_odd_seeds: seed 5\n" in out
    assert "       3 " in out
    assert "FAILED with seed 1, 3, 5\n" in out
    assert re.search(r"NOT ALL SEEDS HAVE RUN: the process \d+ was killed by signal 9", out), out
    # 1, 3 and 5 are the share of that process; the other one has run its own
    assert re.search(r"3 .* test_scenario.py::test_kills\n", out), out


def test_sweep_over_seeds_that_finds_no_scenario_fails(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(["--processes", "1", *_PLUGINS]) == 1


def test_pytest_entry_point_has_the_name_of_its_module() -> None:
    """Otherwise pytest loads the plugin twice if a conftest.py requests it, too."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '\n"flinkray.testing.pytest_plugin" = "flinkray.testing.pytest_plugin"\n' in text
