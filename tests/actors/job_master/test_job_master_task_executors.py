"""A JobMaster and the TaskExecutors that register at it: sessions, heartbeats, letting go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from flinkray.actors.gateways import JobMasterGateway, SlotPoolGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import (
    AllocatedSlotReport,
    TaskExecutorHeartbeat,
    TaskExecutorToJobMasterRegistrationSuccess,
)
from flinkray.core.errors import RpcTimeoutError
from flinkray.core.ids import AllocationID, FencingToken, JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.rpc import LocalRpcService, RegistrationFailure, RegistrationRejection
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.slots import AllocatedSlot, SlotOffer, WorkerLocation
from flinkray.scheduler.shared.taking_over import TaskExecutorReport
from flinkray.testing import TestingGateway
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.resource_cluster import ONE_CPU, number

TINY_NODE = ResourceProfile(0.5, 2**30)
"""On which nothing of the job fits: its only TaskExecutor is the double."""
FIRST, SECOND = (number(AllocationID, n) for n in (1, 2))


async def waits(context: Any) -> None:
    await asyncio.Event().wait()


def job_that_needs_three_slots_at_once() -> JobGraph:
    """So that with one or two of them nothing is deployed."""
    builder = PythonJobBuilder("wide")
    sender, receiver = (
        builder.add(waits, name=name, parallelism=3, cpu=1, memory="1g")
        for name in ("sender", "receiver")
    )
    builder.connect(sender, receiver)
    return builder.build()


class Surroundings:
    """The JobMaster of a job that wants three slots, and a double of a TaskExecutor."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster
        self.executor = TestingGateway(TaskExecutorGateway).lenient()
        self.executor.start(LocalRpcService("double", cluster.network), "taskexecutor")
        self.location = WorkerLocation(
            ResourceID("double"), self.executor.address, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
        )

    @classmethod
    async def begin(cls, cluster: MiniCluster) -> Surroundings:
        around = cls(cluster)
        cluster.workers.nodes.clear()
        job = job_that_needs_three_slots_at_once()
        around.job_id = job.job_id
        await (await cluster.dispatcher()).submit_job(job)
        await eventually(lambda: cluster.processes("SlotPool"), 50, "a SlotPool")
        await asyncio.sleep(0.5)
        (name,) = cluster.processes("JobMaster")
        (endpoint,) = cluster.network.services[name].endpoints()
        token = getattr(endpoint, "fencing_token", None)
        assert isinstance(token, FencingToken)
        around.master = await cluster.client.connect(endpoint.address, JobMasterGateway, token)
        return around

    job_id: JobID
    master: JobMasterGateway

    async def register(self, location: WorkerLocation | None = None) -> None:
        self.location = self.location if location is None else location
        report = TaskExecutorReport(self.location, (), ())
        answer = await self.master.register_task_executor(self.job_id, report)
        assert isinstance(answer, TaskExecutorToJobMasterRegistrationSuccess)

    async def offer(self, allocation_id: AllocationID, index: int = 0) -> bool:
        offer = SlotOffer(allocation_id, index, ONE_CPU)
        (name,) = self.cluster.processes("SlotPool")
        token = self.master.fencing_token
        pool = await self.cluster.client.connect(f"{name}/slotpool", SlotPoolGateway, token)
        answer = await pool.offer_slots(self.location, (offer,))
        return answer.accepted == (allocation_id,)

    def answer_heartbeats(self) -> None:
        self.executor.on(TaskExecutorGateway.heartbeat_from_job_master).calling(
            lambda *_: self.master.heartbeat_from_task_executor(
                self.location.resource_id, TaskExecutorHeartbeat(())
            )
        )

    def goodbyes(self) -> list[JobID]:
        calls = self.executor.calls_of(TaskExecutorGateway.disconnect_job_master)
        return [job_id for job_id, *_ in calls]

    async def next_report(self) -> AllocatedSlotReport:
        """What the next heartbeat says of the TaskExecutor's slots."""
        method = TaskExecutorGateway.heartbeat_from_job_master
        _, _, report = await self.executor.wait_for(method, len(self.executor.calls_of(method)) + 1)
        assert isinstance(report, AllocatedSlotReport)
        return report


@on_virtual_time
async def test_repeated_task_executor_registration_does_not_disconnect_the_task_executor(
    tmp_path: Path,
) -> None:
    """JM-02."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        await around.register()
        await around.register()
        await asyncio.sleep(1.0)
        assert around.goodbyes() == []
        assert await around.offer(FIRST)


@on_virtual_time
async def test_new_task_executor_process_replaces_the_old_one_and_offers_slots(
    tmp_path: Path,
) -> None:
    """JM-01."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        await around.register()
        assert await around.offer(FIRST)
        await around.register(replace(around.location, pid=2))
        await around.executor.wait_for(TaskExecutorGateway.disconnect_job_master)
        assert around.goodbyes() == [around.job_id]
        assert await around.offer(SECOND)


@on_virtual_time
async def test_job_master_adopts_only_slots_that_were_offered_to_itself(
    tmp_path: Path,
) -> None:
    """A TaskExecutor that only lost the connection and registers again keeps its slots. Calls to
    the TaskExecutor are repeated until they arrive."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        adopt = TaskExecutorGateway.adopt_slots
        around.executor.on(adopt).raising(RpcTimeoutError("no answer"))

        def report(*allocations: AllocationID) -> TaskExecutorReport:
            slots = (AllocatedSlot(a, 0, ONE_CPU, around.location) for a in allocations)
            return TaskExecutorReport(around.location, tuple(slots), ())

        await around.master.register_task_executor(around.job_id, report(FIRST))
        job_id, token, graph_id, adopted = await around.executor.wait_for(adopt, 2)
        assert (job_id, token) == (around.job_id, around.master.fencing_token)
        assert adopted == ()
        around.executor.on(adopt).returning(None)
        await around.executor.wait_for(adopt, 3)

        assert await around.offer(SECOND)
        await asyncio.sleep(1)  # the SlotPool's news of it, and what would be told again
        before = len(around.executor.calls_of(adopt))
        assert before == 3, "it is not told again"
        await around.master.register_task_executor(around.job_id, report(SECOND))
        assert await around.executor.wait_for(adopt, 4) == (job_id, token, graph_id, (SECOND,))


@on_virtual_time
async def test_task_executor_registration_for_another_job_is_rejected_by_the_job_master(
    tmp_path: Path,
) -> None:
    """TM-17."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        report = TaskExecutorReport(around.location, (), ())
        answer = await around.master.register_task_executor(number(JobID, 9), report)
        assert isinstance(answer, RegistrationRejection)


@on_virtual_time
async def test_registration_of_a_task_executor_with_an_unreachable_address_fails(
    tmp_path: Path,
) -> None:
    """TM-17: the registration may be tried again."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        nowhere = replace(around.location, address="nobody/taskexecutor")
        report = TaskExecutorReport(nowhere, (), ())
        answer = await around.master.register_task_executor(around.job_id, report)
        assert isinstance(answer, RegistrationFailure)


@on_virtual_time
async def test_job_master_reports_a_slot_in_heartbeats_once_it_has_accepted_the_offer(
    tmp_path: Path,
) -> None:
    """JM-08: before the offer is accepted, the report is empty."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        around.answer_heartbeats()
        await around.register()
        assert (await around.next_report()).allocations == ()
        assert await around.offer(FIRST)
        assert (await around.next_report()).allocations == (FIRST,)
        assert await around.offer(SECOND, 1)
        assert (await around.next_report()).allocations == (FIRST, SECOND)


@on_virtual_time
async def test_job_master_disconnects_a_task_executor_only_with_its_last_slot(
    tmp_path: Path,
) -> None:
    """JM-15, SP-09."""
    async with MiniCluster(str(tmp_path), TINY_NODE) as cluster:
        around = await Surroundings.begin(cluster)
        around.answer_heartbeats()
        await around.register()
        assert await around.offer(FIRST, 0)
        assert await around.offer(SECOND, 1)
        await around.master.fail_slot(around.location.resource_id, FIRST, "broken")
        assert (await around.next_report()).allocations == (SECOND,)
        assert around.goodbyes() == []
        await around.master.fail_slot(around.location.resource_id, SECOND, "broken")
        await around.executor.wait_for(TaskExecutorGateway.disconnect_job_master)
        freed = around.executor.calls_of(TaskExecutorGateway.free_slot)
        assert [allocation_id for allocation_id, *_ in freed] == [FIRST, SECOND]
