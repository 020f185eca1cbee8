"""Alerts on bad hours at New York's airports: Spark and a stream with state, as one job.

    python examples/flights_alerts.py

Spark joins the 336,776 flights of 2013 with the weather at their hour and with their planes, and
orders them by time.  The stream counts them by airport and hour, in windows of event time.  A
function with state learns which delay is usual at an airport at an hour of the day, from the two
weeks or so before, and tells of hours that were far worse.  Hours go to Parquet files and alerts,
by a side output, to a table of PostgreSQL: exactly once, whatever dies meanwhile
(``flights_alerts_kill.py``, which ``make demo`` runs).  What the function has learned can be
queried while the job runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from flights import YEAR, package_data, read_flights, read_planes, read_weather
from flights_outputs import Files, Output, alerts_output
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of PySpark's own examples use

import flinkray
from flinkray.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import Row, Time
from flinkray.datastream.state import MapStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows

HOUR = Time.hours(1)
BY_HOUR = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("time_hour")
"""Flights come in the order of their hours, so nothing is late."""
NEW_YORK = ZoneInfo("America/New_York")

SPARK = {"spark.sql.execution.arrow.maxRecordsPerBatch": 2048}

WINDY = 20.0
"""Miles per hour of wind from which a flight counts as one in strong wind."""
OLD = 20
"""Years from which a plane counts as old."""

MODELS = "delay models"
"""The state that can be queried: airport -> hour of the day -> (days, mean, variance)."""
NEWEST = 1 / 14
"""Weight of the newest day among those that a model has learned from."""
LEARNED = 14
"""Days that a model has to have learned from before it can tell what is usual."""
FAR = 3.0
"""Standard deviations from which an hour is far worse than usual."""

HOURS = Types.ROW_NAMED(
    ["airport", "hour", "flights", "departed", "windy", "old", "mean_delay", "usual_delay"],
    [
        Types.STRING(),
        Types.LONG(),
        Types.LONG(),
        Types.LONG(),
        Types.LONG(),
        Types.LONG(),
        Types.DOUBLE(),
        Types.DOUBLE(),
    ],
)
"""An hour of an airport: its begin in milliseconds; flights, those that departed, those in strong
wind and with old planes; departure delays in minutes, None: nothing departed, nothing is usual."""

ALERTS: OutputTag[Row] = OutputTag(
    "alerts",
    Types.ROW_NAMED(
        ["airport", "hour", "mean_delay", "usual_delay", "deviation"],
        [Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.DOUBLE(), Types.DOUBLE()],
    ),
)
"""Hours that were far worse than usual; the deviation is a standard one, in minutes."""


def departures(spark: SparkSession) -> DataFrame:
    """All flights by time, with what is counted of each: ``origin``, ``time_hour``, and integers.

    A cancelled flight has not departed, and adds no minutes of delay.  Unknown wind is no strong
    one, and a plane of unknown age is not old.
    """
    folder = package_data()
    weather = read_weather(spark, f"{folder}/weather.csv")
    planes = read_planes(spark, f"{folder}/planes.csv").select("tailnum", F.col("year").alias("of"))
    observed = weather.select("origin", "time_hour", "wind_speed")
    flights = read_flights(spark, f"{folder}/flights.csv.zip")
    joined = flights.join(F.broadcast(observed), ["origin", "time_hour"], "left").join(
        F.broadcast(planes), "tailnum", "left"
    )
    windy = F.coalesce(F.col("wind_speed") >= WINDY, F.lit(False))
    old = F.coalesce(YEAR - F.col("of") >= OLD, F.lit(False))
    return joined.select(
        "origin",
        "time_hour",
        F.col("dep_delay").isNotNull().cast("long").alias("departed"),
        F.coalesce("dep_delay", F.lit(0)).cast("long").alias("minutes"),
        windy.cast("long").alias("windy"),
        old.cast("long").alias("old"),
    ).orderBy("time_hour")


class DelayModel(KeyedProcessFunction[Any, Any, Any]):
    """What is usual at an airport at an hour of the day: the mean and the variance of the hours'
    mean delays, in which each day weighs less the longer ago it is."""

    def open(self, runtime_context: RuntimeContext) -> None:
        models: MapStateDescriptor[int, Any] = MapStateDescriptor(
            MODELS, Types.INT(), Types.PICKLED_BYTE_ARRAY()
        )
        models.set_queryable(MODELS)
        self.models = runtime_context.get_map_state(models)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        airport, begin = value.origin, value.window_start
        delay = value.minutes / value.departed if value.departed else None
        hour_of_day = datetime.fromtimestamp(begin / 1000, NEW_YORK).hour
        days, mean, variance = self.models.get(hour_of_day) or (0, 0.0, 0.0)
        is_known = days >= LEARNED
        if delay is not None:
            deviation = math.sqrt(variance)
            if is_known and delay > mean + FAR * deviation:
                alert = Row(
                    airport=airport,
                    hour=begin,
                    mean_delay=delay,
                    usual_delay=mean,
                    deviation=deviation,
                )
                yield ALERTS, alert
            self.models.put(hour_of_day, (days + 1, *learned(days, mean, variance, delay)))
        yield Row(
            airport=airport,
            hour=begin,
            flights=value.flights,
            departed=value.departed,
            windy=value.windy,
            old=value.old,
            mean_delay=delay,
            usual_delay=mean if is_known else None,
        )


def learned(days: int, mean: float, variance: float, delay: float) -> tuple[float, float]:
    """Mean and variance with one more day."""
    if days == 0:
        return delay, 0.0
    difference = delay - mean
    return (
        mean + NEWEST * difference,
        (1 - NEWEST) * (variance + NEWEST * difference * difference),
    )


def hours_and_alerts(flights: DataStream) -> tuple[DataStream, DataStream]:
    """Rows of `HOURS`, and of the side output `ALERTS`; *flights* as `departures` has them."""
    hours = (
        flights.key_by("origin")
        .window(TumblingEventTimeWindows.of(HOUR))
        .aggregate_columns(
            flights="count",
            departed=("departed", "sum"),
            minutes=("minutes", "sum"),
            windy=("windy", "sum"),
            old=("old", "sum"),
        )
    )
    judged = hours.key_by("origin").process(DelayModel(), HOURS).name("Delay model")
    return judged, judged.get_side_output(ALERTS)


def build(
    env: StreamExecutionEnvironment, hours: Output, alerts: Output, paced: Any = None
) -> None:
    """The whole pipeline, from Spark to both sinks.

    Args:
        paced: a function of batches that all flights pass through, to slow them down.
    """
    flights = env.from_spark(departures, BY_HOUR, "Departures", spark_conf=SPARK)
    if paced is not None:
        flights = flights.map_batches(paced).name("Pace")
    judged, alerting = hours_and_alerts(flights)
    judged.sink_to(hours.sink()).name("Hours")
    alerting.sink_to(alerts.sink()).name("Alerts")


def line_of(alert: dict[str, Any]) -> str:
    """An alert in words."""
    begin = datetime.fromtimestamp(alert["hour"] / 1000, NEW_YORK)
    return (
        f"{alert['airport']}  {begin:%d %b %H:%M}  {alert['mean_delay']:6.1f} min late on average,"
        f" usual: {alert['usual_delay']:.1f} ± {alert['deviation']:.1f}"
    )


def worst(alerts: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Those that are farthest from what was usual, in minutes."""
    in_order = sorted(alerts, key=lambda alert: alert["usual_delay"] - alert["mean_delay"])
    return in_order[:count]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job on a cluster of its own, and print the worst of the alerts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, default=Path("flights-output"), help="folder")
    parser.add_argument(
        "--postgresql",
        metavar="CONNINFO",
        help="database for the table of alerts, as libpq has it ('host=db dbname=shop user=etl'); "
        "by default that of a server which is there as long as this program",
    )
    options = parser.parse_args(arguments)
    try:
        hours = Files(options.output / "hours")
        with (
            alerts_output(options.postgresql, options.output / "alerts") as alerts,
            flinkray.connect() as client,
        ):
            env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
            env.enable_checkpointing(1000)
            build(env, hours, alerts)
            env.execute("flights with alerts")
            found = alerts.rows()
    except (flinkray.FlinkRayError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(found)} hours were far worse than usual. The worst of them:\n")
    for alert in worst(found, 10):
        print(line_of(alert))
    print(f"\nAll hours: {hours}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
