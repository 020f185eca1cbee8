"""The streaming job, elastic: it is resized while slots come and go, and all may die meanwhile.

In some seeds the cluster has fewer slots than the job may want, in others a change waits for a
savepoint.  All that must hold of the streaming job holds, each time that it goes on with another
parallelism.  Besides,

- other bounds are durable when they were acknowledged;
- within :data:`SETTLING` seconds of the last fault, and of the last resize, the job runs with as
  many subtasks as its bounds and the slots allow, if it has not ended (in some seeds it does not
  before);
- where only masters die it is restarted with another parallelism alone
  (:class:`~tests.simulation.attempts.ElasticAttempts`), and none of that counts as a failure.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import ClassVar

from flinkray.actors.gateways.messages import StoredJob
from flinkray.actors.gateways.snapshots import SnapshotType
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID
from flinkray.core.job_options import CHECKPOINTING_UNALIGNED, SCHEDULER
from flinkray.core.resources import ResourceProfile
from flinkray.ha.entries import decode_entry
from flinkray.scheduler.elastic.parallelism import (
    bounds_for,
    parallelism_bounds,
    parallelism_for,
)
from flinkray.scheduler.graph.job_graph import (
    JobGraph,
    ParallelismBounds,
    ParallelismRange,
    SchedulerMode,
)
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.simulation.seeds import stream
from tests.simulation.attempts import Attempts, ElasticAttempts
from tests.simulation.job_user import JobUser
from tests.simulation.stored_jobs import StoredJobs
from tests.simulation.streaming_job import StreamingJob
from tests.simulation.streaming_program import Hold, Program
from tests.simulation.streaming_world import StreamingWorld

SETTLING = 60.0
"""Virtual seconds."""

_MOST = 4
"""Subtasks that a vertex may be given."""

_WITH_STOPS = 0.3
"""Share of the seeds in which more than masters die."""


class ElasticUser(JobUser):
    """Resizes each job now and then, also while a savepoint is taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._resizes = stream(self.simulation.seed, "resizes")
        self._resizing: dict[JobID, asyncio.Future[None]] = {}
        self.told: Counter[str] = Counter()
        """How often a job was resized, or that failed."""

    async def submit(self, graph: JobGraph) -> StreamingWorld:
        world = await super().submit(graph)
        self._resizing[graph.job_id] = asyncio.ensure_future(self._resize_often(world, graph))
        return world

    async def result(self, job_id: JobID) -> JobResult:
        result = await super().result(job_id)
        self._resizing.pop(job_id).cancel()
        return result

    async def _resize_often(self, world: StreamingWorld, graph: JobGraph) -> None:
        random = self._resizes
        savepoints = []
        for _ in range(random.randint(1, 5)):
            await asyncio.sleep(random.expovariate(1 / 1.5))
            if random.random() < 0.4:
                taking = self._take(world, SnapshotType.SAVEPOINT)
                savepoints.append(asyncio.ensure_future(taking))
                await asyncio.sleep(random.choice((0.0, 0.05, 0.3)) * random.random())
            wanted = ParallelismRange(1, random.randint(1, _MOST))
            named: tuple[ParallelismBounds, ...] = ()
            if random.random() < 0.5:
                named = (self._some_bounds(graph),)
            others = wanted if not named or random.random() < 0.5 else None
            await self._resize(world, graph, named, others)
        for savepoint in savepoints:
            await savepoint

    def _some_bounds(self, graph: JobGraph) -> ParallelismBounds:
        """For one vertex."""
        random = self._resizes
        vertex = random.choice([v for v in graph.vertices if not v.non_parallel])
        upper = random.randint(1, _MOST)
        return ParallelismBounds(vertex.vertex_id, random.randint(1, min(2, upper)), upper)

    async def _resize(
        self,
        world: StreamingWorld,
        graph: JobGraph,
        named: tuple[ParallelismBounds, ...],
        others: ParallelismRange | None,
    ) -> None:
        """Once; what becomes of it if nobody answers, whoever asks need not know."""
        tell = self.simulation.tell
        tell("is resized: %s, others %s", [(it.lower, it.upper) for it in named], others)
        try:
            await (await self.cluster.dispatcher()).resize_job(graph.job_id, named, others)
        except FlinkRayError as error:
            tell("is not resized: %s", error)
            self.told["refused, or not answered"] += 1
            return
        tell("is resized")
        self.told["resized"] += 1
        stored = self.stored_graph(world)
        if stored is not None:
            known = parallelism_bounds(stored)
            if not set(bounds_for(graph, named, others)) <= {*known}:
                self.external.violated(f"bounds were acknowledged, and {known} would be recovered")

    def stored_graph(self, world: StreamingWorld) -> JobGraph | None:
        """That is durable, with the present bounds; None: the job has ended."""
        data = StoredJobs(self.simulation.disk()).graph(world.job_id, durable=True)
        if data is None or world.end_is_durable:
            return None
        return decode_entry(data, StoredJob).graph


@dataclass
class ElasticJob(StreamingJob):
    """One run."""

    attempts_are: ClassVar[type[Attempts]] = ElasticAttempts
    user_is: ClassVar[type[JobUser]] = ElasticUser
    user: ElasticUser = field(init=False)
    attempts: ElasticAttempts = field(init=False)

    def __post_init__(self) -> None:
        random = stream(self.simulation.seed, "elastic")
        self.node = ResourceProfile(random.choice((1, 1, 2, 8)), 2**34)
        scaling = "jobmanager.adaptive-scheduler"
        self.settings = {
            f"{scaling}.resource-stabilization-timeout": random.choice(("0 ms", "300 ms", "1 s")),
            f"{scaling}.scaling-interval.min": random.choice(("0 ms", "500 ms", "2 s")),
            **self.settings,
        }
        self.sizes = [random.randint(1, _MOST) for _ in range(2)]
        """Of the sources, and of what counts."""
        self._splits = random.randint(6, 14)
        self.hold = Hold(is_on=random.random() < 0.5)
        self.simulation.belongings[Hold] = self.hold

    def program(self) -> Program:
        program = super().program()
        sources, counters = self.sizes
        configuration = {**program.configuration, SCHEDULER.key: SchedulerMode.ADAPTIVE.name}
        configuration.pop(CHECKPOINTING_UNALIGNED.key, None)
        return replace(
            program,
            sources=sources,
            counters=counters,
            splits=self._splits,
            is_held=True,
            configuration=configuration,
        )

    async def run(self) -> None:
        await super().run()
        self.attempts.check()

    async def _play(self, program: Program, graph: JobGraph) -> JobResult:
        self.attempts.has_ended = lambda: self.worlds.of_jobs[-1].end_is_durable
        looking = asyncio.ensure_future(self._see_it_settle())
        try:
            return await super()._play(program, graph)
        finally:
            looking.cancel()

    async def _see_it_settle(self) -> None:
        simulation = self.simulation
        if simulation.faults.until < math.inf:
            await asyncio.sleep(max(0.0, simulation.faults.until - simulation.now))
        wanted: list[int] | None = None
        found: list[int] | None = None
        world: StreamingWorld | None = None
        deadline = simulation.now + SETTLING
        while wanted is None or wanted != found:
            before = world, wanted
            world = self.worlds.of_jobs[-1]
            wanted = self._possible(world)
            if wanted is None or (world, wanted) != before:
                deadline = simulation.now + SETTLING
            found = await self._running(world)
            if simulation.now > deadline:
                self.external.violated(f"the job runs with {found} subtasks, and not {wanted}")
            await asyncio.sleep(1.0)
        simulation.tell("it has settled with %s subtasks", found)
        self.hold.is_on = False
        self.user.told["settled"] += 1

    def _possible(self, world: StreamingWorld) -> list[int] | None:
        """With how many subtasks of each vertex the job can run; None: it has ended."""
        graph = self.user.stored_graph(world)
        if graph is None:
            return None
        number = 2 * len(self.simulation.machines.nodes) * int(self.node.cpu)
        possible = parallelism_for(graph, [graph.vertices[0].slot_profile] * number)
        return None if possible is None else [possible[v.vertex_id] for v in graph.vertices]

    async def _running(self, world: StreamingWorld) -> list[int] | None:
        try:
            details = await self.cluster.details(world.job_id)
        except FlinkRayError:
            return None
        states = {e.state for vertex in details.vertices for e in vertex.executions}
        if states <= {ExecutionState.RUNNING, ExecutionState.FINISHED}:
            return [vertex.parallelism for vertex in details.vertices]
        return None

    def commits_in_order(self, program: Program) -> bool:
        return program.sink == "sink in order"

    @property
    def takes_savepoints(self) -> bool:
        if self.only_masters_die:
            return False
        return stream(self.simulation.seed, "savepoints").random() < _WITH_STOPS
