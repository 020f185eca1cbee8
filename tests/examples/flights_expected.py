"""`pipeline`'s numbers by another way, from the raw package data."""

from __future__ import annotations

import numpy as np
import pandas as pd
from flights import COLUMNS, package_data

KEY = ["carrier", "origin", "dest", "hour"]

COUNTS = [
    "flights",
    "departed",
    "cancelled",
    "late",
    "rank_in_hour",
    "weather_known",
    "plane_age_known",
]
DELAYS = ["late_share", "cancelled_share", "delay_mean", "delay_p95", "delay_rolling_mean"]
MEANS = ["wind_speed_mean", "visibility_mean", "plane_age_mean"]


def expected_statistics() -> pd.DataFrame:
    """`pipeline`'s numbers by another way: pandas, weather matched by local date and hour, counts
    and quantiles per group in numpy, ranks and rolling means by sorting and loops."""
    data = package_data()
    flights = pd.read_csv(data / "flights.csv.zip")
    weather = pd.read_csv(data / "weather.csv")
    local_hour = ["origin", "year", "month", "day", "hour"]
    # The hour that the end of summer time repeats; no flight leaves in it.
    weather = weather.drop_duplicates(local_hour)[[*local_hour, "wind_speed", "visib"]]
    planes = pd.read_csv(data / "planes.csv").set_index("tailnum")["year"]
    airlines = pd.read_csv(data / "airlines.csv", index_col="carrier")["name"]
    airports = pd.read_csv(data / "airports.csv", index_col="faa")["name"]

    joined = flights.merge(weather, on=local_hour, how="left", indicator="match")
    joined["age"] = 2013 - joined["tailnum"].map(planes)

    rows = []
    for (carrier, origin, dest, hour), group in joined.groupby(KEY):
        delays = group["dep_delay"].dropna().to_numpy()
        rows.append(
            {
                "carrier": carrier,
                "carrier_name": airlines.get(carrier),
                "origin": origin,
                "dest": dest,
                "dest_name": airports.get(dest),
                "hour": hour,
                "flights": len(group),
                "departed": len(delays),
                "cancelled": int(group["dep_time"].isna().sum()),
                "late": int((delays > 15).sum()),
                "late_share": (delays > 15).mean() if len(delays) else np.nan,
                "cancelled_share": group["dep_time"].isna().mean(),
                "delay_sum": delays.sum(),
                "delay_mean": delays.mean() if len(delays) else np.nan,
                "delay_p95": np.quantile(delays, 0.95) if len(delays) else np.nan,
                "weather_known": int((group["match"] == "both").sum()),
                "wind_speed_mean": group["wind_speed"].mean(),
                "visibility_mean": group["visib"].mean(),
                "plane_age_known": int(group["age"].notna().sum()),
                "plane_age_mean": group["age"].mean(),
            }
        )
    table = pd.DataFrame(rows)

    per_hour = {tuple(row[:4]): row[4:] for row in table[[*KEY, "delay_sum", "departed"]].values}
    rolling = []
    for carrier, origin, dest, hour in table[KEY].values:
        near = [per_hour.get((carrier, origin, dest, hour - back), (0, 0)) for back in (0, 1, 2)]
        departed = sum(count for _, count in near)
        rolling.append(sum(total for total, _ in near) / departed if departed else np.nan)
    table["delay_rolling_mean"] = rolling

    table = table.sort_values(
        ["carrier", "hour", "delay_mean", "flights", "origin", "dest"],
        ascending=[True, True, False, False, True, True],
        na_position="last",
    ).reset_index(drop=True)
    table["rank_in_hour"] = table.groupby(["carrier", "hour"]).cumcount() + 1
    ordered: pd.DataFrame = table[list(COLUMNS)]
    return ordered


def assert_same_statistics(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Same rows in the same order; counts and ranks exactly, delays and means to 1e-9."""
    assert list(actual.columns) == list(expected.columns)
    names = [*KEY, "carrier_name", "dest_name"]
    pd.testing.assert_frame_equal(actual[names], expected[names], check_dtype=False)
    pd.testing.assert_frame_equal(
        actual[COUNTS], expected[COUNTS], check_dtype=False, check_exact=True
    )
    numbers = DELAYS + MEANS
    pd.testing.assert_frame_equal(
        actual[numbers], expected[numbers], check_dtype=False, rtol=1e-9, atol=0
    )
