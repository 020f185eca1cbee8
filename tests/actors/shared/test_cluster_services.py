"""Who is looked for, and what is said where nobody is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.errors import RpcConnectionError
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.leaders import ManualLeaders, ManualRetrieval


class LostRetrieval(ManualRetrieval):
    outage = "ZooKeeper has not answered since noon"


@on_virtual_time
async def test_missing_leader_error_names_the_failed_leader_retrieval(tmp_path: Path) -> None:
    service = LocalRpcService("JobMaster-1", LocalNetwork())
    services = ClusterServices.create(service, ClusterArguments("test", {}, str(tmp_path)))
    leaders = ManualLeaders(service.executor)
    leaders.manager = LostRetrieval()
    services = replace(services, high_availability=leaders)
    with pytest.raises(RpcConnectionError, match=r"no Dispatcher leads, for 10 s by now$"):
        await services.connect_to_dispatcher()
    with pytest.raises(RpcConnectionError, match=r"no ResourceManager leads.*\(ZooKeeper has not"):
        await services.connect_to_resource_manager()
    await service.network.close()
