"""Whether a JobMaster that takes over knows of all TaskExecutors what they have."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.actors.job_master.taking_over import Reconciliation
from flinkray.core.ids import JobID, JobMasterId, ResourceID, WorkerGroupId
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.scheduler.slots.slot_ledger import SlotLedger
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import number

PATIENCE, LONGEST = 2.0, 5.0
NAME = ResourceID("te")
PLACES = {NAME: "te/taskexecutor"}


class Surroundings:
    """A JobMaster that asks one TaskExecutor."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        service = LocalRpcService("JobMaster", self.network)
        token = number(JobMasterId, 1)
        self.master = FencedRpcEndpoint[JobMasterId](service, "jobmaster", token)
        self.master.start()
        self.found = Reconciliation(self.master, number(JobID, 1), SlotLedger())
        self.executor = TestingGateway(TaskExecutorGateway).lenient()
        self.executor.start(LocalRpcService(NAME, self.network), "taskexecutor")

    async def ask(self) -> bool:
        """Whether all have answered."""
        await self.found.all_reported(PLACES, PATIENCE, LONGEST)
        return self.found.all_have_answered

    def report(self) -> None:
        location = WorkerLocation(NAME, PLACES[NAME], "n", "127.0.0.1", 1, WorkerGroupId("g"), 0)
        self.found.reported(TaskExecutorReport(location, (), ()))


@on_virtual_time
async def test_task_executor_that_does_not_know_the_job_counts_as_answered_at_a_take_over() -> None:
    around = Surroundings()
    around.executor.on(TaskExecutorGateway.take_over_job).returning(False)
    assert await around.ask()


@on_virtual_time
async def test_report_of_a_task_executor_counts_at_a_take_over_until_the_executor_is_lost() -> None:
    """A lost TaskExecutor may live, but its report is outdated."""
    around = Surroundings()
    around.report()
    assert await around.ask()
    around.found.lost(NAME)
    assert not around.found.all_have_answered


@on_virtual_time
async def test_dead_task_executor_is_not_awaited_at_a_take_over() -> None:
    around = Surroundings()
    around.executor.on(TaskExecutorGateway.take_over_job).returning(True)
    asking = asyncio.ensure_future(around.ask())
    await asyncio.sleep(0.1)
    around.network.kill(NAME)
    assert await asking


@on_virtual_time
async def test_silent_task_executor_counts_as_unanswered_at_a_take_over() -> None:
    around = Surroundings()
    never = asyncio.get_running_loop().create_future()
    around.executor.on(TaskExecutorGateway.take_over_job).calling(lambda *_: never)
    assert not await around.ask()


@on_virtual_time
async def test_task_executor_that_sent_no_report_counts_as_unanswered_at_a_take_over() -> None:
    around = Surroundings()
    around.executor.on(TaskExecutorGateway.take_over_job).returning(True)
    assert not await around.ask()
