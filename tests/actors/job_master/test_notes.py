"""What a JobMaster notes is with two others before it is acted on, as far as both are there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flinkray.actors.gateways import SlotPoolGateway, TaskExecutorGateway
from flinkray.actors.gateways.stream_coordinator import StreamCoordinatorGateway
from flinkray.actors.job_master.kept_for_successor import KeptCopy
from flinkray.actors.job_master.left_by_past_job_masters import PastPools
from flinkray.actors.job_master.notes import NotesForSuccessor
from flinkray.actors.job_master.slot_pool_connection import Call
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import RpcConnectionError, RpcTimeoutError
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, ResourceID, WorkerGroupId
from flinkray.rpc import FencedRpcEndpoint, HeartbeatSettings, LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import JobNotes, SourceCoordinatorPlace
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import number

TOKEN = number(JobMasterId, 1)
GRAPH = JobGraph(number(JobID, 1), "a job", ())


class Noting:
    """A JobMaster whose SlotPool answers at once, and whose coordinator answers when it may."""

    def __init__(self, *, has_predecessors: bool = False) -> None:
        self.network = network = LocalNetwork()
        service = LocalRpcService("JobMaster", network)
        self.job_master = FencedRpcEndpoint[JobMasterId](service, "jobmaster", TOKEN)
        self.job_master.start()
        pool = TestingGateway(SlotPoolGateway, TOKEN).on(SlotPoolGateway.note).returning(None)
        pool.start(LocalRpcService("SlotPool", network), "slotpool")
        self.pool = pool
        self.may_answer = asyncio.Event()
        self.refuses: list[Exception] = []
        self.kept: list[JobNotes] = []
        self.coordinator = TestingGateway(StreamCoordinatorGateway)
        self.coordinator.on(StreamCoordinatorGateway.note).calling(self._keep)
        self.coordinator.start(LocalRpcService("StreamCoordinator", network), "streams")
        self.past = PastPools(self.job_master, GRAPH)
        past = self.past if has_predecessors else None
        self.connections = connections = TaskExecutorConnections(
            self.job_master,
            GRAPH.job_id,
            HeartbeatSettings(),
            allocations=lambda _: (),
            on_lost=lambda *_: None,
        )
        self.copy = KeptCopy(self.job_master, GRAPH, connections, lambda: self.notes.in_pieces(()))
        self.notes = NotesForSuccessor(self.job_master, self._tell, past, self.copy)

    def _tell(self, call: Call) -> None:
        async def tell() -> None:
            address = self.pool.address
            await call(await self.job_master.connect(address, SlotPoolGateway, TOKEN))

        self.job_master.create_task(tell(), "tell the SlotPool")

    async def _keep(self, token: JobMasterId, notes: JobNotes) -> None:
        await self.may_answer.wait()
        if self.refuses:
            raise self.refuses.pop(0)
        self.kept.append(notes)

    def of(self, restores: int, *, coordinated: bool = True, attempt: int = 0) -> JobNotes:
        place = SourceCoordinatorPlace(attempt, TOKEN, self.coordinator.address)
        graph = number(ExecutionGraphID, 1)
        return JobNotes(graph, (), b"", restores, place if coordinated else None)

    async def is_acknowledged(self) -> bool:
        """Within a second."""
        waiting = asyncio.ensure_future(self.notes.acknowledged())
        await asyncio.wait([waiting], timeout=1)
        return waiting.done()


@on_virtual_time
async def test_recovery_notes_are_safe_once_slot_pool_and_source_coordinator_have_them() -> None:
    noting = Noting()
    for restores in (1, 2, 3):
        noting.notes.note(noting.of(restores))
    assert not await noting.is_acknowledged()
    noting.may_answer.set()
    assert await noting.is_acknowledged()
    assert noting.kept[-1].restores == 3


@on_virtual_time
async def test_recovery_notes_are_safe_once_a_task_executor_named_in_them_has_them() -> None:
    noting = Noting()
    noting.may_answer.set()
    executor = TestingGateway(TaskExecutorGateway).lenient()
    may_keep = asyncio.Event()

    async def keep(*_: object) -> bool:
        return await may_keep.wait()

    executor.on(TaskExecutorGateway.keep).calling(keep)
    executor.start(LocalRpcService("te", noting.network), "taskexecutor")
    place = WorkerLocation(
        ResourceID("te"), executor.address, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
    )
    noting.connections.start()
    await noting.connections.add(place)
    noting.notes.note(replace(noting.of(1), task_executors=(place,)))
    assert not await noting.is_acknowledged()
    may_keep.set()
    assert await noting.is_acknowledged()


@on_virtual_time
async def test_recovery_notes_are_safe_without_a_source_coordinator_that_is_lost() -> None:
    noting = Noting()
    noting.notes.note(noting.of(1, coordinated=False))
    assert await noting.is_acknowledged()
    noting.network.kill("StreamCoordinator")
    noting.notes.note(noting.of(2))
    assert not await noting.is_acknowledged()  # it may live
    noting.notes.coordinator_is_gone(0)
    assert await noting.is_acknowledged()
    noting.notes.note(noting.of(3))
    assert await noting.is_acknowledged()
    assert noting.kept == []


@pytest.mark.parametrize("error", [RpcTimeoutError("no answer"), RpcConnectionError("was reset")])
@on_virtual_time
async def test_source_coordinator_that_did_not_answer_is_sent_the_recovery_notes_again(
    error: Exception,
) -> None:
    """The coordinator may have earlier notes, and must not hand these over (seed 205982)."""
    noting = Noting()
    noting.may_answer.set()
    noting.refuses.append(error)
    noting.notes.note(noting.of(1))
    assert await noting.is_acknowledged()
    assert [notes.restores for notes in noting.kept] == [1]


@on_virtual_time
async def test_replacement_of_a_lost_source_coordinator_is_sent_the_recovery_notes() -> None:
    noting = Noting()
    noting.notes.coordinator_is_gone(0)
    noting.notes.note(noting.of(1, attempt=1))
    assert not await noting.is_acknowledged()
    noting.may_answer.set()
    assert await noting.is_acknowledged()
    assert [notes.restores for notes in noting.kept] == [1]


@on_virtual_time
async def test_recovery_notes_are_safe_only_after_slot_pools_of_past_masters_have_ended() -> None:
    """A past SlotPool outlived its successor. By its notes an attempt was never deployed, and the
    attempt was deployed a second time (seed 40883)."""
    noting = Noting(has_predecessors=True)
    noting.may_answer.set()
    noting.notes.note(noting.of(1))
    assert not await noting.is_acknowledged()
    noting.past.end()
    assert await noting.is_acknowledged()
