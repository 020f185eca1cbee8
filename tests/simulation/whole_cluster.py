"""A whole cluster that runs a few jobs while everything goes wrong.

What must hold is asked at every step, of the process that ran:

- a fencing token is one process's for ever, and one endpoint has it at a time;
- a slot is given to one job under one allocation, and an allocation is of one slot for ever;
- a job whose submission was acknowledged is stored, as a graph or as a result;
- a job that has ended has one result, which stays as it is;

and in the end:

- every job ends, as it should, within :data:`BOUND` seconds of the last fault;
- a job that was acknowledged to be cancelled does not run on;
- of a finished job every subtask has run to its end;
- nothing is left of ended jobs: no process, no worker group, no slot in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from flinkray.actors.task_executor import TaskExecutor
from flinkray.actors.task_process.context import TaskContext
from flinkray.client.python_job import PythonJobBuilder
from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FlinkRayError,
    JobStateError,
    JobSubmissionError,
    RpcError,
)
from flinkray.core.ids import AllocationID, FencingToken, JobID, JobVertexID, SlotID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.job_graph import (
    SPARK,
    FixedDelayRestart,
    Invokable,
    JobGraph,
    JobType,
    JobVertex,
    ResultPartitionType,
)
from flinkray.scheduler.job_info import JobResult
from flinkray.scheduler.states import JobStatus
from flinkray.testing.scripted_spark_driver import script
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Faults, SimulatedProcess, Simulation

BOUND = 150.0
"""Virtual seconds after the last fault within which every job must have ended."""
FAULTS_UNTIL = 20.0
CONFIGURATION = {
    "rpc.ask-timeout": "3 s",
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "cluster.registration.initial-timeout": "500 ms",
    "cluster.registration.max-timeout": "5 s",
    "cluster.registration.error-delay": "500 ms",
    "cluster.registration.refused-registration-delay": "1 s",
    "resourcemanager.taskmanager-timeout": "5 s",
    "resourcemanager.taskmanager-registration.timeout": "15 s",
    "resourcemanager.previous-worker.recovery.timeout": "10 s",
    "resourcemanager.start-worker.max-failure-rate": "1000",
    "slot.request.timeout": "30 s",
    "slot.idle.timeout": "5 s",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "1g",
    "jobmaster.max-failovers": "100000",
}
NODE = ResourceProfile(8, 2**34)
FOR_EVER = FixedDelayRestart(100_000, 0.1)

FAULTS = Faults(
    loss=0.03,
    duplication=0.03,
    breaks_before=0.01,
    breaks_after=0.01,
    delay=0.03,
    reset_every=3.0,
    crash_every=3.0,
    hang_every=5.0,
    slow_every=5.0,
    partition_every=6.0,
    node_crash_every=12.0,
    storage_every=8.0,
    torn_writes=0.05,
    lost_disks=0.5,
    clock_error=100.0,
    longest=10.0,
    since=0.3,
    until=FAULTS_UNTIL,
)

Subtask = tuple[JobID, str, int]
"""A job, the name of a vertex and the index of a subtask."""


@dataclass
class Job:
    """What is submitted, and what may become of it."""

    graph: JobGraph
    start: float
    cancel_at: float | None
    is_endless: bool
    result: JobResult | None = None
    is_accepted: bool = False
    is_cancelled: bool = False
    """Acknowledged."""

    @property
    def job_id(self) -> JobID:
        return self.graph.job_id

    @property
    def allowed(self) -> set[JobStatus]:
        if self.is_endless:
            return {JobStatus.CANCELED}
        if self.cancel_at is not None:
            return {JobStatus.FINISHED, JobStatus.CANCELED}
        return {JobStatus.FINISHED}


class World:
    """What has happened, as nobody inside can know it."""

    def __init__(self, simulation: Simulation, cluster: SimulatedCluster) -> None:
        simulation.belongings[World] = self
        self.simulation = simulation
        self.cluster = cluster
        self.accepted: set[JobID] = set()
        self.finished: set[Subtask] = set()
        self._results: dict[JobID, bytes] = {}
        """Of the jobs whose end was stored."""
        self._tokens: dict[tuple[str, FencingToken], SimulatedProcess] = {}
        self._slots: dict[AllocationID, tuple[SlotID, JobID]] = {}
        self._task_executors: dict[SimulatedProcess, TaskExecutor | None] = {}

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
        elif kind == "Dispatcher":
            self._check_jobs()

    def _endpoint(self, process: SimulatedProcess) -> TaskExecutor | None:
        known = self._task_executors.get(process)
        if known is None:
            service = self.cluster.network.services.get(process.name)
            if service is not None and service.process is process:
                for endpoint in service.endpoints():
                    if isinstance(endpoint, TaskExecutor):
                        known = self._task_executors[process] = endpoint
        return known

    def _check_slots(self, process: SimulatedProcess) -> None:
        endpoint = self._endpoint(process)
        if endpoint is None:
            return
        for status in endpoint._table.report().slots:
            if status.allocation_id is None:
                continue
            assert status.job_id is not None
            here = status.slot_id, status.job_id
            before = self._slots.setdefault(status.allocation_id, here)
            assert before == here, f"{status.allocation_id} is {before} and {here}"

    def _check_jobs(self) -> None:
        disk = self.simulation.disk()
        for job_id in self.accepted:
            stored = self.stored_result(job_id)
            known = self._results.get(job_id)
            if stored is None:
                assert known is None, f"the result of job {job_id} is gone"
                graph = f"cluster/job-graphs/{job_id}.graph"
                assert disk.holds(graph), f"job {job_id} was accepted and is lost"
            elif known is None:
                self._results[job_id] = stored
            else:
                assert known == stored, f"job {job_id} has another result now"

    def stored_result(self, job_id: JobID) -> bytes | None:
        """How it is stored that the job has ended."""
        disk = self.simulation.disk()
        for state in ("clean", "dirty"):
            data = disk.content(f"cluster/job-results/{job_id}.{state}")
            if data is not None:
                return data
        return None

    def new_process(self, process: SimulatedProcess) -> None:
        """One has come or gone."""
        if process.is_alive and process.kind in ("JobMaster", "SparkDriver"):
            job_id = JobID(bytes.fromhex(process.name.split("-")[1]))
            if self.stored_result(job_id) is not None:
                text = f"{process.name} is started though the job has a result"
                self.simulation.scheduler.fail(AssertionError(text))


def step(pause: float, failures: int = 0) -> Callable[[TaskContext], Coroutine[Any, Any, None]]:
    """The function of a vertex: reads its inputs, takes its time, and writes on; fails in its first
    so many attempts."""

    async def run(context: TaskContext) -> None:
        from tests.simulation.whole_cluster import World

        for gate in context.inputs:
            buffers = await gate.read_all()
            assert len(buffers) == len(gate.partitions), buffers
        await asyncio.sleep(pause)
        if context.attempt_number < failures:
            raise ValueError("as the test wants it")
        for output in context.outputs:
            for index in range(output.number_of_subpartitions):
                await output.write(index, b"x" * 10)
        World.current().finished.add((context.job_id, context.vertex_name, context.subtask_index))

    return run


@dataclass
class WholeCluster:
    """One run."""

    simulation: Simulation
    jobs: list[Job] = field(default_factory=list)

    async def run(self, jobs: int = 3, parallelism: int = 2) -> None:
        """Start a cluster, let things go wrong, and see that all ends well."""
        simulation = self.simulation
        nodes = [NODE] * len(simulation.nodes)
        self.cluster = SimulatedCluster(simulation, *nodes, configuration=CONFIGURATION)
        self.world = World(simulation, self.cluster)
        simulation.always(self.world.check)
        simulation.listeners.append(self.world.new_process)
        await self.cluster.start()
        self.jobs = [self._job(number, parallelism) for number in range(jobs)]
        players = [asyncio.ensure_future(self._play(job)) for job in self.jobs]
        await simulation.quiet()
        done, late = await asyncio.wait(players, timeout=BOUND)
        for player in done:
            player.result()
        missing = [job.graph.name for job in self.jobs if job.result is None]
        assert not missing, f"without a result {BOUND:g} s after the last fault: {missing}"
        for player in late:
            await player
        await self._look_at_the_end()

    # --- jobs -------------------------------------------------------------------------------------

    def _job(self, number: int, parallelism: int) -> Job:
        random = self.simulation.random
        is_endless = random.random() < 0.2
        is_python = random.random() < 0.7
        make = self._python_job if is_python else self._spark_job
        name = f"job {number}" + (" without end" if is_endless else "")
        graph = make(name, random.randint(1, parallelism), is_endless)
        cancel_at = None
        if is_endless or random.random() < 0.2:
            cancel_at = random.uniform(0, FAULTS_UNTIL)
        start = random.choice((0.0, random.uniform(0, FAULTS_UNTIL / 2)))
        return Job(graph, start, cancel_at, is_endless)

    def _pause(self, is_endless: bool) -> float:
        random = self.simulation.random
        return 1e9 if is_endless else random.choice((0.0, 1.0, 8.0)) * random.random()

    def _spark_job(self, name: str, parallelism: int, is_endless: bool) -> JobGraph:
        random = self.simulation.random
        attempts = [
            ["register", f"pause {self._pause(False)}", "fail as the test wants it"]
            for _ in range(random.choice((0, 0, 1)))
        ]
        last = "wait" if is_endless else "finish"
        attempts.append(["register", f"pause {self._pause(False)}", last])
        vertices = tuple(
            JobVertex(
                JobVertexID.generate(),
                f"stage {i}",
                parallelism,
                ResourceProfile(1, 2**30),
                Invokable(SPARK, script(*attempts)),
            )
            for i in range(random.choice((1, 1, 2)))
        )
        return JobGraph(JobID.generate(), name, vertices, FOR_EVER)

    def _python_job(self, name: str, parallelism: int, is_endless: bool) -> JobGraph:
        random = self.simulation.random
        is_batch = not is_endless and random.random() < 0.4
        job_type = JobType.BATCH if is_batch else JobType.STREAMING
        builder = PythonJobBuilder(name, job_type=job_type, restart_strategy=FOR_EVER)
        failures = random.choice((0, 0, 1))
        vertices = [
            builder.add(
                step(self._pause(is_endless), failures if i == 0 else 0),
                name=f"vertex {i}",
                parallelism=random.randint(1, parallelism),
            )
            for i in range(random.randint(1, 3))
        ]
        kinds = (ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING)
        for producer, consumer in pairwise(vertices):
            result_type = random.choice(kinds) if is_batch else kinds[0]
            builder.connect(producer, consumer, result_type=result_type)
        return builder.build()

    # --- a client ---------------------------------------------------------------------------------

    async def _play(self, job: Job) -> None:
        await asyncio.sleep(job.start)
        await self._submit(job)
        canceller = asyncio.ensure_future(self._cancel(job))
        result = await self._result(job)
        canceller.cancel()
        tell = self.simulation.tell
        tell("%s ended: %s %s", job.graph.name, result.status.name, result.failure or "")
        assert result.status in job.allowed, f"{job.graph.name} ended as {result}"
        job.result = result
        if result.status is JobStatus.FINISHED:
            self._has_run(job)

    def _has_run(self, job: Job) -> None:
        missing = [
            f"{vertex.name} {index}"
            for vertex in job.graph.vertices
            for index in range(vertex.parallelism)
            if vertex.invokable.kind != SPARK
            and (job.job_id, vertex.name, index) not in self.world.finished
        ]
        assert not missing, f"{job.graph.name} is FINISHED without {missing}"

    async def _submit(self, job: Job) -> None:
        while True:
            try:
                await self.cluster.submit(job.graph)
                break
            except DuplicateJobSubmissionError:
                break  # an earlier call was carried out and its answer lost
            except (RpcError, JobSubmissionError) as error:
                self.simulation.tell("%s is not submitted: %s", job.graph.name, error)
            await asyncio.sleep(0.5)
        job.is_accepted = True
        self.world.accepted.add(job.job_id)

    async def _result(self, job: Job) -> JobResult:
        while True:
            try:
                return await self.cluster.result(job.job_id)
            except RpcError as error:
                self.simulation.tell("no result of %s: %s", job.graph.name, error)
            await asyncio.sleep(0.5)

    async def _cancel(self, job: Job) -> None:
        """Until it is acknowledged; not again."""
        if job.cancel_at is None:
            return
        await asyncio.sleep(max(0.0, job.cancel_at - self.simulation.now))
        while True:
            try:
                await (await self.cluster.dispatcher()).cancel_job(job.job_id)
            except JobStateError:
                return  # it has finished
            except FlinkRayError as error:
                self.simulation.tell("%s is not cancelled: %s", job.graph.name, error)
            else:
                self.simulation.tell("%s is to be cancelled", job.graph.name)
                job.is_cancelled = True
                return
            await asyncio.sleep(1.0)

    # --- afterwards -------------------------------------------------------------------------------

    async def _look_at_the_end(self) -> None:
        cluster = self.cluster
        await self.simulation.eventually(self._nothing_is_left, within=60)
        cluster.crash("Dispatcher")
        cluster.crash("ResourceManager")
        for job in self.jobs:
            again = await self._result(job)
            assert again == job.result, f"{job.graph.name} has another result now: {again}"
        await self.simulation.eventually(self._nothing_is_left, within=60)

    def _nothing_is_left(self) -> bool:
        workers = self.cluster.workers
        return (
            sorted(self.cluster.processes()) == ["Dispatcher", "ResourceManager"]
            and not workers.groups
            and all(node.used.is_zero() for node in workers.nodes)
        )
