"""Slots of a large cluster: how long the decisions take, and how that grows with the cluster.

    python benchmarks/slots.py                 # 1,000 and 10,000 TaskExecutors with 10 slots each
    python benchmarks/slots.py --sizes 100 1000

Pure decisions, no processes: the SlotManager of a ResourceManager, the SlotPool of one job that
wants every slot, and the ExecutionSlotAllocator of its JobMaster, with all messages between them
handed over by function calls.  Growth is what the largest size takes per slot, divided by what the
smallest takes.

Exit status 1: a goal was missed.  The goals are of 10,000 TaskExecutors.
"""

from __future__ import annotations

import argparse
import gc
import resource
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from time import process_time

from _results import Figure, Results, parse

from flinkray.core.garbage_collection import spare_what_is_there
from flinkray.core.ids import (
    AllocationID,
    ExecutionVertexID,
    JobID,
    JobVertexID,
    ResourceID,
    SlotID,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.resource_tracker import SlotManagerSettings
from flinkray.scheduler.resources.slot_manager import SlotManager
from flinkray.scheduler.resources.slot_manager_actions import (
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
)
from flinkray.scheduler.shared.slots import SlotOffer, SlotReport, SlotStatus, WorkerLocation
from flinkray.scheduler.slots.execution_slot_allocator import (
    ExecutionSlotAllocator,
    LogicalSlotAllocated,
)
from flinkray.scheduler.slots.slot_pool import DeclarativeSlotPool, DeclareRequirements
from flinkray.scheduler.slots.slot_requests import SlotAllocated, SlotRequests, SlotsLost
from flinkray.scheduler.slots.slot_sharing import SharingVertex, slot_sharing_groups

GOAL_SIZE = 10_000
MOST_SECONDS = 10.0
"""CPU, until the job of 100,000 slots has all of them."""
MOST_GROWTH = 2.0
"""Per slot, of all steps together."""
MOST_MEMORY = 500.0
"""MB."""

SLOTS = 10
"""Of each TaskExecutor."""
SLOT = ResourceProfile(1.0, 2**30)
JOB = JobID((1).to_bytes(JobID.SIZE, "big"))
VERTICES = [JobVertexID(n.to_bytes(JobVertexID.SIZE, "big")) for n in (1, 2)]


class Cluster:
    """A job of two vertices, whose subtasks share slots, on TaskExecutors that answer at once."""

    def __init__(self, task_executors: int) -> None:
        self.number = task_executors
        self.slots = task_executors * SLOTS
        ids = count(1)
        self.manager = SlotManager(
            SlotManagerSettings(
                shared_worker_profile=SLOT.times(SLOTS),
                shared_worker_slots=SLOTS,
                new_allocation_id=lambda: AllocationID(next(ids).to_bytes(16, "big")),
            )
        )
        self.pool = DeclarativeSlotPool(JOB, "JobMaster/jobmaster")
        groups = slot_sharing_groups(
            [SharingVertex(vertex, self.slots, "default", SLOT) for vertex in VERTICES]
        )
        self.allocator = ExecutionSlotAllocator(groups)
        self.locations: dict[ResourceID, WorkerLocation] = {}
        self.held: defaultdict[ResourceID, dict[int, AllocationID]] = defaultdict(dict)

    # one step each, timed

    def ask(self) -> None:
        """The job asks for the slots of all its subtasks; the ResourceManager for workers."""
        subtasks = [ExecutionVertexID(v, i) for v in VERTICES for i in range(self.slots)]
        actions = self.allocator.allocate(subtasks)
        (requests,) = (action for action in actions if isinstance(action, SlotRequests))
        (declare,) = self.pool.request_slots(requests, 0.0)
        assert isinstance(declare, DeclareRequirements)
        self.starts = self.manager.set_requirements(declare.requirements, 0.0)

    def register(self) -> None:
        """All workers start, then each registers; all slots are requested from them."""
        self.requests: list[RequestSlot] = []
        groups = []
        for number, start in enumerate(self.starts):
            assert isinstance(start, StartWorkerGroup)
            group = WorkerGroupId(f"g{number}")
            started = self.manager.worker_group_started(start.request_number, group, 1.0)
            assert any(isinstance(action, StartTaskExecutor) for action in started)
            groups.append(group)
        for number, group in enumerate(groups):
            name = ResourceID(f"te{number}")
            location = WorkerLocation(name, f"{name}/te", f"n{number % 1000}", "", 1, group, 0)
            self.locations[name] = location
            report = SlotReport(tuple(SlotStatus(SlotID(name, i), SLOT) for i in range(SLOTS)))
            profile = SLOT.times(SLOTS)
            self.note(self.manager.register_task_executor(location, profile, report, 2.0))

    def note(self, actions: Iterable[SlotManagerAction]) -> None:
        self.requests += [action for action in actions if isinstance(action, RequestSlot)]

    def serve(self) -> None:
        """TaskExecutors allocate and offer; the pool accepts; subtasks get their shares."""
        offers: defaultdict[ResourceID, list[SlotOffer]] = defaultdict(list)
        for request in self.requests:
            self.manager.slot_request_succeeded(request.slot_id, request.allocation_id, 3.0)
            offers[request.resource_id].append(
                SlotOffer(request.allocation_id, request.slot_id.slot_index, SLOT)
            )
            self.held[request.resource_id][request.slot_id.slot_index] = request.allocation_id
        served = 0
        for name, offered in offers.items():
            self.pool.register_task_executor(self.locations[name], 3.0)
            answer, actions = self.pool.offer_slots(name, tuple(offered), 3.0)
            assert len(answer.accepted) == len(offered)
            events = [action for action in actions if isinstance(action, SlotAllocated)]
            shares = self.allocator.slot_events(events)
            served += sum(isinstance(share, LogicalSlotAllocated) for share in shares)
        assert served == 2 * self.slots, f"{served} of {2 * self.slots} subtasks have a slot"

    def heartbeats(self) -> None:
        """Every TaskExecutor reports its slots once."""
        for name, held in self.held.items():
            report = SlotReport(
                tuple(SlotStatus(SlotID(name, i), SLOT, JOB, held[i]) for i in range(SLOTS))
            )
            self.manager.report_slot_status(name, report, 10.0)

    def lose_a_third(self) -> None:
        """A third of the TaskExecutors die, and the job asks for other slots."""
        lost = 0
        for name in list(self.locations)[: self.number // 3]:
            self.manager.task_executor_lost(name, "its node died", 20.0)
            actions = self.pool.release_task_executor(name, "its node died", 20.0)
            for action in actions:
                if isinstance(action, SlotsLost):
                    lost += len(self.allocator.slot_events([action]))
                    break
        missing = self.slots - len(self.pool.slots)
        assert missing == self.number // 3 * SLOTS

    STEPS: tuple[tuple[str, Callable[[Cluster], None]], ...] = (
        ("ask for all slots", ask),
        ("register the workers", register),
        ("allocate, offer, accept", serve),
        ("a heartbeat of each", heartbeats),
        ("lose a third", lose_a_third),
    )


UNTIL_SERVED = [name for name, _ in Cluster.STEPS[:3]]


def measure(size: int) -> dict[str, float]:
    cluster = Cluster(size)
    times = {}
    for name, step in Cluster.STEPS:
        gc.collect()
        began = process_time()
        step(cluster)
        times[name] = process_time() - began
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, GOAL_SIZE])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parse(parser)
    results = Results(arguments)
    spare_what_is_there()  # as the processes of a ResourceManager and a JobMaster do
    best: dict[int, dict[str, float]] = {}
    for _ in range(arguments.rounds):
        for size in arguments.sizes:
            for name, seconds in measure(size).items():
                known = best.setdefault(size, {})
                known[name] = min(seconds, known.get(name, seconds))
    small, large = arguments.sizes[0], arguments.sizes[-1]
    header = "".join(f"{f'{size:,} x {SLOTS}':>16}" for size in arguments.sizes)
    title = f"CPU seconds, best of {arguments.rounds}"
    print(f"{title:28}{header}{'growth per slot':>18}")
    for name, _ in Cluster.STEPS:
        row = "".join(f"{best[size][name]:16.3f}" for size in arguments.sizes)
        growth = best[large][name] / best[small][name] / (large / small)
        print(f"{name:28}{row}{growth:17.2f}x")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"largest memory of the process: {peak:,.0f} MB")
    if large == GOAL_SIZE:
        served = sum(seconds for name, seconds in best[large].items() if name in UNTIL_SERVED)
        growth = sum(best[large].values()) / sum(best[small].values()) / (large / small)
        who = f"{large:,} TaskExecutors with {SLOTS} slots register and serve a job"
        results.add(
            Figure("served", f"{who}: decisions, CPU time", served, MOST_SECONDS, "s"),
            Figure("growth", f"{who}: growth per slot, all steps", growth, MOST_GROWTH, "x"),
            Figure("memory", f"{who}: memory", peak, MOST_MEMORY, "MB"),
        )
    results.raw = {str(size): seconds for size, seconds in best.items()}
    results.end()


if __name__ == "__main__":
    main()
