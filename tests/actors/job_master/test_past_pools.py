"""What a JobMaster learns from the SlotPools of those before it, and which of them end."""

from __future__ import annotations

import pytest

from flinkray.actors.gateways import SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.slot_pool import HandedOver
from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.job_master.left_by_past_job_masters import PastPools
from flinkray.core.errors import RpcTimeoutError, SlotAllocationError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    WorkerGroupId,
)
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import NOT_DEPLOYED, FinishedTask, JobNotes
from flinkray.scheduler.shared.tasks import TaskExecutionState, pack_numbers
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import ONE_CPU, number

JOB = number(JobID, 1)


def notes(*attempts: int, graph: int = 1, restores: int = 0, takeovers: int = 0) -> JobNotes:
    graph_id = number(ExecutionGraphID, graph)
    numbers = pack_numbers(list(attempts))
    return JobNotes(graph_id, (1,), numbers, restores, takeovers=takeovers)


def finished(subtask: int) -> FinishedTask:
    """In a slot of the same number."""
    vertex = ExecutionVertexID(number(JobVertexID, 1), subtask)
    attempt_id = ExecutionAttemptID(number(ExecutionGraphID, 1), vertex, 0)
    name = f"te-{subtask}"
    place = WorkerLocation(ResourceID(name), name, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0)
    slot = AllocatedSlot(number(AllocationID, subtask), 0, ONE_CPU, place)
    return FinishedTask(TaskExecutionState(JOB, attempt_id, ExecutionState.FINISHED), slot)


class Successor:
    """A JobMaster, and the pools that others have left."""

    def __init__(self) -> None:
        self.network = network = LocalNetwork()
        service = LocalRpcService("JobMaster", network)
        job_master = FencedRpcEndpoint[JobMasterId](service, "jobmaster", number(JobMasterId, 9))
        job_master.start()
        self.past = PastPools(job_master, JobGraph(JOB, "a job", ()))

    def finds(self, n: int, left: HandedOver | Exception, *tasks: FinishedTask) -> str:
        """The pool of the n-th JobMaster; the name of its process."""
        token = number(JobMasterId, n)
        pool = TestingGateway(SlotPoolGateway, token)
        handing_over = pool.on(SlotPoolGateway.hand_over)
        if isinstance(left, Exception):
            handing_over.raising(left)
        else:
            handing_over.returning(left)
        pieces = dict(enumerate(KeptPiece(finished=(task,)) for task in tasks))
        pool.on(SlotPoolGateway.hand_over_piece).calling(lambda _, number_: pieces.get(number_))
        name = slot_pool_process(JOB, token)
        pool.start(LocalRpcService(name, self.network), "slotpool")
        return name


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (notes(1, 1), notes(1, 2)),
        (notes(1, 1), notes(1, 2 | NOT_DEPLOYED)),
        (notes(1, 2 | NOT_DEPLOYED), notes(1, 2)),
        (notes(3, 3), notes(1, 1, restores=1)),
        (notes(1, 1, restores=2), notes(1, 1, takeovers=1)),
    ],
)
@on_virtual_time
async def test_job_master_uses_the_latest_recovery_notes_of_several_past_slot_pools(
    earlier: JobNotes, later: JobNotes, is_first: bool
) -> None:
    """There are several SlotPools when a JobMaster died before it could end the useless ones."""
    successor = Successor()
    successor.finds(1, HandedOver((), (), later if is_first else earlier))
    successor.finds(2, HandedOver((), (), earlier if is_first else later))
    assert (await successor.past.ask()).notes == later


@on_virtual_time
async def test_slots_and_finished_tasks_of_all_past_slot_pools_are_merged() -> None:
    """Together with the TaskExecutors that have the results."""
    successor = Successor()
    allocations = tuple(number(AllocationID, n) for n in range(4))
    here = finished(7).slot.location
    successor.finds(1, HandedOver(allocations[:3], (here,), notes(1)), finished(1), finished(2))
    successor.finds(2, HandedOver(allocations[2:], (here,), notes(2)), finished(3))
    left = await successor.past.ask()
    assert left.allocations == allocations
    assert sorted(task.slot.allocation_id for task in left.finished) == [
        number(AllocationID, n) for n in (1, 2, 3)
    ]
    assert sorted(place.resource_id for place in left.task_executors) == [
        "te-1", "te-2", "te-3", "te-7"
    ]  # fmt: skip


@on_virtual_time
async def test_recovery_notes_of_two_execution_graphs_are_dropped_but_their_slots_are_kept() -> (
    None
):
    """It is unknown which execution graph is the later one."""
    successor = Successor()
    one, other = (number(AllocationID, n) for n in (1, 2))
    successor.finds(1, HandedOver((one,), (), notes(1)), finished(1))
    successor.finds(2, HandedOver((other,), (), notes(1, graph=2)))
    left = await successor.past.ask()
    assert (left.notes, left.finished, left.allocations) == (None, (), (one, other))


@on_virtual_time
async def test_past_slot_pools_end_after_the_take_over_unless_their_job_master_lives() -> None:
    """Notes of a SlotPool that has not answered must not come up later."""
    successor = Successor()
    asked = successor.finds(1, HandedOver((), (), notes(1)))
    silent = successor.finds(2, RpcTimeoutError("no answer"))
    led = successor.finds(3, SlotAllocationError("its JobMaster lives"))
    await successor.past.ask()
    assert {asked, silent, led} <= successor.network.services.keys()
    assert not successor.past.have_ended
    successor.past.end()
    await successor.past.ended()
    assert successor.past.have_ended
    assert {asked, silent, led} & successor.network.services.keys() == {led}
