"""Brokers of the tests of Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.streaming.kafka.brokers import Broker, MockBroker, any_broker, why_not


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if why_not():
        pytest.skip(why_not())
    with any_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def mock_broker() -> Broker:
    return MockBroker()


@pytest.fixture(params=["broker", "mock_broker"])
def each_broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found
