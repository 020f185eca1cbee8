"""The flights of `flights`, cleaned by Spark, scored in Python, and summed up by Spark: one job.

    python examples/flights_mixed.py

Spark joins each flight with the weather at its hour; Python tasks give each flight a score, which
would be a model's; Spark takes the mean per carrier.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from flights import WEATHER_COLUMNS, package_data, read_flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of PySpark's own examples use

import flinkray
from flinkray import BatchJob, JobGraph, RestartStrategy

HEADWIND = 0.5
"""Minutes of delay that a mile per hour of wind stands for."""


def cleaned(spark: SparkSession) -> DataFrame:
    """Departed flights: carrier, departure delay in minutes, wind speed in mph (0 if unknown)."""
    folder = package_data()
    weather = spark.read.csv(f"{folder}/weather.csv", WEATHER_COLUMNS, header=True, nullValue="NA")
    observed = weather.select("origin", "time_hour", F.col("wind_speed").alias("wind"))
    flights = read_flights(spark, f"{folder}/flights.csv.zip").where("dep_delay IS NOT NULL")
    joined = flights.join(F.broadcast(observed), ["origin", "time_hour"], "left")
    return joined.select("carrier", "dep_delay", F.coalesce("wind", F.lit(0.0)).alias("wind"))


def scored(flights: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each flight's delay less what the wind explains, in minutes."""
    for batch in flights:
        explained = pc.multiply(batch.column("wind"), HEADWIND)
        score = pc.subtract(pc.cast(batch.column("dep_delay"), pa.float64()), explained)
        yield pa.RecordBatch.from_arrays(
            [batch.column("carrier"), score], names=["carrier", "score"]
        )


def summed_up(spark: SparkSession, flights: DataFrame) -> DataFrame:
    """Per carrier: the number of flights and their mean score."""
    return flights.groupBy("carrier").agg(
        F.count("*").alias("flights"), F.mean("score").alias("score")
    )


def mixed_job(restart_strategy: RestartStrategy | None = None) -> JobGraph:
    """Clean in Spark, score in Python, sum up in Spark; each in two slots."""
    job = BatchJob("flights, mixed", restart_strategy)
    flights = job.spark(cleaned, parallelism=2, memory="1g")
    scores = job.python(scored, inputs=[flights], parallelism=2)
    job.spark(summed_up, inputs=[scores], parallelism=2, memory="1g")
    return job.build()


def main() -> None:
    """Run the job on a cluster of its own, and print what it gives."""
    with flinkray.connect() as client:
        handle = client.submit(mixed_job())
        print(f"job {handle.job_id} is submitted")
        scores = handle.result().to_pandas().sort_values("score", ascending=False)
    print(scores.round(1).to_string(index=False))


if __name__ == "__main__":
    main()
