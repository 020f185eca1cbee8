"""The job that is submitted to the cluster."""

from pyspark.sql import DataFrame, SparkSession


def pipeline(spark: SparkSession) -> DataFrame:
    """One row: the sum of the squares below 1,000, computed in two partitions."""
    return spark.range(1000, numPartitions=2).selectExpr("sum(id * id) AS total")
