"""What a JobMaster has a TaskExecutor keep for the next one, and what the next one finds."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.actors.gateways.stream_coordinator import KeptPart, KeptPiece
from flinkray.actors.job_master.kept_copy import KeptCopy
from flinkray.actors.job_master.left_by_past_job_masters import PastCopies
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.kept_notes import KeptNotes
from flinkray.core.errors import RpcTimeoutError
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, ResourceID, WorkerGroupId
from flinkray.rpc import FencedRpcEndpoint, HeartbeatSettings, LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.taking_over import JobNotes, TaskExecutorReport
from flinkray.scheduler.shared.tasks import pack_numbers
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import number

JOB, TOKEN = number(JobID, 1), number(JobMasterId, 1)
GRAPH = JobGraph(JOB, "a job", ())
PART = KeptPart(None, 0, 3)


def notes(*attempts: int, graph: int = 1, restores: int = 0) -> JobNotes:
    numbers = pack_numbers(list(attempts))
    return JobNotes(number(ExecutionGraphID, graph), (1,), numbers, restores)


class Holder:
    """A TaskExecutor that keeps what it is told, as soon as it may."""

    def __init__(self, network: LocalNetwork, name: str) -> None:
        self.kept: list[tuple[int, KeptPiece]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.may_forget = asyncio.Event()
        self.has_slots = True
        self.fails: list[Exception] = []
        self.has_forgotten = False
        self.left: tuple[KeptPiece, ...] = ()
        self.gateway = TestingGateway(TaskExecutorGateway).lenient()
        self.gateway.on(TaskExecutorGateway.keep).calling(self._keep)
        self.gateway.on(TaskExecutorGateway.keep_no_more).calling(self._forget)
        self.gateway.on(TaskExecutorGateway.hand_over).calling(
            lambda _, __, number_: dict(enumerate(self.left)).get(number_)
        )
        self.gateway.start(LocalRpcService(name, network), "taskexecutor")
        self.location = WorkerLocation(
            ResourceID(name), f"{name}/taskexecutor", "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
        )

    async def _keep(self, _: JobID, __: JobMasterId, copy: int, piece: KeptPiece) -> bool:
        await self.may_answer.wait()
        if self.fails:
            raise self.fails.pop(0)
        if self.has_slots:
            self.kept.append((copy, piece))
        return self.has_slots

    async def _forget(self, _: JobID, __: JobMasterId) -> None:
        await self.may_forget.wait()
        self.has_forgotten = True

    @property
    def resource_id(self) -> ResourceID:
        return self.location.resource_id

    def report(self, left: JobNotes | None = None, *pieces: KeptPiece) -> TaskExecutorReport:
        self.left = pieces
        return TaskExecutorReport(self.location, (), (), notes=left)


class Keeping:
    """A JobMaster, and two TaskExecutors that are registered there."""

    def __init__(self) -> None:
        self.network = network = LocalNetwork()
        service = LocalRpcService("JobMaster", network)
        self.master = FencedRpcEndpoint[JobMasterId](service, "jobmaster", TOKEN)
        self.master.start()
        self.connections = TaskExecutorConnections(
            self.master,
            JOB,
            HeartbeatSettings(),
            allocations=lambda _: (),
            on_lost=lambda resource_id, _: self.copy.lost(resource_id),
        )
        self.connections.start()
        self.first, self.second = Holder(network, "te-1"), Holder(network, "te-2")
        self.all = (self.first, self.second)
        self.notes = notes(1)
        self.changes = 0
        self.book = KeptNotes()
        self.book.add(KeptPiece(part=PART))
        self.copy = KeptCopy(self.master, GRAPH, self.connections, self.book, on_kept=lambda: None)
        self.past = PastCopies(self.master, GRAPH, self.connections)

    async def begin(self, *with_notes: Holder) -> None:
        """All register, these with notes of an earlier JobMaster."""
        for holder in self.all:
            await self.connections.add(holder.location)
            self.copy.reported(holder.report(notes(1) if holder in with_notes else None))

    def note(self, restores: int, *at: Holder) -> int:
        places = tuple(holder.location for holder in at)
        self.notes = JobNotes(
            number(ExecutionGraphID, 1), (1,), b"", restores, task_executors=places
        )
        return self.add(KeptPiece(notes=self.notes))

    def add(self, piece: KeptPiece) -> int:
        self.changes += 1
        self.book.add(piece)
        self.copy.add(self.changes, piece)
        return self.changes

    async def has(self, change: int) -> bool:
        """Within a second."""
        await asyncio.sleep(1)
        return self.copy.has(change)


@on_virtual_time
async def test_recovery_data_change_is_durable_once_the_backup_has_all_data_and_the_notes() -> None:
    keeping = Keeping()
    await keeping.begin()
    keeping.first.may_answer.clear()
    change = keeping.note(1, *keeping.all)
    assert not await keeping.has(change)
    keeping.first.may_answer.set()
    assert await keeping.has(change)
    pieces = [piece for _, piece in keeping.first.kept]
    assert pieces == [KeptPiece(part=PART), KeptPiece(notes=keeping.notes)]
    later = keeping.add(KeptPiece(part=PART))
    assert not keeping.copy.has(later)
    assert await keeping.has(later)
    assert [copy for copy, _ in keeping.first.kept] == [1, 1, 1]
    assert keeping.second.kept == []


@on_virtual_time
async def test_recovery_data_change_needs_no_backup_to_be_durable_if_no_executor_runs() -> None:
    keeping = Keeping()
    await keeping.begin()
    assert keeping.copy.has(keeping.note(1))
    assert keeping.first.kept == []


@on_virtual_time
async def test_next_backup_task_executor_gets_all_recovery_data_when_the_first_one_is_lost() -> (
    None
):
    """Even if the lost keeper was only silent and still lives."""
    keeping = Keeping()
    await keeping.begin()
    assert await keeping.has(keeping.note(1, *keeping.all))
    keeping.first.may_answer.clear()
    change = keeping.add(KeptPiece(part=PART))
    keeping.second.may_answer.clear()
    keeping.connections.lose(keeping.first.resource_id, "it is silent")
    assert not await keeping.has(change)
    keeping.second.may_answer.set()
    assert await keeping.has(change)
    assert [copy for copy, _ in keeping.second.kept] == [2, 2]


@on_virtual_time
async def test_recovery_data_change_is_durable_only_once_other_old_backups_are_deleted() -> None:
    """Otherwise a JobMaster could find a past copy when the keeper has died."""
    keeping = Keeping()
    await keeping.begin(keeping.first, keeping.second)
    change = keeping.note(1, keeping.first)
    assert not await keeping.has(change)
    assert len(keeping.first.kept) == 2
    assert not keeping.first.has_forgotten
    keeping.second.may_forget.set()
    assert await keeping.has(change)
    assert keeping.second.has_forgotten


@on_virtual_time
async def test_old_backups_stay_until_the_new_backup_task_executor_has_all_recovery_data() -> None:
    keeping = Keeping()
    await keeping.begin(keeping.second)
    keeping.second.may_forget.set()
    keeping.first.may_answer.clear()
    change = keeping.note(1, keeping.first)
    assert not await keeping.has(change)
    assert not keeping.second.has_forgotten
    keeping.first.may_answer.set()
    assert await keeping.has(change)
    assert keeping.second.has_forgotten


@on_virtual_time
async def test_recovery_data_change_is_durable_although_a_lost_executor_has_an_old_backup() -> None:
    keeping = Keeping()
    await keeping.begin(keeping.second)
    change = keeping.note(1, keeping.first)
    assert not await keeping.has(change)
    keeping.connections.lose(keeping.second.resource_id, "it died")
    assert await keeping.has(change)


@on_virtual_time
async def test_backup_task_executor_that_did_not_answer_is_sent_all_recovery_data_anew() -> None:
    """The keeper may have taken the pieces, and pieces that were sent later may arrive before
    them."""
    keeping = Keeping()
    await keeping.begin()
    keeping.first.fails.append(RpcTimeoutError("no answer"))
    assert await keeping.has(keeping.note(1, *keeping.all))
    assert [copy for copy, _ in keeping.first.kept] == [2, 2]


@on_virtual_time
async def test_backup_task_executor_that_registers_again_is_sent_all_recovery_data_again() -> None:
    """The keeper may have forgotten its copy."""
    keeping = Keeping()
    await keeping.begin()
    change = keeping.note(1, *keeping.all)
    assert await keeping.has(change)
    keeping.copy.reported(keeping.first.report())
    assert not keeping.copy.has(change)
    assert await keeping.has(change)
    assert [copy for copy, _ in keeping.first.kept] == [1, 1, 2, 2]


@on_virtual_time
async def test_backup_task_executor_without_slots_of_the_job_is_replaced_by_another() -> None:
    keeping = Keeping()
    await keeping.begin()
    keeping.first.has_slots = False
    assert await keeping.has(keeping.note(1, *keeping.all))
    assert len(keeping.second.kept) == 2


# --- what the next JobMaster finds


@on_virtual_time
async def test_next_job_master_restores_the_latest_of_several_backups_of_recovery_notes() -> None:
    """There are several copies when a JobMaster died before other TaskExecutors had forgotten
    theirs."""
    keeping = Keeping()
    await keeping.begin()
    later, earlier = KeptPart(None, 0, 4), KeptPart(None, 0, 3)
    reports = [
        keeping.first.report(notes(2), KeptPiece(part=later)),
        keeping.second.report(notes(1), KeptPiece(part=earlier)),
    ]
    left = await keeping.past.left(reports)
    assert left is not None
    assert left.notes == notes(2)
    assert left.parts == (later,)


@on_virtual_time
async def test_backups_of_recovery_notes_of_two_execution_graphs_are_not_restored() -> None:
    """It is unknown which execution graph is the later one."""
    keeping = Keeping()
    await keeping.begin()
    reports = [keeping.first.report(notes(1)), keeping.second.report(notes(1, graph=2))]
    assert await keeping.past.left(reports) is None


@on_virtual_time
async def test_no_backup_of_recovery_notes_is_restored_when_the_latest_cannot_be_read() -> None:
    keeping = Keeping()
    await keeping.begin()
    reports = [keeping.first.report(notes(2)), keeping.second.report(notes(1))]
    keeping.network.kill("te-1")
    assert await keeping.past.left(reports) is None
