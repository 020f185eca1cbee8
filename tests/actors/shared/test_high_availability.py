"""The configuration chooses the services, and what is missing is told before anything starts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from flinkray.actors.shared.high_availability import (
    check_reachable,
    has_elections,
    high_availability_services,
)
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.ha import StandaloneHaServices
from flinkray.ha.zookeeper import ZooKeeperError, ZooKeeperHaServices
from flinkray.rpc import LocalRpcService
from tests.ray_client_server import free_port

NOBODY = f"127.0.0.1:{free_port()}"
ON_ZOOKEEPER = ReadableConfig(
    {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": NOBODY,
        "high-availability.zookeeper.client.connection-timeout": "100 ms",
        "high-availability.cluster-id": "ours",
    }
)


async def test_default_configuration_gives_standalone_services_without_elections(
    tmp_path: Path,
) -> None:
    services = high_availability_services(LocalRpcService(), ReadableConfig(), str(tmp_path))
    assert isinstance(services, StandaloneHaServices)
    assert not has_elections(ReadableConfig())
    await check_reachable(ReadableConfig())


async def test_zookeeper_services_are_created_before_zookeeper_is_reachable(tmp_path: Path) -> None:
    services = high_availability_services(LocalRpcService(), ON_ZOOKEEPER, str(tmp_path))
    assert isinstance(services, ZooKeeperHaServices)
    assert services._client.root == "/flinkray/ours"
    await asyncio.wait_for(services.close(), 10)


async def test_unreachable_quorum_raises_zookeeper_error(tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperError, match=f"{NOBODY} within 0.1 s.*zookeeper.quorum"):
        await check_reachable(ON_ZOOKEEPER)


async def test_missing_zookeeper_client_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'flinkray\[zookeeper\]'"):
        await check_reachable(ON_ZOOKEEPER)
    with pytest.raises(ConfigurationError, match=r"high-availability\.type is zookeeper"):
        high_availability_services(LocalRpcService(), ON_ZOOKEEPER, None)
