"""What endpoints hold, as nobody outside could see it: the one place that knows their insides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from flinkray.actors.gateways.task_process import JobPartition
from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.resource_manager.endpoint import ResourceManager
from flinkray.actors.slot_pool.endpoint import SlotPool
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.core.ids import AllocationID, ExecutionAttemptID, ExecutionGraphID, JobID
from flinkray.testing.simulation import SimulatedProcess, Simulation

E = TypeVar("E")


def endpoint_in(simulation: Simulation, process: SimulatedProcess, kind: type[E]) -> E | None:
    """The endpoint of that class in a process; None: not yet, or not any more."""
    service = simulation.network.services.get(process.name)
    if service is not None and service.process is process:
        for endpoint in service.endpoints():
            if isinstance(endpoint, kind):
                return endpoint
    return None


@dataclass
class Holding:
    """What a job has in a TaskExecutor."""

    slots: dict[AllocationID, str] = field(default_factory=dict)
    """With the state of each."""
    attempts: dict[ExecutionAttemptID, bool] = field(default_factory=dict)
    """That run, each with whether it is being cancelled."""
    partitions: set[object] = field(default_factory=set)

    def __str__(self) -> str:
        slots = [f"{allocation.short()} {state}" for allocation, state in self.slots.items()]
        attempts = [f"{a}{' (cancelling)' if c else ''}" for a, c in self.attempts.items()]
        return f"slots {slots}, attempts {attempts}, {len(self.partitions)} partitions"


def slots_of(executor: TaskExecutor) -> list[tuple[AllocationID, JobID, int]]:
    """All allocations there, each with its job and the index of its slot."""
    return [(a, slot.job_id, slot.index) for a, slot in executor._table._slots.items()]


def holdings(executor: TaskExecutor) -> dict[JobID, Holding]:
    """Of each job that has something there."""
    found: dict[JobID, Holding] = {}

    def of(job_id: JobID) -> Holding:
        return found.setdefault(job_id, Holding())

    for allocation_id, slot in executor._table._slots.items():
        of(slot.job_id).slots[allocation_id] = slot.state.value
    for attempt_id, task in executor._task_table._tasks.items():
        runs_in: Any = task.runs_in
        of(task.job_id).attempts[attempt_id] = runs_in._tasks[attempt_id].is_cancelling
    for partition in executor._python.results._places:
        of(partition.job_id).partitions.add(partition.partition)
    return found


def followed_jobs(executor: TaskExecutor) -> set[JobID]:
    """Whose JobMasters it keeps up a connection with."""
    return {job.job_id for job in executor._job_leaders._jobs}


def keeps_any(executor: TaskExecutor) -> bool:
    """Whether it keeps what a JobMaster has noted."""
    return bool(executor._kept._complete or executor._kept._begun)


def tasks_in(process: TaskProcess) -> set[tuple[JobID, ExecutionAttemptID]]:
    """Those that have not ended."""
    return {(task.job_id, attempt_id) for attempt_id, task in process._tasks.items()}


def partitions_in(process: TaskProcess) -> set[JobPartition]:
    """Results that a task process keeps, or begins."""
    return set(process._partitions._partitions)


def partitions_known_to(executor: TaskExecutor) -> set[JobPartition]:
    """Results that a TaskExecutor believes to be in its task processes."""
    return set(executor._python.results._places)


def graph_of(job_master: JobMaster) -> ExecutionGraphID:
    """Under which its tasks and their results are known."""
    return job_master._scheduler._graph.graph_id


def restarts_of(job_master: JobMaster) -> int:
    """How often it has restarted its job for a failure."""
    return job_master._scheduler.restarts


def slots_of_pool(pool: SlotPool) -> set[AllocationID]:
    """What a SlotPool holds."""
    return {slot.allocation_id for slot in pool._pool.slots}


def slots_known_to(job_master: JobMaster) -> set[AllocationID]:
    """What a JobMaster believes its SlotPool to hold."""
    return {slot.allocation_id for slot in job_master._slots.ledger.all()}


def registered_jobs(manager: ResourceManager) -> set[JobID]:
    """Whose JobMasters are registered there."""
    return set(manager._members.job_masters)
