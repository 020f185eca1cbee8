"""The flights as a stream of events against the same numbers computed with pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flights_stream
import pandas as pd
import pyarrow as pa
import pytest
from flights import package_data

from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.testing.manual_clock import ManualClock

HOUR = 3_600_000


def expected_days() -> pd.DataFrame:
    """From the raw file: days by the clock of New York's winter."""
    flights = pd.read_csv(package_data() / "flights.csv.zip", parse_dates=["time_hour"])
    scheduled = flights["time_hour"] + pd.to_timedelta(flights["minute"], unit="m")
    winter = scheduled.dt.tz_convert("Etc/GMT+5").dt.floor("D").dt.tz_convert("UTC")
    milliseconds = winter.dt.tz_localize(None).astype("datetime64[ms]").astype("int64")
    flights["day"], flights["late"] = milliseconds, flights["dep_delay"] > 15
    days = flights.groupby(["origin", "day"]).agg(
        flights=("minute", "size"),
        departed=("dep_delay", "count"),
        late=("late", "sum"),
        mean_delay=("dep_delay", "mean"),
        greatest_delay=("dep_delay", "max"),
    )
    days["cancelled"] = days["flights"] - days.pop("departed")
    before = days.groupby("origin")["mean_delay"].transform(lambda m: m.cummax().shift())
    days["worst_so_far"] = (days["mean_delay"] > before) | before.isna()
    named: pd.DataFrame = days.reset_index().rename(columns={"origin": "airport"})
    return named


def collected(env: StreamExecutionEnvironment, flights: pa.Table) -> pd.DataFrame:
    results = flights_stream.delays_per_airport(env.from_arrow(flights, 4096)).execute_and_collect()
    rows = pd.DataFrame([row.as_dict() for row in results])
    in_order: pd.DataFrame = rows.sort_values(["airport", "day"]).reset_index(drop=True)
    return in_order


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_days_of_all_flights_equal_those_computed_with_pandas(
    mode: RuntimeExecutionMode, parallelism: int
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism).set_runtime_mode(mode)
    # So that windows end while flights come, and not only with the last one.
    env.get_config().set_auto_watermark_interval(1)
    actual, expected = collected(env, flights_stream.read_flights()), expected_days()
    assert actual["flights"].sum() == 336_776
    assert len(actual) == 3 * 365
    pd.testing.assert_frame_equal(
        actual.sort_index(axis="columns"),
        expected.sort_index(axis="columns"),
        check_dtype=False,
        rtol=1e-12,
    )


def small(*flights: tuple[str, int | None, int]) -> pa.Table:
    """Origin, delay and hour of departure."""
    origins, delays, hours = zip(*flights, strict=True)
    return pa.table(
        {
            "origin": list(origins),
            "delay": pa.array(delays, pa.int64()),
            "time": [hour * HOUR for hour in hours],
        }
    )


def run(table: pa.Table) -> list[dict[str, Any]]:
    env = StreamExecutionEnvironment(clock=ManualClock())
    results = flights_stream.delays_per_airport(env.from_arrow(table)).execute_and_collect()
    return [row.as_dict() for row in results]


def test_day_without_a_departure_has_no_delay_and_is_not_a_worst_day() -> None:
    first, second = run(small(("JFK", None, 6), ("JFK", None, 7), ("JFK", -3, 30)))
    assert first == {
        "airport": "JFK", "day": 5 * HOUR, "flights": 2, "cancelled": 2, "late": 0,
        "mean_delay": None, "greatest_delay": None, "worst_so_far": False,
    }  # fmt: skip
    assert (second["day"], second["mean_delay"], second["worst_so_far"]) == (29 * HOUR, -3.0, True)


def test_flight_is_late_after_more_than_15_minutes_and_days_change_at_5_utc() -> None:
    days = run(small(("JFK", 15, 28), ("JFK", 16, 28), ("JFK", 50, 29)))
    assert [(day["late"], day["flights"], day["greatest_delay"]) for day in days] == [
        (1, 2, 16), (1, 1, 50),
    ]  # fmt: skip


def test_worst_days_are_found_for_each_airport_separately() -> None:
    days = run(
        small(("JFK", 10, 6), ("LGA", 50, 6), ("JFK", 30, 30), ("LGA", 20, 30), ("JFK", 20, 54))
    )
    worst = {(day["airport"], day["mean_delay"]) for day in days if day["worst_so_far"]}
    assert worst == {("JFK", 10.0), ("JFK", 30.0), ("LGA", 50.0)}


def test_program_prints_the_worst_days_as_the_year_goes_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert flights_stream.run(StreamExecutionEnvironment.get_execution_environment()) == 336_776
    *worst, last = capsys.readouterr().out.splitlines()
    day = "08 Mar  LaGuardia  105.7 min late on average, 77% by more than 15; 76 of 305 cancelled"
    assert f"  worst so far: {day}" in worst
    assert last == "336,776 flights in 3 airports' days"


def test_missing_flights_file_raises_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"flights\.csv\.zip"):
        flights_stream.read_flights(tmp_path)
