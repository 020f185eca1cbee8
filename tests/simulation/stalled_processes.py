"""A cluster whose processes stand still for a while, one at a time, and nothing else goes wrong.

Masters stand still for longer than their peers are patient: these turn away from them, and come
back.  The other processes stand still for longer than they wait for answers themselves, but not
for so long that those who watch them would have to lose patience.  So nobody has a reason to give
up anybody for good:

- no process that has to do with a job ends before the job does, and no second one is started;
- no task fails, and no slot is lost: each task is in its first attempt when its job ends.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from flinkray.core.errors import DuplicateJobSubmissionError, FlinkRayError, RpcError
from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import JobGraph, NoRestart
from flinkray.scheduler.reports.job_info import JobDetails
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.process import SimulatedProcess

TIMEOUT = 10.0
INTERVAL = 1.0
CONFIGURATION = {
    "heartbeat.interval": f"{INTERVAL:g} s",
    "heartbeat.timeout": f"{TIMEOUT:g} s",
    "rpc.ask-timeout": "2 s",
    "cluster.registration.error-delay": "500 ms",
    "cluster.registration.refused-registration-delay": "1 s",
    "jobmaster.max-failovers": "0",
    "slot.request.timeout": "100 s",
    "resourcemanager.taskmanager-registration.timeout": "20 s",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "1g",
    "task.cancellation.timeout": "20 s",
}
NODE = ResourceProfile(8, 2**34)
MASTERS = ("Dispatcher", "ResourceManager")
OTHERS = ("JobMaster", "SlotPool", "TaskExecutor", "SparkDriver")
STALLS = 8


class StalledProcesses:
    """One run."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._random = simulation.random
        self._dead: list[str] = []

    async def run(self) -> None:
        simulation = self.simulation
        self.cluster = SimulatedCluster(simulation, NODE, NODE, configuration=CONFIGURATION)
        await self.cluster.start()
        simulation.listeners.append(self._changed)
        simulation.always(self._nobody_is_dead)
        jobs = [
            scripted_job(["register", "pause 1000"], restart_strategy=NoRestart()) for _ in range(2)
        ]
        stalls = asyncio.ensure_future(self._stall())
        await asyncio.gather(*(self._submit(job) for job in jobs))
        await stalls
        await asyncio.sleep(2 * TIMEOUT)
        for job in jobs:
            details = await self._details(job.job_id)
            assert details.status is JobStatus.RUNNING, details.exceptions
            assert details.restarts == 0, details.exceptions
            assert details.exceptions == (), details.exceptions

    def _changed(self, process: SimulatedProcess) -> None:
        if not process.is_alive:
            self._dead.append(f"{process.name}: {process.exit_code}")

    def _nobody_is_dead(self) -> None:
        assert not self._dead, "a process was given up"

    async def _submit(self, job: JobGraph) -> None:
        await asyncio.sleep(self._random.uniform(0, 10))

        async def submit() -> bool:
            with suppress(DuplicateJobSubmissionError):  # the answer to the first one was late
                await self.cluster.submit(job)
            return True

        await self.simulation.eventually(submit, within=300, retry_on=(RpcError,))

    async def _details(self, job_id: JobID) -> JobDetails:
        async def details() -> JobDetails:
            return await self.cluster.details(job_id)

        return await self.simulation.eventually(details, within=60, retry_on=(FlinkRayError,))

    async def _stall(self) -> None:
        random, simulation = self._random, self.simulation
        for _ in range(STALLS):
            await asyncio.sleep(random.uniform(0, 2 * TIMEOUT) * random.random())
            kind = random.choice(MASTERS if random.random() < 0.5 else OTHERS)
            names = self.cluster.processes(kind)
            if not names:
                continue
            name = random.choice(names)
            longest = 3 * TIMEOUT if kind in MASTERS else TIMEOUT - 3 * INTERVAL
            simulation.hang(name)
            await asyncio.sleep(random.uniform(0, longest))
            simulation.resume(name)
            await asyncio.sleep(2 * INTERVAL)
