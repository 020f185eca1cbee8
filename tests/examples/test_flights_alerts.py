"""Hours and alerts of the flights against the same numbers computed with pandas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flights_alerts
import flights_outputs
import pandas as pd
import pyarrow as pa
import pytest
from flights_alerts_check import (
    WrongResultsError,
    check,
    expected_alerts,
    expected_hours,
    joined_flights,
)

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.postgres_server import why_not

HOUR = 3_600_000
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """The first 100,000: October, November, some of December, and January."""
    first: pd.DataFrame = joined_flights().head(100_000)
    return first


@pytest.fixture(scope="module")
def expected(flights: pd.DataFrame) -> pd.DataFrame:
    return expected_hours(flights)


def departures(flights: pd.DataFrame) -> pa.Table:
    """As ``flights_alerts.departures`` gives them, which ``make demo`` compares with pandas."""
    columns = {
        "origin": flights["origin"],
        "time_hour": flights["time_hour"],
        "departed": flights["dep_delay"].notna().astype("int64"),
        "minutes": flights["dep_delay"].fillna(0).astype("int64"),
        "windy": flights["windy"].astype("int64"),
        "old": flights["old"].astype("int64"),
    }
    return pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False).sort_by("time_hour")


def run(env: StreamExecutionEnvironment, flights: pa.Table) -> tuple[Rows, Rows]:
    """Hours, and alerts."""
    hours, alerts = flights_alerts.hours_and_alerts(
        env.from_arrow(flights, 2048).assign_timestamps_and_watermarks(flights_alerts.BY_HOUR)
    )
    both = hours.map(lambda row: ("hour", row)).union(alerts.map(lambda row: ("alert", row)))
    found: dict[str, Rows] = {"hour": [], "alert": []}
    for kind, row in both.execute_and_collect():
        found[kind].append(row.as_dict())
    return found["hour"], found["alert"]


def test_hours_and_alerts_of_all_flights_equal_those_that_pandas_computes(
    flights: pd.DataFrame, expected: pd.DataFrame
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(3)
    # So that windows end while flights come, and not only with the last one.
    env.get_config().set_auto_watermark_interval(1)

    hours, alerts = run(env, departures(flights))

    check(hours, alerts, expected)
    assert sum(hour["flights"] for hour in hours) == 100_000
    assert sum(hour["departed"] for hour in hours) == 98_106
    assert 0 < len(alerts) < len(hours) / 20


def days(*delays: float | None, airport: str = "JFK") -> Rows:
    """A flight a day, at the same hour."""
    return [
        {
            "origin": airport,
            "time_hour": day * 24 * HOUR,
            "departed": int(delay is not None),
            "minutes": int(delay or 0),
            "windy": 0,
            "old": 0,
        }
        for day, delay in enumerate(delays)
    ]


def judged(*flights: dict[str, Any]) -> tuple[Rows, Rows]:
    in_order = sorted(flights, key=lambda flight: flight["time_hour"])
    return run(StreamExecutionEnvironment(clock=ManualClock()), pa.Table.from_pylist(in_order))


def test_usual_delay_is_unknown_before_14_days_with_departures() -> None:
    hours, alerts = judged(*days(*[10] * 13, None, 500, 500))
    assert [hour["usual_delay"] for hour in hours] == [None] * 15 + [pytest.approx(10 + 490 / 14)]
    assert [alert["hour"] for alert in alerts] == [15 * 24 * HOUR]


def test_usual_delay_is_learned_for_each_airport_separately() -> None:
    hours, alerts = judged(*days(*[10] * 20), *days(*[10, 30] * 10, airport="LGA"))
    usual = {hour["airport"]: hour["usual_delay"] for hour in hours[-2:]}
    assert usual["JFK"] == pytest.approx(10)
    assert 15 < usual["LGA"] < 25
    assert alerts == []


def records(rows: pd.DataFrame) -> Rows:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


@pytest.fixture(scope="module")
def right(expected: pd.DataFrame) -> tuple[Rows, Rows]:
    hours = expected.drop(columns="deviation")
    return records(hours), records(expected_alerts(expected))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "mistake",
    [
        lambda rows: rows[1:],
        lambda rows: [*rows, rows[0]],
        lambda rows: [*rows[1:], rows[1]],
        lambda rows: [{**rows[0], "mean_delay": rows[0]["mean_delay"] + 1e-3}, *rows[1:]],
    ],
    ids=["lost", "twice", "one for another", "another number"],
)
def test_comparison_with_pandas_finds_lost_repeated_replaced_and_changed_rows(
    right: tuple[Rows, Rows], expected: pd.DataFrame, which: int, mistake: Callable[[Rows], Rows]
) -> None:
    check(*right, expected)
    wrong = [*right]
    wrong[which] = mistake(right[which])
    with pytest.raises(WrongResultsError, match="are not the"):
        check(wrong[0], wrong[1], expected)


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")
def test_existing_table_of_an_earlier_run_is_refused_as_output(tmp_path: Path) -> None:
    with flights_outputs.alerts_output(None, tmp_path) as table:
        assert isinstance(table, flights_outputs.Table)
        assert table.rows() == []
        with pytest.raises(flights_outputs.OutputError, match="flights_alerts already"):
            flights_outputs.Table(table.conninfo)
    with pytest.raises(flights_outputs.OutputError, match="cannot make the table flights_alerts"):
        flights_outputs.Table(table.conninfo)


def test_existing_files_of_an_earlier_run_are_refused_as_output(tmp_path: Path) -> None:
    flights_outputs.Files(tmp_path / "new")
    (tmp_path / "part-0").touch()
    with pytest.raises(flights_outputs.OutputError, match="remove it, or name another folder"):
        flights_outputs.Files(tmp_path)


def test_worst_hours_are_printed_with_airport_time_and_usual_delay(
    right: tuple[Rows, Rows],
) -> None:
    worst, *_ = flights_alerts.worst(right[1], 3)
    assert flights_alerts.line_of(worst) == (
        "EWR  19 Dec 17:00   849.0 min late on average, usual: 29.8 ± 34.2"
    )
