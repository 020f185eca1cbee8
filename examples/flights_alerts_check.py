"""What ``flights_alerts.py`` has to give, computed with pandas from the package's files.

Another way to the same numbers: all hours at once instead of one after the other, exponentially
weighted by pandas instead of by a state, and weather and planes joined by pandas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from flights import YEAR, package_data
from flights_alerts import FAR, LEARNED, NEWEST, OLD, WINDY

import flinkray

KEY = ["airport", "hour"]
TOLERANCE = 1e-9
"""Of minutes, relative and absolute: pandas adds in another order."""


class WrongResultsError(flinkray.FlinkRayError):
    """Results are not those that pandas computes; the text names the first difference."""


def joined_flights() -> pd.DataFrame:
    """The package's flights; of each whether it is ``windy``, and whether its plane is ``old``."""
    folder = package_data()
    flights = pd.read_csv(folder / "flights.csv.zip", parse_dates=["time_hour"])
    weather = pd.read_csv(folder / "weather.csv", parse_dates=["time_hour"])
    planes = pd.read_csv(folder / "planes.csv").rename(columns={"year": "built"})
    observed = weather[["origin", "time_hour", "wind_speed"]]
    flights = flights.merge(observed, on=["origin", "time_hour"], how="left")
    flights = flights.merge(planes[["tailnum", "built"]], on="tailnum", how="left")
    flights["windy"] = flights["wind_speed"] >= WINDY
    flights["old"] = flights["built"] <= YEAR - OLD
    joined: pd.DataFrame = flights
    return joined


def expected_hours(flights: pd.DataFrame) -> pd.DataFrame:
    """Hours as ``flights_alerts.HOURS``, and the deviation that was usual; by airport and hour.

    Of the flights that `joined_flights` gives.
    """
    hours = (
        flights.groupby(["origin", "time_hour"])
        .agg(
            flights=("origin", "size"),
            departed=("dep_delay", "count"),
            windy=("windy", "sum"),
            old=("old", "sum"),
            mean_delay=("dep_delay", "mean"),
        )
        .reset_index()
        .rename(columns={"origin": "airport"})
    )
    begin = hours["time_hour"].dt.tz_convert("UTC")
    hours["hour"] = begin.dt.tz_localize(None).astype("datetime64[ms]").astype("int64")
    hours["hour_of_day"] = begin.dt.tz_convert("America/New_York").dt.hour
    parts = [_with_usual(part) for _, part in hours.groupby(["airport", "hour_of_day"])]
    names = [*KEY, "flights", "departed", "windy", "old", "mean_delay", "usual_delay", "deviation"]
    in_order: pd.DataFrame = pd.concat(parts).sort_values(KEY, ignore_index=True)[names]
    return in_order


def _with_usual(hours: pd.DataFrame) -> pd.DataFrame:
    """Of one airport and hour of the day, in the order of time: what was usual before each."""
    in_order = hours.sort_values("hour")
    known = in_order["mean_delay"].dropna()  # nothing is learned of hours without departures
    weighted = known.ewm(alpha=NEWEST, adjust=False)
    learned = pd.DataFrame(
        {
            "usual_delay": weighted.mean(),
            "deviation": np.sqrt(weighted.var(bias=True)),
            "days": np.arange(1, len(known) + 1),
        }
    )
    before = learned.reindex(in_order.index).ffill().shift()
    before.loc[~(before["days"] >= LEARNED), ["usual_delay", "deviation"]] = np.nan
    hours_with_usual: pd.DataFrame = in_order.assign(**before[["usual_delay", "deviation"]])
    return hours_with_usual


def expected_alerts(hours: pd.DataFrame) -> pd.DataFrame:
    """As ``flights_alerts.ALERTS``; of the hours of `expected_hours`."""
    is_far = hours["mean_delay"] > hours["usual_delay"] + FAR * hours["deviation"]
    names = [*KEY, "mean_delay", "usual_delay", "deviation"]
    alerts: pd.DataFrame = hours.loc[is_far, names].reset_index(drop=True)
    return alerts


def check(
    hours: list[dict[str, Any]], alerts: list[dict[str, Any]], expected: pd.DataFrame
) -> None:
    """Compare results, which may be in any order, with those of `expected_hours`.

    Raises:
        WrongResultsError: they differ.
    """
    _compare("hours", hours, expected.drop(columns="deviation"))
    _compare("alerts", alerts, expected_alerts(expected))


def _compare(what: str, rows: list[dict[str, Any]], expected: pd.DataFrame) -> None:
    found = pd.DataFrame(rows, columns=list(expected.columns)).sort_values(KEY, ignore_index=True)
    try:
        pd.testing.assert_frame_equal(
            found, expected, check_dtype=False, rtol=TOLERANCE, atol=TOLERANCE
        )
    except AssertionError as error:
        raise WrongResultsError(
            f"{len(found)} {what} are not the {len(expected)} that pandas computes: {error}"
        ) from error
