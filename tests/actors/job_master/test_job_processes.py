"""Processes that JobMasters of one job start for it: each has its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flinkray.actors.coordinators.processes import CoordinatorProcesses
from flinkray.actors.coordinators.runner import CoordinatorListener, CoordinatorRunner
from flinkray.actors.coordinators.stream_coordinator_process import SourcesBeginning
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import ClusterArguments, SlotPoolArguments
from flinkray.actors.job_master.slot_pool_supervision import SlotPoolSupervision
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.ids import ExecutionGraphID, JobMasterId
from flinkray.rpc import (
    FencedRpcEndpoint,
    HeartbeatSettings,
    LocalNetwork,
    LocalRpcService,
)
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.resource_cluster import number
from tests.scheduler.graphs import job

HEARTBEAT = HeartbeatSettings(10.0, 50.0, 2)
GRAPH = job(a=1)
CLUSTER = ClusterArguments("test", {}, "nowhere")


class Owner(FencedRpcEndpoint[JobMasterId]):
    """In a JobMaster's place."""

    def __init__(self, network: LocalNetwork, n: int) -> None:
        service = LocalRpcService(f"JobMaster-{n}", network)
        super().__init__(service, "owner", number(JobMasterId, n))
        self.start()
        master = TestingGateway(JobMasterGateway, self.fencing_token)
        self.master = master.start(service, "jobmaster")

    async def start_slot_pool(self) -> None:
        address = self.master.address
        arguments = SlotPoolArguments(CLUSTER, GRAPH.job_id, self.fencing_token, address)
        pool = SlotPoolSupervision(
            self,
            arguments,
            "the SlotPool",
            HEARTBEAT,
            on_lost=lambda: None,
        )
        await pool.start()

    async def start_coordinator(self, kind: CoordinatorKind) -> None:
        async def noted() -> None:
            """At once."""

        services = ClusterServices.create(self.rpc_service, CLUSTER)
        beginning = SourcesBeginning(self.fencing_token, 0, None, (), ExecutionGraphID.generate())
        kinds = CoordinatorProcesses(self, GRAPH, services, "no:driver", noted, print)
        started: list[CoordinatorID] = []

        class Listener(CoordinatorListener):
            def coordinator_started(self, coordinator: CoordinatorID, address: str) -> None:
                started.append(coordinator)

            def coordinator_lost(self, coordinator: CoordinatorID, cause: str) -> None:
                raise AssertionError(cause)

            def coordinator_stopped(self, coordinator: CoordinatorID) -> None:
                raise AssertionError("it was not stopped")

        runner = CoordinatorRunner(self, kinds, Listener(), HEARTBEAT)
        coordinator = CoordinatorID(kind, None, 0)
        runner.start(coordinator, kinds.source_enumerators.spec(coordinator, beginning, None))
        await eventually(lambda: started, 50, "the coordinator")


STARTS: dict[str, Callable[[Owner], Awaitable[None]]] = {
    "SlotPool": Owner.start_slot_pool,
    "StreamCoordinator": lambda owner: owner.start_coordinator(CoordinatorKind.SOURCE_ENUMERATORS),
}


def processes(network: LocalNetwork, kind: str) -> list[LocalRpcService]:
    """Those of that kind that live."""
    return [s for name, s in network.services.items() if name.startswith(f"{kind}-")]


@pytest.mark.parametrize("kind", STARTS)
@on_virtual_time
async def test_past_job_master_that_starts_a_process_does_not_end_its_successors_process(
    kind: str,
) -> None:
    """When processes were named by the job only, the past JobMaster ended its successor's process
    to start its own."""
    network = LocalNetwork()
    past, successor = Owner(network, 1), Owner(network, 2)
    await STARTS[kind](successor)
    (before,) = processes(network, kind)

    await STARTS[kind](past)

    assert before in processes(network, kind)
    assert len(processes(network, kind)) == 2
