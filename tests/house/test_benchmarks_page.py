"""docs/benchmarks.md shows what the results files say, and benchmarks record whole runs there."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
from _results import RESULTS, Figure, Results, facts, parse, record, rows

from tools.benchmarks_page import PAGE, PageError, render, results

SMALL_PAGE = "# Figures\n\n<!-- results: calls -->\nold\n<!-- end of results -->\n\nThe end.\n"


def test_benchmarks_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page, results()), "run: python -m tools.benchmarks_page --write"


def test_each_benchmark_script_has_a_results_file() -> None:
    scripts = {script.stem for script in RESULTS.parent.glob("[!_]*.py")}
    assert {file.stem for file in RESULTS.glob("*.json")} == scripts


def test_benchmarks_page_with_a_table_that_has_no_results_file_is_refused() -> None:
    with pytest.raises(PageError, match=r"tables are of \['calls'\], results files of \[\]"):
        render(SMALL_PAGE, {})


def test_benchmark_run_replaces_its_own_rows_on_the_page_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "calls.json"
    monkeypatch.setattr("sys.argv", ["benchmarks/calls.py", "--only", "ask", "--record"])
    machine = facts()
    slow = Figure("ask", "an ask", 1.5, 1.0, "ms", peer="Ray: 2 ms")
    record(file, [slow, Figure("memory", "memory", 12, unit="MB")], machine, {})
    fast = Figure("ask", "an ask, p50", 0.25, 1.0, "ms", shown="fast, {}")
    record(file, [fast, Figure("", "judged only", 1, 2)], machine, {"seconds": [1, 2]})
    ask, memory = rows(file)
    assert (ask.what, ask.goal, ask.figure, ask.met) == (
        "an ask, p50", "at most 1 ms", "fast, 0.250 ms", True,
    )  # fmt: skip
    assert (memory.goal, memory.figure, memory.met) == ("", "12 MB", None)
    assert ask.command == "python benchmarks/calls.py --only ask"
    assert json.loads(file.read_text())["runs"][ask.command]["raw"] == {"seconds": [1, 2]}
    page = render(SMALL_PAGE, {"calls": [ask, memory]})
    when = f"({ask.date}, {ask.commit}, {ask.load})"
    assert f"| an ask, p50 | at most 1 ms | fast, 0.250 ms: met {when} |  | " in page
    assert "old" not in page
    assert render(page, {"calls": [ask, memory]}) == page


def parsed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Namespace:
    monkeypatch.setattr("sys.argv", ["benchmarks/calls.py", *arguments])
    parser = ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--runner", default="local")
    return parse(parser, "runner")


@pytest.mark.parametrize("shortened", [["--rounds", "3"], ["--no-peers"]])
def test_shortened_benchmark_run_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shortened: list[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(monkeypatch, "--record", *shortened)
    assert f"--record takes a whole run, without {shortened[0]}" in capsys.readouterr().err
    assert parsed(monkeypatch, *shortened).record is None
    assert parsed(monkeypatch, *shortened, "--record", "other.json").record == Path("other.json")


def test_whole_benchmark_run_is_recorded_in_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parsed(monkeypatch, "--record", "--rounds", "9", "--runner", "cluster")
    assert options.record == RESULTS / "calls.json"


@pytest.mark.parametrize(("seconds", "status"), [(0.9, 0), (1.1, 1)])
def test_benchmark_that_misses_a_goal_exits_with_status_1(seconds: float, status: int) -> None:
    results = Results(Namespace(record=None))
    results.add(Figure("ask", "an ask", seconds, 1.0, "s"), Figure("", "no goal", 5))
    with pytest.raises(SystemExit) as ended:
        results.end()
    assert ended.value.code == status
