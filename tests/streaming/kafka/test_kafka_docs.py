"""The examples of the page on Kafka run, one after the other, against a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing import wait_until
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.datastream.test_docs import blocks
from tests.streaming.kafka.brokers import Broker


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    with threaded_cluster(str(tmp_path / "cluster")) as cluster:
        yield cluster


def test_examples_of_the_kafka_page_run(
    broker: Broker, cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test replaces topic names and shortens the checkpoint interval."""
    clicks, totals = broker.topic(), broker.topic()
    broker.produce(clicks, ["a", "b"])
    replaced = {
        '"broker:9092"': repr(broker.servers),
        'set_topics("clicks")': f"set_topics({clicks!r})",
        'set_group_id("shop")': f"set_group_id({clicks!r})",
        'set_topic("totals")': f"set_topic({totals!r})",
        '"shop-totals"': repr(totals),
        "enable_checkpointing(10_000)": "enable_checkpointing(100)",
    }
    text = "\n".join(blocks("kafka.md"))
    for example, here in replaced.items():
        assert example in text
        text = text.replace(example, here)
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    monkeypatch.setattr(StreamExecutionEnvironment, "get_execution_environment", lambda: env)
    names: dict[str, Any] = {"__name__": "docs_kafka"}
    exec(compile(text, "docs/kafka.md", "exec", dont_inherit=True), names)
    wait_until(lambda: broker.read(totals)[0] == ["a", "b"], 300, "what was read to be written")
    names["job"].cancel().result(300)
