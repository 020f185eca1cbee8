"""Sources and sinks of the jobs that are killed, and what is seen of them from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from flinkray.datastream import StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors import FileSink, Sink
from flinkray.datastream.connectors.kafka import KafkaOffsetsInitializer
from flinkray.datastream.connectors.postgresql import PostgreSqlSink
from flinkray.testing.postgres_server import PostgresServer
from tests.datastream.numbers import Numbers, Paced
from tests.streaming.kafka.brokers import Broker, any_broker
from tests.streaming.sinks.test_kafka_sink import sink_to
from tests.streaming.sources.test_kafka_source import builder

PARTITIONS = 4


def to_text(value: Any) -> str:
    return json.dumps(value)


def to_values(texts: Iterable[str]) -> list[Any]:
    """What :func:`to_text` has written."""
    values = map(json.loads, texts)
    return [tuple(value) if isinstance(value, list) else value for value in values]


@dataclass(frozen=True)
class Outside:
    """What is there besides the cluster."""

    broker: Broker
    postgres: PostgresServer


@contextmanager
def outside(directory: Path) -> Iterator[Outside]:
    """Servers of its own."""
    with ExitStack() as ends:
        postgres = PostgresServer()
        ends.callback(postgres.close)
        postgres.start()
        yield Outside(ends.enter_context(any_broker(directory)), postgres)


def from_kafka(
    there: Outside, env: StreamExecutionEnvironment, count: int, per_second: float
) -> Numbers:
    """Numbers that are in the topic's partitions already."""
    topic, of_partition = there.broker.topic(PARTITIONS), count // PARTITIONS
    for partition in range(PARTITIONS):
        numbers = range(partition * of_partition, (partition + 1) * of_partition)
        there.broker.produce(topic, map(str, numbers), partition)
    source = builder(there.broker, topic).set_group_id(topic)
    source.set_bounded(KafkaOffsetsInitializer.latest())
    no_watermarks = WatermarkStrategy.no_watermarks()
    texts = env.from_source(source.build(), no_watermarks, "numbers", Types.STRING())
    numbers_of_texts = texts.uid("numbers").map(int, Types.LONG()).uid("numbers of texts")
    pace = Paced(per_second / env.get_parallelism())
    return numbers_of_texts.map(pace, Types.LONG()).uid("pace"), of_partition


Written = Callable[[], list[Any]]
"""What readers see."""


def to_files(there: Outside, folder: Path) -> tuple[Sink[Any], Written]:
    results = folder / "results"

    def written() -> list[Any]:
        files = [f for f in results.rglob("*") if f.is_file() and not f.name.startswith(".")]
        return to_values(line for file in files for line in file.read_text().splitlines())

    return FileSink(results), written


def to_kafka(there: Outside, folder: Path) -> tuple[Sink[Any], Written]:
    topic = there.broker.topic()
    return sink_to(there.broker, topic), lambda: to_values(there.broker.read(topic)[0])


def to_postgresql(there: Outside, folder: Path) -> tuple[Sink[Any], Written]:
    table, conninfo = f"results_{folder.name}", there.postgres.conninfo
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (value text NOT NULL)")

    def written() -> list[Any]:
        with psycopg.connect(conninfo) as connection:
            rows = connection.execute(f"SELECT value FROM {table}").fetchall()
        return to_values(value for (value,) in rows)

    return PostgreSqlSink(conninfo, table, ["value"]), written


SINKS: dict[str, Callable[[Outside, Path], tuple[Sink[Any], Written]]] = {
    "file": to_files,
    "kafka-sink": to_kafka,
    "postgresql": to_postgresql,
}
"""Of texts; PostgreSQL's of rows of one."""
