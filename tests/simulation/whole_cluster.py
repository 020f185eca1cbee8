"""A whole cluster that runs a few jobs while everything goes wrong.

What must hold at every step, :class:`~tests.simulation.world.World` asks.  Besides, when the last
fault is over,

- within :data:`SETTLING` seconds every job that runs is RUNNING, with all of its tasks, and its
  JobMaster, SlotPool, TaskExecutors and task processes know of the same tasks, slots and results;
- within :data:`BOUND` seconds every job that is not endless ends, as it should, and an endless one
  as soon when it is cancelled then; a job that was acknowledged to be cancelled does not run on;
- of a finished job of Python tasks each record has come once through each vertex, also through
  Spark stages between them and after a file of a result was lost;
- within :data:`CLEANING` seconds of a job's end nothing is left of it: no process, no worker
  group, no slot, no task, no result in a task process, nobody who follows its JobMaster, no file
  but the one that tells how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any
from zlib import crc32

from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FlinkRayError,
    JobStateError,
    JobSubmissionError,
    RpcError,
)
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    PYTHON,
    SPARK,
    DistributionPattern,
    FixedDelayRestart,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobGraph,
    JobType,
    JobVertex,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.function_tasks import TaskContext
from flinkray.testing.scripted_spark_driver import script
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Faults, Simulation
from flinkray.testing.simulation.calls import observed_calls
from flinkray.testing.waiting import ask_again
from flinkray.user_code import dump_function
from tests.simulation.world import World

SETTLING = 80.0
STAYING = 8.0
"""Longer than a peer may be silent."""
BOUND = 90.0
CLEANING = 60.0
"""Virtual seconds."""
CONFIGURATION = {
    "rpc.ask-timeout": "3 s",
    "rpc.connection.idle-timeout": "4 s",
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
    "slot.idle.timeout": "2 s",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "1g",
    "jobmaster.max-failovers": "100000",
    "task.cancellation.timeout": "10 s",
}
NODE = ResourceProfile(8, 2**34)
FOR_EVER = FixedDelayRestart(100_000, 0.1)

CLOSED = (
    *("TaskExecutor.cancel_tasks",) * 6,
    *("TaskExecutor.free_slot",) * 3,
    *("JobMaster.cancel", "ResourceManager.declare_required_resources") * 2,
    *("TaskExecutor.request_slots", "TaskProcess.run_tasks") * 2,
    *("TaskExecutor.tasks_reported", "TaskExecutor.submit_tasks"),
    *("JobMaster.slots_changed", "SlotPool.request_slots", "SlotPool.return_slots"),
    *("SlotPool.offer_slots", "JobMaster.tasks_reported"),
    "JobMaster.disconnect_task_executor",
    *("Dispatcher.job_reached_terminal_state", "ResourceManager.release_job"),
)
"""Methods whose callers insist in some way, so that calls may be lost.

Only lost calls of ``cancel_tasks`` in seeds with failovers show that reconciliation is missing.
"""
_ONCE = ("TaskExecutor.submit_tasks", "TaskProcess.run_tasks")
"""Calls that their senders make once: without an answer, they end the tasks that may run."""
REPEATABLE = (
    *(method for method in dict.fromkeys(CLOSED) if method not in _ONCE),
    *("JobMaster.register_task_executor", "JobMaster.keep_part", "JobMaster.resize"),
    *("ResourceManager.register_task_executor", "ResourceManager.register_job_master"),
    *("Dispatcher.register_job_master", "Dispatcher.cancel_job"),
    "SlotPool.keep",
    *("StreamCoordinator.checkpoint_ended", "StreamCoordinator.exchange"),
    "StreamCoordinator.call_global_formats",
)
"""What is called until it is answered: it may come twice."""
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
    power_every=6.0,
    freeze_every=12.0,
    banish_every=10.0,
    aimed=0.2,
    closed=CLOSED,
    torn_writes=0.05,
    lost_disks=0.5,
    clock_error=100.0,
    longest=10.0,
    since=0.3,
    until=20.0,
    only_killed=("Dispatcher", "ResourceManager", "TaskProcess"),
)

BRIEF_FAULTS = replace(
    FAULTS,
    reset_every=2.0,
    crash_every=2.0,
    hang_every=4.0,
    slow_every=6.0,
    partition_every=4.0,
    node_crash_every=8.0,
    storage_every=6.0,
    power_every=4.0,
    freeze_every=6.0,
    banish_every=5.0,
    aimed=0.3,
    longest=7.0,
    until=9.0,
)
"""As much in half the time: for the safeguards, which take many seeds."""

LARGE_FAULTS = replace(
    FAULTS,
    reset_every=1.0,
    crash_every=1.0,
    hang_every=2.0,
    slow_every=2.0,
    partition_every=2.0,
    node_crash_every=5.0,
    storage_every=4.0,
    longest=5.0,
    until=7.0,
)
"""More in less time: with so many processes each virtual second is long."""


@dataclass(frozen=True)
class Scale:
    """How much of everything there is."""

    parallelism: tuple[int, int]
    """Bounds, of a job's widest vertex."""
    others: int
    """The largest of its other vertices."""
    shortest_work: float
    """Seconds that the first tasks of a job work."""
    longest_pause: float
    """Seconds more, for any task."""
    latest_start: float
    """Of a job."""
    end_of_faults: float
    node: ResourceProfile
    configuration: dict[str, str]
    kinds: tuple[int, int, int] = (5, 2, 3)
    """How many jobs are of Python tasks, of Spark stages and of both, in proportion."""


SMALL = Scale(
    (1, 2),
    2,
    0.0,
    8.0,
    10.0,
    20.0,
    NODE,
    {**CONFIGURATION, "taskmanager.prestarted-task-processes": "1"},
)
BRIEF = replace(SMALL, longest_pause=4.0, latest_start=4.0, end_of_faults=9.0)
LARGE = Scale(
    (16, 17),
    4,
    2.0,
    3.0,
    0.5,
    7.0,
    ResourceProfile(11, 2**40),
    {
        **CONFIGURATION,
        "heartbeat.interval": "2 s",
        "heartbeat.timeout": "7 s",
        "taskmanager.numberOfTaskSlots": "1",
        "resourcemanager.taskmanager-timeout": "3 s",
    },
    (5, 2, 0),
)
"""Three jobs need 48 to 51 TaskExecutors at the same time, those apart that are cancelled before;
six nodes have room for 66."""


@dataclass
class Job:
    """What is submitted, and what may become of it."""

    graph: JobGraph
    start: float
    cancel_at: float | None
    """None: it is not; infinity: when it was seen to run after the last fault."""
    is_endless: bool
    result: JobResult | None = None
    is_accepted: bool = False
    is_cancelled: bool = False
    """Acknowledged."""

    @property
    def job_id(self) -> JobID:
        return self.graph.job_id

    @property
    def stages(self) -> frozenset[str]:
        """Names of its Spark stages."""
        return frozenset(v.name for v in self.graph.vertices if v.invokable.kind == SPARK)

    @property
    def is_mixed(self) -> bool:
        return any(v.inputs or v.results for v in self.graph.vertices if v.name in self.stages)

    @property
    def allowed(self) -> set[JobStatus]:
        if self.is_endless:
            return {JobStatus.CANCELED}
        if self.cancel_at is not None:
            return {JobStatus.FINISHED, JobStatus.CANCELED}
        return {JobStatus.FINISHED}


RECORDS = 3
"""Of each subtask of a job's first vertex."""


def step(
    pause: float, failures: int = 0, until_failure: float = 0.0
) -> Callable[[TaskContext], Coroutine[Any, Any, None]]:
    """The function of a vertex: has records or reads them, takes its time, and hands each on to one
    subtask of the next vertex; fails in its first so many attempts."""

    async def run(context: TaskContext) -> None:
        from tests.simulation.world import World

        with World.current().runs(context):
            await work(context)

    async def work(context: TaskContext) -> None:
        import pyarrow as pa

        from flinkray.testing.scripted_spark_driver import ROWS
        from tests.simulation.whole_cluster import records_of
        from tests.simulation.world import World

        is_first = not context.inputs and not context.file_inputs
        records = records_of(context.subtask_index) if is_first else []
        for files in context.file_inputs:
            async for batch in files.read():
                records += batch.column("row").to_pylist()
        for gate in context.inputs:
            buffers = await gate.read_all()
            assert len(buffers) == len(gate.partitions), buffers
            for partition, buffer in zip(gate.partitions, buffers, strict=True):
                sender, *read = buffer.decode().split()
                assert int(sender) == partition, f"{buffer!r} of {partition}"
                records += read
        await asyncio.sleep(until_failure if context.attempt_number < failures else pause)
        if context.attempt_number < failures:
            raise ValueError("as the test wants it")
        for output in context.outputs:
            readers = output.number_of_subpartitions
            for index in range(readers):
                chosen = [record for record in records if crc32(record.encode()) % readers == index]
                await output.write(index, " ".join([str(context.subtask_index), *chosen]).encode())
        for file in context.file_outputs:
            await file.write(pa.RecordBatch.from_pydict({"row": records}, schema=ROWS))
        subtask = context.job_id, context.vertex_name, context.subtask_index
        World.current().finished[subtask] = records

    return run


def mixed_job(name: str, stages: Sequence[tuple[int, Invokable]]) -> JobGraph:
    """Stages of Spark and of Python, each in slots of its own, that read the one before."""
    vertices: list[JobVertex] = []
    inputs: tuple[JobEdge, ...] = ()
    for i, (width, invokable) in enumerate(stages):
        is_spark = invokable.kind == SPARK
        result = IntermediateDataSet(
            IntermediateDataSetID.generate(), ResultPartitionType.BLOCKING, ResultMedium.FILES
        )
        vertex = JobVertex(
            JobVertexID.generate(),
            f"vertex {i}",
            width,
            ResourceProfile(1, 2**30) if is_spark else ResourceProfile(0),
            invokable,
            inputs=inputs,
            results=() if i == len(stages) - 1 else (result,),
            slot_sharing_group=f"{'spark' if is_spark else 'python'} {i}",
        )
        vertices.append(vertex)
        inputs = (JobEdge(result.data_set_id, DistributionPattern.ALL_TO_ALL),)
    return JobGraph(JobID.generate(), name, tuple(vertices), FOR_EVER, JobType.BATCH)


def widest_at_first(graph: JobGraph) -> int:
    """The widest of the vertices that run as soon as the job does: none of their inputs has to be
    complete before, neither directly nor further up."""
    blocking = {
        result.data_set_id
        for vertex in graph.vertices
        for result in vertex.results
        if not result.result_type.is_pipelined
    }
    widest = 0
    for vertex in graph.vertices:
        if any(edge.source in blocking for edge in vertex.inputs):
            blocking.update(result.data_set_id for result in vertex.results)
        else:
            widest = max(widest, vertex.parallelism)
    return widest


def records_of(source: int) -> list[str]:
    """What one subtask of a first vertex has."""
    return [f"{source}.{number}" for number in range(RECORDS)]


@dataclass
class WholeCluster:
    """One run."""

    simulation: Simulation
    scale: Scale = SMALL
    jobs: list[Job] = field(default_factory=list)

    async def run(self, jobs: int = 3) -> None:
        """Start a cluster, let things go wrong, and see that all ends well."""
        self._is_calm = asyncio.Event()
        simulation = self.simulation
        nodes = [self.scale.node] * len(simulation.nodes)
        configuration = self.scale.configuration
        self.cluster = SimulatedCluster(simulation, *nodes, configuration=configuration)
        self.world = World(simulation, self.cluster)
        simulation.always(self.world.check)
        simulation.listeners.append(self.world.new_process)
        with observed_calls(self.world):
            await self._run(jobs)

    async def _run(self, jobs: int) -> None:
        simulation = self.simulation
        await self.cluster.start()
        self.jobs = [self._job(number) for number in range(jobs)]
        players = [asyncio.ensure_future(self._play(job)) for job in self.jobs]
        loses = asyncio.ensure_future(self._lose_results())
        await simulation.quiet()
        loses.cancel()
        await self._look_at_what_runs()
        done, _ = await asyncio.wait(players, timeout=BOUND)
        for player in done:
            player.result()
        missing = [job.graph.name for job in self.jobs if job.result is None]
        assert not missing, f"without a result long after the last fault: {missing}"
        await self._look_at_the_end()

    # --- jobs -------------------------------------------------------------------------------------

    def _job(self, number: int) -> Job:
        random, scale = self.simulation.random, self.scale
        is_endless = random.random() < 0.55
        makes = (self._python_job, self._spark_job, self._mixed_job)
        (make,) = random.choices(makes, scale.kinds)
        name = f"job {number}" + (" without end" if is_endless else "")
        graph = make(name, random.randint(*scale.parallelism), is_endless)
        cancel_at = None
        if is_endless and random.random() < 0.75:
            cancel_at = inf
        elif is_endless or random.random() < 0.2:
            cancel_at = random.uniform(0, scale.end_of_faults)
        start = random.choice((0.0, random.uniform(0, scale.latest_start)))
        return Job(graph, start, cancel_at, is_endless)

    def _pause(self, is_endless: bool) -> float:
        random = self.simulation.random
        if is_endless:
            return 1e9
        return random.choice((0.0, 1.0, self.scale.longest_pause)) * random.random()

    def _spark_job(self, name: str, parallelism: int, is_endless: bool) -> JobGraph:
        random = self.simulation.random
        attempts = [
            ["register", f"pause {self._pause(False)}", "fail as the test wants it"]
            for _ in range(random.choice((0, 0, 1)))
        ]
        last = "wait" if is_endless else "finish"
        pause = self.scale.shortest_work + self._pause(False)
        attempts.append(["register", f"pause {pause}", last])
        vertices = tuple(
            JobVertex(
                JobVertexID.generate(),
                f"stage {i}",
                parallelism,
                ResourceProfile(1, 2**30),
                Invokable(SPARK, script(*attempts)),
            )
            for i in range(1 if is_endless else random.choice((1, 1, 2)))
        )
        return JobGraph(JobID.generate(), name, vertices, FOR_EVER)

    def _python_job(self, name: str, parallelism: int, is_endless: bool) -> JobGraph:
        random = self.simulation.random
        is_batch = random.random() < 0.5
        job_type = JobType.BATCH if is_batch else JobType.STREAMING
        failures = random.choice((0, 1, 1, 2))
        builder = PythonJobBuilder(name, job_type=job_type, restart_strategy=FOR_EVER)
        widths = [random.randint(1, self.scale.others) for _ in range(random.randint(1, 3))]
        widths[random.randrange(len(widths))] = parallelism
        narrows = is_batch and is_endless and len(widths) > 1 and random.random() < 0.7
        if narrows:  # a slot is given back, and another one of the same TaskExecutor is kept
            widths[0], widths[-1] = self.scale.parallelism[1], 1
        failing = random.randrange(len(widths))
        vertices = [
            builder.add(
                step(
                    self._pause(is_endless and (i == len(widths) - 1 or not is_batch))
                    + (self.scale.shortest_work if i == 0 else 0.0),
                    failures if i == failing else 0,
                    random.uniform(0.0, 1.5),
                ),
                name=f"vertex {i}",
                parallelism=width,
            )
            for i, width in enumerate(widths)
        ]
        pipelined, blocking = ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING
        kinds = (blocking,) if narrows else (pipelined, blocking) if is_batch else (pipelined,)
        for producer, consumer in pairwise(vertices):
            result_type = random.choice(kinds)
            builder.connect(producer, consumer, result_type=result_type)
        return builder.build()

    def _mixed_job(self, name: str, parallelism: int, is_endless: bool) -> JobGraph:
        """Stages of Spark and of Python in turn, each of which reads the one before."""
        random = self.simulation.random
        is_spark = random.random() < 0.6
        widths = [random.randint(1, self.scale.others) for _ in range(random.randint(2, 3))]
        widths[random.randrange(len(widths))] = parallelism
        failing = random.randrange(len(widths))
        failures = random.choice((0, 0, 1))
        stages = []
        for i, width in enumerate(widths):
            is_last = i == len(widths) - 1
            pause = self._pause(is_endless and is_last) + (self.scale.shortest_work if not i else 0)
            fails = failures if i == failing else 0
            if is_spark:
                invokable = Invokable(SPARK, self._stage(pause, fails, width if i == 0 else 0))
            else:
                invokable = Invokable(PYTHON, dump_function(step(pause, fails, random.random())))
            stages.append((width, invokable))
            is_spark = not is_spark
        return mixed_job(name, stages)

    def _stage(self, pause: float, failures: int, sources: int) -> bytes:
        """The script of a Spark stage that has the records of so many sources, or reads them."""
        records = [record for source in range(sources) for record in records_of(source)]
        has = [f"row {record}" for record in records] or ["read"]
        fails = ["register", "pause 0.5", *has, "fail as the test wants it"]
        return script(*[fails] * failures, ["register", *has, f"pause {pause}", "finish"])

    async def _lose_results(self) -> None:
        """Now and then a file of a result is gone."""
        random = self.simulation.random
        while True:
            await asyncio.sleep(random.uniform(0.5, 4.0))
            if self.world.lose_result(random):
                self.simulation.tell("a file of a result is lost")

    # --- a client ---------------------------------------------------------------------------------

    async def _play(self, job: Job) -> None:
        await asyncio.sleep(job.start)
        await self._submit(job)
        canceller = asyncio.ensure_future(self._cancel(job))
        again = asyncio.ensure_future(self._submit_again(job))
        result = await self._result(job)
        canceller.cancel()
        again.cancel()
        tell = self.simulation.tell
        tell("%s ended: %s %s", job.graph.name, result.status.name, result.failure or "")
        assert result.status in job.allowed, f"{job.graph.name} ended as {result}"
        job.result = result
        if result.status is JobStatus.FINISHED:
            self._has_run(job)

    def _has_run(self, job: Job) -> None:
        """Each record has come once through each vertex, whatever had to be done again."""
        sources = range(job.graph.vertices[0].parallelism)
        expected = [record for source in sources for record in records_of(source)]
        if job.is_mixed and job.graph.vertices[-1].name in job.stages:
            assert job.result is not None
            assert job.result.num_rows == len(expected), f"{job.graph.name} ended as {job.result}"
        for vertex in job.graph.vertices:
            if vertex.name in job.stages:
                continue
            had: list[str] = []
            for index in range(vertex.parallelism):
                subtask = job.job_id, vertex.name, index
                assert subtask in self.world.finished, f"FINISHED without {subtask}"
                had += self.world.finished[subtask]
            assert sorted(had) == sorted(expected), f"{job.graph.name}, {vertex.name} had {had}"

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
        self.world.accepted[job.job_id] = None

    async def _submit_again(self, job: Job) -> None:
        """Now and then, as somebody does who has not heard the answer."""
        for _ in range(self.simulation.random.choice((0, 0, 1, 3))):
            await asyncio.sleep(self.simulation.random.uniform(0.0, 5.0))
            with suppress(FlinkRayError):
                await self.cluster.submit(job.graph)

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
        if job.cancel_at == inf:
            await self._is_calm.wait()
        else:
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

    async def _look_at_what_runs(self) -> None:
        """Of the jobs that are still to be cancelled."""
        problems: list[str] = []

        async def all_know_the_same() -> bool:
            problems.clear()
            for job in self.jobs:
                if job.cancel_at == inf:
                    details = await self.cluster.details(job.job_id)
                    if details.status is not JobStatus.RUNNING:
                        problems.append(f"{job.graph.name} is {details.status.name}")
                    problems.extend(self.world.disagreements(details, job.stages))
            return not problems

        give_up = self.simulation.now + SETTLING
        endless = [job for job in self.jobs if job.cancel_at == inf]
        while endless:
            await self._eventually(all_know_the_same, SETTLING, problems)
            before = [await self._seen(job) for job in endless]
            await asyncio.sleep(STAYING)
            after = [await self._seen(job) for job in endless]
            if before == after:
                break
            assert self.simulation.now < give_up, f"without a fault, {before} became {after}"
        self._is_calm.set()

    async def _seen(self, job: Job) -> tuple[str, int, list[int]]:
        """What nothing but a fault may change of a job that runs: what it says of itself, and which
        JobMaster it has."""
        details = await self.cluster.details(job.job_id)
        masters = self.simulation.processes(f"JobMaster-{job.job_id}")
        return details.status.name, details.restarts, [master.number for master in masters]

    async def _look_at_the_end(self) -> None:
        cluster = self.cluster
        problems: list[str] = []

        def nothing_remains() -> bool:
            problems[:] = [text for job in self.jobs for text in self.world.remains(job.job_id)]
            return not problems

        await self._eventually(nothing_remains, CLEANING, problems)
        await self.simulation.eventually(self._nothing_is_left, within=CLEANING)
        cluster.crash("Dispatcher")
        cluster.crash("ResourceManager")
        for job in self.jobs:
            again = await self._result(job)
            assert again == job.result, f"{job.graph.name} has another result now: {again}"
        await self.simulation.eventually(self._nothing_is_left, within=CLEANING)

    async def _eventually(
        self, is_so: Callable[[], Any], within: float, problems: list[str]
    ) -> None:
        try:
            await ask_again(
                is_so, lambda: self.simulation.now, within, 1.0, (FlinkRayError,), "it is not so"
            )
        except AssertionError as error:
            raise AssertionError(f"{within:g} s after the last fault: {problems}") from error

    def _nothing_is_left(self) -> bool:
        workers = self.cluster.workers
        return (
            sorted(self.cluster.processes()) == ["Dispatcher", "ResourceManager"]
            and not workers.groups
            and all(node.used.is_zero() for node in workers.nodes)
        )
