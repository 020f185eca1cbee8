"""Reviews from Kafka, scored by a model: the alerts are those of a plain loop, each once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from reviews_scored import build

from flinkray.datastream import Configuration, StreamExecutionEnvironment
from tests.examples.reviews import PARTITIONS, by_partition, differences, expected_alerts, reviews
from tests.streaming.kafka.brokers import Broker, any_broker, why_not

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with any_broker(tmp_path) as broker:
        yield broker


def test_alerts_are_those_of_a_loop_over_the_reviews(broker: Broker) -> None:
    some = reviews(2_000)
    topic, alerts = broker.topic(PARTITIONS), broker.topic()
    for partition, messages in enumerate(by_partition(some)):
        broker.produce(topic, messages, partition)
    env = StreamExecutionEnvironment.get_execution_environment()
    settings = {"execution.checkpointing.interval": "200 ms"}
    env.configure(Configuration.from_dict(settings)).set_parallelism(2)
    build(env, broker.servers, topic, alerts, is_bounded=True)
    env.execute()
    expected = expected_alerts(some)
    assert 100 < len(expected) < 1_900
    assert differences(broker.read(alerts)[0], expected) == ""
