"""Reviews scored by replicas of a model, under random kills of replicas, tasks and masters, while
the number of replicas changes: the alerts are those of a run without kills.

Made on request: ``FLINKRAY_KILLS=100 FLINKRAY_KILLS_SEED=1 pytest --log-cli-level=INFO
tests/system/test_reviews_scored_kills.py`` runs so many schedules, of one to three kills each.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from reviews_scored import MODEL, Sentiment, build

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import settings
from tests.examples.reviews import PARTITIONS, by_partition, differences, expected_alerts, reviews
from tests.streaming.kafka.brokers import Broker, any_broker, why_not
from tests.system.kills.victims import KINDS, Moments, Victims
from tests.system.observer import traces
from tests.system.test_exactly_once_kills import CONFIGURATION

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
CLUSTER_ID = "reviews"
REVIEWS = 6_000
PAUSE = 0.05
"""Seconds that the model takes longer for a batch, so that a job lasts for some seconds."""
END = 300.0

pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.kill,
    pytest.mark.skipif(KILLS == 0, reason="FLINKRAY_KILLS says how many schedules"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can"),
]

log = logging.getLogger(__name__)


class SlowSentiment(Sentiment):
    def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(PAUSE)
        return super().infer(batch)


@pytest.fixture(scope="module")
def cluster(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with any_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.mark.timeout(900 + 300 * KILLS)
def test_alerts_are_the_same_with_and_without_random_kills(
    cluster: ClusterClient, broker: Broker, tmp_path: Path
) -> None:
    random = Random(SEED)
    some = reviews(REVIEWS)
    expected = expected_alerts(some)
    topic = broker.topic(PARTITIONS)
    for partition, messages in enumerate(by_partition(some)):
        broker.produce(topic, messages, partition)
    for schedule in range(KILLS + 1):
        alerts = broker.topic()
        folder = tmp_path / str(schedule)
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.configure(Configuration.from_dict(settings(folder, "300 ms"))).set_parallelism(2)
        build(
            env, broker.servers, topic, alerts, is_bounded=True, replicas=(1, 3), cpu=0.25,
            memory="200m", model=SlowSentiment(MODEL.read_bytes()),
        )  # fmt: skip
        job = cluster.job(env.execute_async(f"schedule {schedule}").get_job_id())
        kills = random.randint(1, 3) if schedule else 0
        namespace = f"flinkray-{CLUSTER_ID}"
        victims = Victims(Random(random.random()), namespace, list(KINDS), kills, 0)
        is_over = threading.Event()
        moments = Moments(folder, is_over)
        with ThreadPoolExecutor(1) as threads:
            ended = threads.submit(job.result, timeout=END + 60)
            ended.add_done_callback(lambda _, it=is_over: it.set())  # type: ignore[misc]
            while not (victims.is_over or is_over.wait(victims.pause())):
                victims.hit_next(moments)
            ended.result()
        difference = differences(broker.read(alerts)[0], expected)
        log.info("schedule %d: kills of %s: %s", schedule, victims.killed, difference or "right")
        assert not difference
        wait_until(lambda: not traces(job.job_id), END, "everything of the job to be gone")  # noqa: B023
