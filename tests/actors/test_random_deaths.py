"""Jobs on a cluster whose processes die at random moments, often several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FlinkRayError,
    JobStateError,
    JobSubmissionError,
    RpcError,
)
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    FixedDelayRestart,
    Invokable,
    JobGraph,
    JobType,
    JobVertex,
    NoRestart,
    RestartStrategy,
    ResultPartitionType,
)
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.function_tasks import TaskContext
from flinkray.testing.scripted_spark_driver import script
from flinkray.testing.simulation import SimulatedProcess, Simulation, simulate
from tests.actors.chaos_cluster import LONGEST_STEP, ORPHANS_LIVE, ChaosCluster

BOUND = 120.0
"""Virtual seconds after the last fault within which every job must have ended."""
VICTIMS = (
    "Dispatcher",
    "ResourceManager",
    "JobMaster",
    "SlotPool",
    "TaskExecutor",
    "TaskProcess",
    "SparkDriver",
)
SHARED_WORKERS = {
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "1g",
    "taskmanager.numberOfTaskSlots": "2",
    "resourcemanager.taskmanager-timeout": "300 ms",
}

IDLE_WORKERS_GO = 60.0
"""Virtual seconds after which those that nobody uses are gone, whatever their ResourceManager has
gone through."""

SLOW = {
    "rpc.ask-timeout": "500 ms",
    "heartbeat.interval": "300 ms",
    "heartbeat.timeout": "1500 ms",
}
"""Of a cluster whose messages take so long that registrations and calls are repeated."""


@dataclass
class Job:
    """What is submitted, and what may become of it."""

    graph: JobGraph
    start: float
    cancel_at: float | None
    must_finish: bool
    """It has so many restarts that no death is a reason to fail."""


def passing_on(pause: float, failures: int) -> Callable[[TaskContext], Awaitable[None]]:
    """A task that has from each of its producers what that one sent to it, and sends on likewise;
    its first so many attempts fail."""

    async def run(context: TaskContext) -> None:
        for gate in context.inputs:
            expected = [f"{producer}>{context.subtask_index}" for producer in gate.partitions]
            read = [buffer.decode() for buffer in await gate.read_all()]
            assert read == expected, f"{read} instead of {expected}"
        await asyncio.sleep(pause)
        if context.attempt_number < failures:
            raise ValueError("fail it")
        for output in context.outputs:
            for reader in range(output.number_of_subpartitions):
                await output.write(reader, f"{context.subtask_index}>{reader}".encode())

    return run


class Chaos:
    """One seed: its cluster, jobs and faults."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        random = self.random = simulation.random
        self.is_patient = random.random() < 0.6
        """Whether jobs and masters have restarts without end."""
        self.adds_nodes_late = random.random() < 0.2
        self.horizon = random.choice((0.1, 0.3, 1.0, 3.0))
        """Seconds in which faults begin."""
        is_slow = random.random() < 0.3
        nodes = [ResourceProfile(4, 2**33)] * random.choice((1, 2))
        self.late_nodes = nodes if self.adds_nodes_late else []
        self.cluster = ChaosCluster(
            simulation,
            *([] if self.adds_nodes_late else nodes),
            configuration={
                "cluster.registration.error-delay": random.choice(("5 ms", "100 ms", "1 s")),
                "cluster.registration.refused-registration-delay": "100 ms",
                "jobmaster.max-failovers": "1000" if self.is_patient else "5",
                **SHARED_WORKERS,
                **(SLOW if is_slow else {}),
            },
        )
        if is_slow:
            self.cluster.set_conditions(latency=(0.0, random.choice((0.03, 0.1))))
        if random.random() < 0.3:
            self.cluster.set_conditions(orphans_live=(0.0, ORPHANS_LIVE))
        self.jobs = [self._job(number) for number in range(random.randint(1, 3))]
        self.results: dict[JobID, JobResult] = {}

    def _job(self, number: int) -> Job:
        random = self.random
        cancel_at = random.uniform(0, self.horizon) if random.random() < 0.3 else None
        is_endless = cancel_at is not None and random.random() < 0.7
        restarts = self.is_patient or random.random() < 0.7
        count = 10_000 if self.is_patient else random.randint(0, 4)
        delay = random.choice((0.0, 0.01, 0.1))
        strategy = FixedDelayRestart(count, delay) if restarts else NoRestart()
        make = self._python_job if random.random() < 0.4 else self._spark_job
        graph = make(f"job {number}", strategy, is_endless)
        start = random.choice((0.0, random.uniform(0, self.horizon)))
        return Job(graph, start, cancel_at, self.is_patient and cancel_at is None)

    def _spark_job(self, name: str, strategy: RestartStrategy, is_endless: bool) -> JobGraph:
        random = self.random
        attempts = [self._steps("fail it") for _ in range(random.choice((0, 0, 1, 2)))]
        attempts.append(self._steps("wait" if is_endless else "finish"))
        parallelism = random.randint(1, 3)
        scripts = [script(*attempts)]
        if random.random() < 0.3:
            scripts.insert(0, script(self._steps("finish")))
        vertices = [
            JobVertex(
                JobVertexID.generate(),
                f"stage {i}",
                parallelism,
                ResourceProfile(1, 2**30),
                Invokable(SPARK, code),
            )
            for i, code in enumerate(scripts)
        ]
        return JobGraph(JobID.generate(), name, tuple(vertices), strategy)

    def _python_job(self, name: str, strategy: RestartStrategy, is_endless: bool) -> JobGraph:
        random = self.random
        is_batch = not is_endless and random.random() < 0.5
        job_type = JobType.BATCH if is_batch else JobType.STREAMING
        builder = PythonJobBuilder(name, job_type=job_type, restart_strategy=strategy)
        kinds = ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING
        producer = None
        for number in range(random.randint(1, 3)):
            pause = 1e9 if is_endless else self._pause()
            failures = random.choice((0, 0, 1)) if number == 0 else 0
            vertex = builder.add(
                passing_on(pause, failures),
                name=f"vertex {number}",
                parallelism=random.randint(1, 3),
            )
            if producer is not None:
                result_type = random.choice(kinds) if is_batch else kinds[0]
                builder.connect(producer, vertex, result_type=result_type)
            producer = vertex
        return builder.build()

    def _steps(self, last: str) -> list[str]:
        steps = []
        if self.random.random() < 0.8:
            steps.append("register")
            for _ in range(self.random.choice((0, 0, 1, 2))):
                steps += ["lose 0", f"pause {self._pause()}", "register"]
        return [*steps, f"pause {self._pause()}", last]

    def _pause(self) -> float:
        return self.random.choice((0.0, 0.01, self.horizon / 2)) * self.random.random()

    # --- what happens -------------------------------------------------------------------------

    async def happens(self) -> None:
        async with self.cluster:
            faults = asyncio.ensure_future(self._faults())
            players = [asyncio.ensure_future(self._play(job)) for job in self.jobs]
            await faults
            self.cluster.tell("--- no fault after this")
            _, late = await asyncio.wait(players, timeout=BOUND)
            for player in late:
                player.cancel()
            for player in set(players) - late:
                player.result()
            missing = [j.graph.name for j in self.jobs if j.graph.job_id not in self.results]
            if missing:
                self.cluster.problem(f"without a result after {BOUND:g} s: {missing}")
                return
            await self._look_at_the_end()

    async def _faults(self) -> None:
        faults = [self._deaths(), self._deaths_after_changes()]
        if self.random.random() < 0.2:
            faults.append(self._refusal())
        if self.random.random() < 0.2:
            faults.append(self._storage_failure())
        if self.adds_nodes_late:
            faults.append(self._late_nodes())
        await asyncio.gather(*faults)

    async def _deaths(self) -> None:
        """At any moment, often of several at once."""
        moments = sorted(
            self.random.uniform(0, self.horizon) for _ in range(self.random.randint(0, 5))
        )
        now = 0.0
        for moment in moments:
            await asyncio.sleep(moment - now)
            now = moment
            for _ in range(self.random.choice((1, 1, 2, 3))):
                self._kill_one()

    async def _deaths_after_changes(self) -> None:
        """A moment after a process has come or gone: while others start, or are cleaned up."""
        left = self.random.randint(0, 8)
        chance = self.random.choice((0.02, 0.1, 0.3))

        def changed(process: SimulatedProcess) -> None:
            nonlocal left
            if left > 0 and self.random.random() < chance:
                left -= 1
                moment = self.simulation.now + self.random.uniform(0, LONGEST_STEP)
                self.simulation.scheduler.at(moment, self._kill_one)

        self.simulation.listeners.append(changed)
        await asyncio.sleep(2 * self.horizon)
        self.simulation.listeners.remove(changed)
        await asyncio.sleep(LONGEST_STEP)

    def _kill_one(self) -> None:
        kinds = [kind for kind in VICTIMS if self.cluster.processes(kind)]
        if kinds:
            victim = self.random.choice(self.cluster.processes(self.random.choice(kinds)))
            self.cluster.tell(f"*** {victim} is killed")
            self.simulation.crash(victim)

    async def _refusal(self) -> None:
        await asyncio.sleep(self.random.uniform(0, self.horizon))
        self.cluster.tell("*** worker groups are refused")
        self.cluster.workers.refusal = "the quota is used up"
        await asyncio.sleep(self.random.uniform(0, 5))
        self.cluster.workers.refusal = None

    async def _storage_failure(self) -> None:
        await asyncio.sleep(self.random.uniform(0, self.horizon))
        duration = self.random.uniform(0, 2)
        self.cluster.tell(f"*** the storage fails for {duration:g} s")
        self.cluster.fail_storage(duration)
        await asyncio.sleep(duration + 0.2)  # who failed at its start is started again

    async def _late_nodes(self) -> None:
        await asyncio.sleep(2 * self.horizon + 10)
        for job in self.jobs:
            if job.graph.job_id in self.results or job.cancel_at is not None:
                continue
            reason = (await self.cluster.details(job.graph.job_id)).pending_reason
            if "no nodes" not in (reason or ""):
                self.cluster.problem(f"{job.graph.name} waits for nodes and says {reason!r}")
        for node in self.late_nodes:
            self.cluster.tell("*** a node joins")
            self.cluster.workers.add_node(node)

    # --- a client -----------------------------------------------------------------------------

    async def _play(self, job: Job) -> None:
        await asyncio.sleep(job.start)
        await self._submit(job)
        canceller = asyncio.ensure_future(self._keep_cancelling(job))
        result = await self._result(job)
        canceller.cancel()
        self.cluster.tell(f"{job.graph.name} ended: {result.status.name} {result.failure or ''}")
        self.results[job.graph.job_id] = result
        await asyncio.sleep(ORPHANS_LIVE)
        leftovers = self.cluster.leftovers_of(job.graph.job_id)
        if leftovers:
            self.cluster.problem(f"{job.graph.name} has ended and still has {leftovers}")
        allowed = {JobStatus.FINISHED}
        if job.cancel_at is not None:
            allowed.add(JobStatus.CANCELED)
        if not self.is_patient:
            allowed.add(JobStatus.FAILED)
        if result.status not in allowed:
            self.cluster.problem(
                f"{job.graph.name} ended as {result.status.name} ({result.failure})"
            )

    async def _submit(self, job: Job) -> None:
        while True:
            try:
                await self.cluster.submit(job.graph)
                return
            except DuplicateJobSubmissionError:
                return  # an earlier call was carried out and its answer lost
            except (RpcError, JobSubmissionError) as error:
                self.cluster.tell(f"client: {job.graph.name} is not submitted: {error}")
            await asyncio.sleep(0.01)

    async def _result(self, job: Job) -> JobResult:
        while True:
            try:
                return await self.cluster.result(job.graph.job_id)
            except RpcError as error:
                self.cluster.tell(f"client: no result of {job.graph.name}: {error}")
            await asyncio.sleep(0.01)

    async def _keep_cancelling(self, job: Job) -> None:
        """Again and again: a Dispatcher that dies forgets what was asked of it."""
        if job.cancel_at is None:
            return
        await asyncio.sleep(max(0.0, job.cancel_at - job.start))
        while True:
            try:
                await (await self.cluster.dispatcher()).cancel_job(job.graph.job_id)
            except JobStateError:
                return  # it has finished
            except FlinkRayError as error:
                self.cluster.tell(f"client: {job.graph.name} is not cancelled: {error}")
            await asyncio.sleep(1.0)

    # --- afterwards ---------------------------------------------------------------------------

    async def _look_at_the_end(self) -> None:
        cluster = self.cluster
        cluster.tell("--- all jobs have ended, the masters are killed")
        for master in ("Dispatcher", "ResourceManager"):
            if cluster.processes(master):  # the last of the random deaths may just have been its
                cluster.crash(master)
        await asyncio.sleep(1.0)
        for job in self.jobs:
            again = await self._result(job)
            if again != self.results[job.graph.job_id]:
                cluster.problem(f"{job.graph.name} has another result now: {again}")
            status = await cluster.status(job.graph.job_id)
            if status is not again.status:
                cluster.problem(f"{job.graph.name} is shown as {status.name}")
        listed = await (await cluster.dispatcher()).list_jobs()
        if {job.job_id for job in listed} != set(self.results) or len(listed) != len(self.jobs):
            cluster.problem(f"the list of jobs is {listed}")
        await asyncio.sleep(IDLE_WORKERS_GO)
        if sorted(cluster.processes()) != ["Dispatcher", "ResourceManager"]:
            cluster.problem(f"still up: {cluster.processes()}")
        if cluster.workers.groups or not all(n.used.is_zero() for n in cluster.workers.nodes):
            cluster.problem(f"worker groups are left: {list(cluster.workers.groups)}")


@simulate(seeds=40, nodes=2)
async def test_every_job_ends_once_and_leaves_nothing_despite_random_deaths(
    simulation: Simulation,
) -> None:
    await Chaos(simulation).happens()
