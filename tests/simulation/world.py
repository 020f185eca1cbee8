"""What has happened in a whole cluster, and what must never."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.core.ids import AllocationID, JobID, JobMasterId, SlotID
from flinkray.scheduler.task_slots.task_slot_table import TaskSlotTable
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import SimulatedProcess, Simulation
from flinkray.testing.simulation.disk import SimulatedDisk

E = TypeVar("E")

Subtask = tuple[JobID, str, int]
"""A job, the name of a vertex and the index of a subtask."""


@dataclass(frozen=True)
class StoredJob:
    """Where a job and its end are on the disk."""

    graph: str
    results: tuple[str, str]

    @classmethod
    def of(cls, job_id: JobID) -> StoredJob:
        results = [f"cluster/job-results/{job_id}.{state}" for state in ("clean", "dirty")]
        return cls(f"cluster/job-graphs/{job_id}.graph", (results[0], results[1]))

    def result(self, disk: SimulatedDisk) -> bytes | None:
        """How it is stored that the job has ended."""
        clean, dirty = self.results
        data = disk.content(clean)
        return disk.content(dirty) if data is None else data


class World:
    """What has happened, as nobody inside can know it."""

    def __init__(self, simulation: Simulation, cluster: SimulatedCluster) -> None:
        simulation.belongings[World] = self
        self.simulation = simulation
        self.cluster = cluster
        self.accepted: dict[JobID, StoredJob] = {}
        self.finished: dict[Subtask, list[str]] = {}
        """What the last attempt of a Python subtask had when it ended."""
        self.most_task_executors = 0
        """That were alive at the same time."""
        self._results: dict[JobID, bytes] = {}
        """Of the jobs whose end was stored."""
        self._tokens: dict[JobMasterId, SimulatedProcess] = {}
        self._with_token: set[SimulatedProcess] = set()
        self._slots: dict[AllocationID, tuple[object, SlotID, JobID]] = {}
        self._tables: dict[SimulatedProcess, TaskSlotTable] = {}

    @classmethod
    def current(cls) -> World:
        """Of the process that runs."""
        world: World = Simulation.current().belongings[World]
        return world

    # --- at every step ----------------------------------------------------------------------------

    def check(self) -> None:
        process = self.simulation.scheduler.current
        if process is None or not process.is_alive:
            return
        kind = process.kind
        if kind == "TaskExecutor":
            self._check_slots(process)
        elif kind == "JobMaster":
            self._check_token(process)
        elif kind == "Dispatcher":
            self._check_jobs()

    def _endpoint(self, process: SimulatedProcess, kind: type[E]) -> E | None:
        service = self.cluster.network.services.get(process.name)
        if service is not None and service.process is process:
            for endpoint in service.endpoints():
                if isinstance(endpoint, kind):
                    return endpoint
        return None

    def _check_token(self, process: SimulatedProcess) -> None:
        if process in self._with_token:
            return  # which does not change
        endpoint = self._endpoint(process, JobMaster)
        if endpoint is not None:
            before = self._tokens.setdefault(endpoint.fencing_token, process)
            assert before is process, f"{process} has the token of {before}"
            self._with_token.add(process)

    def _check_slots(self, process: SimulatedProcess) -> None:
        table = self._tables.get(process)
        if table is None:
            endpoint = self._endpoint(process, TaskExecutor)
            if endpoint is None:
                return
            table = self._tables[process] = endpoint._table
        for allocation_id, slot in table._slots.items():
            known = self._slots.get(allocation_id)
            if known is not None and known[0] is slot:
                continue  # as it was: this is asked at every step
            here = SlotID(table._resource_id, slot.index), slot.job_id
            before = here if known is None else known[1:]
            self._slots[allocation_id] = (slot, *here)
            assert before == here, f"{allocation_id} is {before} and {here}"

    def _check_jobs(self) -> None:
        disk = self.simulation.disk()
        for job_id, paths in self.accepted.items():
            stored = paths.result(disk)
            known = self._results.get(job_id)
            if stored is None:
                assert known is None, f"the result of job {job_id} is gone"
                assert disk.holds(paths.graph), f"job {job_id} was accepted and is lost"
            elif known is None:
                self._results[job_id] = stored
            else:
                assert known == stored, f"job {job_id} has another result now"

    def new_process(self, process: SimulatedProcess) -> None:
        """One has come or gone."""
        if not process.is_alive:
            return
        if process.kind == "TaskExecutor":
            alive = len(self.cluster.processes("TaskExecutor"))
            self.most_task_executors = max(self.most_task_executors, alive)
        elif process.kind in ("JobMaster", "SparkDriver"):
            job_id = JobID(bytes.fromhex(process.name.split("-")[1]))
            if StoredJob.of(job_id).result(self.simulation.disk()) is not None:
                text = f"{process.name} is started though the job has a result"
                self.simulation.scheduler.fail(AssertionError(text))
