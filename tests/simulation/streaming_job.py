"""A streaming job that is exactly once, while everything goes wrong.

In some seeds savepoints are taken of it, and it is stopped and resumed
(:mod:`tests.simulation.job_user`).  Where only masters die, no task is restarted
(:mod:`tests.simulation.attempts`).

What must hold at every step, :class:`~tests.simulation.streaming_world.StreamingWorlds`,
:class:`~tests.simulation.stored_checkpoints.StoredCheckpoints`, the
:class:`~tests.simulation.external_system.ExternalSystem` and :mod:`tests.simulation.channel_credit`
ask.  Besides, when the faults are over,

- within :data:`BOUND` seconds the job finishes, every record is committed, and the output of its
  output format is finished;
- within :data:`CLEANING` seconds of that no checkpoint of it is left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from flinkray.core.job_options import CHECKPOINTING_RETENTION
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Faults, Simulation
from flinkray.testing.simulation.calls import CallObserver, observed_calls
from flinkray.testing.simulation.seeds import stream
from tests.simulation.attempts import Attempts
from tests.simulation.channel_credit import check_credit
from tests.simulation.external_system import ExternalSystem
from tests.simulation.job_user import JobUser
from tests.simulation.stored_checkpoints import StoredCheckpoints
from tests.simulation.streaming_program import SINKS, Program, job_graph
from tests.simulation.streaming_world import StreamingWorlds
from tests.simulation.whole_cluster import BRIEF_FAULTS, CONFIGURATION, NODE, REPEATABLE

BOUND = 120.0
CLEANING = 60.0
"""Virtual seconds."""

FAULTS = replace(
    BRIEF_FAULTS,
    closed=(),
    full_every=4.0,
    reorders=0.5,
    late_listing=2.0,
    since=0.5,
    until=7.0,
)

MASTERS_FAULTS = replace(
    FAULTS,
    loss=0.0,
    breaks_before=0.0,
    breaks_after=0.0,
    aims_lose=False,
    reset_every=0.0,
    node_crash_every=0.0,
    crash_every=1.0,
    longest=3.0,
    spare=("TaskExecutor", "TaskProcess"),
)
"""Nothing that those who run tasks would have to give up a task for: masters die, freeze and are
taken for dead, the storage fails, and messages are late, for less than anybody is patient."""

TOGETHER_FAULTS = Faults(
    together_every=2.0,
    slow_restarts=25.0,
    since=0.5,
    until=14.0,
    spare=MASTERS_FAULTS.spare,
    vary=False,
)
"""Masters that are killed together, and nothing else.  Those that Ray restarts are away for longer
than anybody who does not answer is waited for."""

LEADERS_FAULTS = replace(
    TOGETHER_FAULTS, spare=(*TOGETHER_FAULTS.spare, "SlotPool", "StreamCoordinator")
)
"""The same among JobMaster, Dispatcher and ResourceManager alone."""

REPEATS_FAULTS = Faults(
    repeated=0.2,
    repeatable=REPEATABLE,
    since=0.3,
    until=9.0,
    spare=MASTERS_FAULTS.spare,
    vary=False,
)
"""Calls that are made again although they were answered, and nothing else."""

WRITERS_FAULTS = Faults(
    paused_work=0.1, since=0.5, until=14.0, spare=LEADERS_FAULTS.spare, vary=False
)
"""JobMasters, Dispatchers and ResourceManagers that stand still in the middle of what they write,
and go on with it beside their successors."""

_PATIENCE = {"heartbeat.timeout": "8 s", "rpc.ask-timeout": "12 s"}
"""There."""

_WITH_SAVEPOINTS = 0.3
"""Share of the seeds."""

_CONFIGURATION = {**CONFIGURATION, "taskmanager.prestarted-task-processes": "1"}


@dataclass
class StreamingJob:
    """One run."""

    simulation: Simulation
    only_masters_die: bool = False
    has_hook: bool = False
    """Whether a source has a master hook."""
    has_model: bool = False
    """Whether replicas of a model get the records first."""
    observers: tuple[CallObserver, ...] = ()
    """Of all calls."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the cluster, besides."""
    node: ResourceProfile = NODE
    """What each node has."""
    attempts_are: ClassVar[type[Attempts]] = Attempts
    user_is: ClassVar[type[JobUser]] = JobUser

    def program(self) -> Program:
        """What the seed makes of it."""
        random = self.simulation.random
        self.is_exactly_once = random.random() < 0.85
        settings = {
            "interval": f"{random.choice((100, 200, 500))} ms",
            "timeout": f"{random.choice((2, 5))} s",
            "mode": "EXACTLY_ONCE" if self.is_exactly_once else "AT_LEAST_ONCE",
            "min-pause": random.choice(("0 ms", "100 ms")),
            "max-concurrent-checkpoints": str(random.choice((1, 1, 2))),
            "num-retained": str(random.choice((1, 1, 2))),
            "tolerable-failed-checkpoints": "1000000",
            "incremental": random.choice(("true", "true", "false")),
            "data-inline-threshold": random.choice(("0", "0", "300b")),
            "dir": "simulated://shared/checkpoints",
        }
        if self.is_exactly_once and random.random() < 0.4:
            settings["unaligned.enabled"] = "true"
            settings["aligned-checkpoint-timeout"] = random.choice(("0 ms", "50 ms"))
        program = Program(
            sources=random.choice((1, 2, 2)),
            counters=random.randint(1, 2),
            splits=random.randint(6, 12),
            records=random.randint(8, 24),
            longest_pause=random.choice((0.2, 0.4)),
            longest_work=random.choice((0.0, 0.01, 0.05)),
            failures=0.0 if self.only_masters_die else random.choice((0.0, 0.005, 0.02)),
            configuration={
                **{f"execution.checkpointing.{key}": value for key, value in settings.items()},
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "100000",
                "restart-strategy.fixed-delay.delay": "50 ms",
            },
            table=stream(self.simulation.seed, "table").choice((0, 0, 1, 3)),
            sink=stream(self.simulation.seed, "sink").choice(SINKS),
            has_hook=self.has_hook,
            replicas=stream(self.simulation.seed, "model").randint(1, 2) if self.has_model else 0,
            has_format=stream(self.simulation.seed, "format").random() < 0.3,
        )
        return self._with_savepoints(program) if self.takes_savepoints else program

    @property
    def takes_savepoints(self) -> bool:
        """Whether somebody does, and stops and resumes the job."""
        if self.only_masters_die:
            return False
        return stream(self.simulation.seed, "savepoints").random() < _WITH_SAVEPOINTS

    def commits_in_order(self, program: Program) -> bool:
        """Whether the transactions of a key come in their order."""
        return True

    def _with_savepoints(self, program: Program) -> Program:
        """The same with less records, as they go through several jobs."""
        retention = {CHECKPOINTING_RETENTION.key: "RETAIN_ON_CANCELLATION"}
        return replace(
            program,
            splits=max(program.splits // 2, 4),
            has_windows=True,
            configuration={**program.configuration, **retention},
        )

    async def run(self) -> None:
        """Start a cluster, run the job, and see that all ends well."""
        simulation = self.simulation
        program = self.program()
        self.external = ExternalSystem(
            simulation,
            is_exactly_once=self.is_exactly_once,
            is_in_order=self.commits_in_order(program),
        )
        simulation.belongings[ExternalSystem] = self.external
        nodes = [self.node] * len(simulation.nodes)
        patience = _PATIENCE if self.only_masters_die else {}
        configuration = {**_CONFIGURATION, **patience, **self.settings}
        self.cluster = SimulatedCluster(simulation, *nodes, configuration=configuration)
        graph = job_graph(program)
        stored = StoredCheckpoints(simulation.disk(), self.external.violated)
        may_grow = not self.only_masters_die
        self.attempts = self.attempts_are(simulation, self.external.violated, may_grow=may_grow)
        all_attempts = [self.attempts]
        if self.has_model:
            own = graph.job_id.hex()
            self.attempts.concerns = lambda job_id: job_id == own
            of_replicas = Attempts(simulation, self.external.violated, may_grow=may_grow)
            of_replicas.concerns = lambda job_id: job_id != own
            all_attempts.append(of_replicas)
        for attempts in all_attempts:
            simulation.listeners.append(attempts.process_changed)
        observers = (*all_attempts, *self.observers)
        self.worlds = StreamingWorlds(simulation, self.external, stored, *observers)
        self.user = self.user_is(simulation, self.cluster, self.worlds, self.external, stored)
        simulation.always(self.worlds.check)
        simulation.always(lambda: check_credit(simulation), every=10)
        simulation.listeners.append(self.worlds.process_changed)
        with observed_calls(self.worlds):
            await self._run(program, graph)

    async def _run(self, program: Program, graph: JobGraph) -> None:
        simulation = self.simulation
        await self.cluster.start()
        deadline = max(simulation.now, simulation.faults.until) + BOUND
        playing = asyncio.ensure_future(self._play(program, graph))
        if simulation.faults.until < math.inf:
            failing = asyncio.ensure_future(self._fail_now_and_then())
            await simulation.quiet()
            failing.cancel()
            self.external.failing = 0.0
        await asyncio.wait([playing], timeout=deadline - simulation.now)
        assert playing.done(), f"no result long after the last fault; {self._progress(program)}"
        result = playing.result()
        assert result.status is JobStatus.FINISHED, result
        is_whole = self.external.output_is_finished or not program.has_format
        assert is_whole, "the output was never finished"
        missing = program.all_records - set(self.external.committed)
        assert not missing, f"never committed: {sorted(missing)}"
        missing_numbers = self.external.numbers_that_are_missing()
        assert not missing_numbers, f"counted otherwise: {missing_numbers}"
        if program.has_windows and self.is_exactly_once:
            assert self.external.fired == self.external.counts, "a window has not fired"
        await self._see_all_gone()

    async def _see_all_gone(self) -> None:
        deadline = self.simulation.now + CLEANING
        while left := self.worlds.leftovers():
            assert self.simulation.now < deadline, f"files are left: {left}"
            await asyncio.sleep(0.5)

    def _progress(self, program: Program) -> str:
        done, all_records = len(self.external.committed), len(program.all_records)
        completed = [[*world.completed] for world in self.worlds.of_jobs]
        return f"{done} of {all_records} records are committed, {completed} completed"

    async def _fail_now_and_then(self) -> None:
        """The external system."""
        random = self.simulation.random
        while not self.only_masters_die:  # a task fails that cannot commit
            await asyncio.sleep(random.expovariate(1 / 3.0))
            self.external.failing = random.choice((0.3, 1.0))
            await asyncio.sleep(2.0 * random.random())
            self.external.failing = 0.0

    async def _play(self, program: Program, graph: JobGraph) -> JobResult:
        if self.takes_savepoints:
            return await self.user.stop_and_resume(program, graph)
        return await self.user.run(graph)


class LongStreamingJob(StreamingJob):
    """It runs for about as long as masters are away at most."""

    def program(self) -> Program:
        program = super().program()
        return replace(program, longest_pause=5 * program.longest_pause)
