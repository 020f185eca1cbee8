"""The flights' alerts, from Spark by way of a stream to Parquet and PostgreSQL, under random kills:
what is written is what is written without any.

Made on request: ``FLINKRAY_KILLS=9 FLINKRAY_KILLS_SEED=1 pytest --log-cli-level=INFO
tests/system/test_flights_alerts_kills.py`` runs so many schedules, of one to three kills each.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import flights_alerts
import psycopg
import pyarrow as pa
import pytest
from flights_alerts_check import check, expected_hours, joined_flights
from flights_outputs import TABLE, Files, Table

from flinkray.client import ClusterClient
from flinkray.core.errors import RpcTimeoutError
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.postgres_server import PostgresServer, postgres_server, why_not
from tests.system.observer import assert_leaves_no_traces, kill
from tests.system.spark_and_streams import END, own_cluster, victims

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
CLUSTER_ID = "flights-alerts"
LONGEST = 25.0
"""Seconds between two kills, at most: the job takes about 30 without any."""
PAUSE = 0.05
"""Seconds for 2048 flights."""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.skipif(KILLS == 0, reason="FLINKRAY_KILLS says how many"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can"),
]

log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def cluster(
    ray_cluster: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterClient]:
    with own_cluster(CLUSTER_ID, tmp_path_factory.mktemp("storage")) as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def paced(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(PAUSE)
    return batch


def in_order(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


@pytest.mark.timeout(900 + 300 * KILLS)
def test_flights_job_writes_the_same_rows_with_and_without_random_kills(
    cluster: ClusterClient, server: PostgresServer, tmp_path: Path
) -> None:
    random = Random(SEED)
    without_faults: tuple[Any, ...] | None = None
    killed: list[str] = []
    for schedule in range(KILLS + 1):
        with psycopg.connect(server.conninfo) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        hours, alerts = Files(tmp_path / f"{schedule}"), Table(server.conninfo)
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.set_parallelism(2).enable_checkpointing(300)
        flights_alerts.build(env, hours, alerts, paced)
        job = cluster.job(env.execute_async(f"schedule {schedule}").get_job_id())
        mine = []
        for _ in range(random.randint(1, 3) if schedule else 0):
            with suppress(RpcTimeoutError):
                job.result(timeout=random.uniform(0.0, LONGEST))
                break
            there = victims(CLUSTER_ID, job.job_id)
            if there:
                kind = random.choice(sorted(there))
                with suppress(ProcessLookupError):
                    kill(random.choice(there[kind]))
                    mine.append(kind)
        job.result(timeout=END)
        found = in_order(hours.rows()), in_order(alerts.rows())
        if without_faults is None:
            check(hours.rows(), alerts.rows(), expected_hours(joined_flights()))
            without_faults = found
        assert found[1] == without_faults[1], mine
        assert found[0] == without_faults[0], mine
        killed += mine
        log.info("schedule %d is right after kills of %s; %d in all", schedule, mine, len(killed))
        assert_leaves_no_traces(job.job_id)
