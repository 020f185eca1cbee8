"""The demo's table and plot, from a few rows of the pipeline's result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from flights_report import (
    mean_delay_by_carrier_and_hour,
    plot,
    summary,
    text_table,
    worst_per_carrier,
)


def row(carrier: str, dest: str, hour: int, departed: int, mean: float, **more: Any) -> Any:
    names = {"AA": "American Airlines Inc.", "DL": "Delta Air Lines Inc."}
    return {
        "carrier": carrier,
        "carrier_name": names.get(carrier),
        "origin": "JFK",
        "dest": dest,
        "hour": hour,
        "flights": departed + 1,
        "departed": departed,
        "cancelled": 1,
        "late": departed // 2,
        "late_share": 0.5,
        "cancelled_share": 1 / (departed + 1),
        "delay_mean": mean,
        "delay_p95": mean * 3,
        "wind_speed_mean": 11.25,
        "plane_age_mean": 7.5,
        **more,
    }


@pytest.fixture
def statistics() -> pd.DataFrame:
    rows: pd.DataFrame = pd.DataFrame(
        [
            row("AA", "BOS", 18, 40, 20.0),
            row("AA", "SFO", 18, 120, 10.0),
            row("AA", "LAX", 7, 29, 90.0),  # one departure short of MIN_DEPARTURES
            row("DL", "ATL", 9, 30, 60.0, wind_speed_mean=math.nan),
            row("DL", "ATL", 10, 31, 60.0),  # as late, more flights
            row("ZZ", "BOS", 9, 29, 500.0),  # nothing but a rare hour
        ]
    )
    return rows


def test_worst_route_of_each_carrier_is_listed_worst_first_without_rare_hours(
    statistics: pd.DataFrame,
) -> None:
    worst = worst_per_carrier(statistics)

    assert list(zip(worst["carrier"], worst["dest"], worst["hour"], strict=True)) == [
        ("DL", "ATL", 10),
        ("AA", "BOS", 18),
    ]


def test_mean_delay_per_carrier_and_hour_weighs_routes_by_departures(
    statistics: pd.DataFrame,
) -> None:
    means = mean_delay_by_carrier_and_hour(statistics)

    assert means.loc["AA", 18] == 12.5
    hours: list[Any] = means.columns.tolist()
    assert hours == [9, 10, 18], "in order, rare ones left out"
    assert means.isna().loc["AA", 9]


def test_table_has_one_aligned_line_per_carrier_and_a_dash_for_the_unknown(
    statistics: pd.DataFrame,
) -> None:
    lines = text_table(statistics.drop(index=4)).splitlines()

    assert lines[2:] == [
        "Delta Air Lines            JFK-ATL    9:00      31   60.0   180   50%   3.2%     -    7.5",
        "American Airlines          JFK-BOS   18:00      41   20.0    60   50%   2.4%  11.2    7.5",
    ]
    assert {len(line) for line in lines} == {len(lines[0])}


def test_airline_without_a_name_is_shown_by_its_code() -> None:
    table = text_table(pd.DataFrame([row("ZZ", "BOS", 9, 50, 5.0)]))

    assert table.splitlines()[2].startswith("ZZ  ")


def test_summary_of_the_year_is_one_line_with_counts_and_mean_delay(
    statistics: pd.DataFrame,
) -> None:
    line = summary(statistics)

    assert line.startswith("285 flights, 279 departed 81.6 min late on average, 49.5%")
    assert line.endswith("6 were cancelled")


def test_plot_is_written_as_a_png_file_and_a_missing_folder_is_created(
    statistics: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "flights.png"

    plot(statistics, path)

    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 10_000
