"""A job that does not end by itself, and bursts of faults as Flink's Jepsen tests have them.

Somebody asks for its status all the time, as an operator's monitoring would; what was seen is
judged by :mod:`tests.availability`.  What must hold of its checkpoints and commits at every step is
the same as in :mod:`tests.simulation.streaming_job`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import JobID
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.shared.states import JobStatus
from tests.availability import (
    PATIENCE,
    POLL_EVERY,
    Cancelled,
    Event,
    FaultBegan,
    FaultEnded,
    Seen,
    is_healthy,
    violations,
)
from tests.simulation.streaming_job import StreamingJob
from tests.simulation.streaming_program import Program

_UNTIL_KILLED = 6.0
"""A TaskExecutor is killed within so many seconds of the fault's beginning."""
_KILLS_IN_A_BURST = 20
_MASTERS_DIE_FOR = 60.0
_CUT_FOR = (10.0, 60.0)
"""Seconds."""
_BETWEEN = 10.0
"""Seconds from one fault, when the job runs again, to the next."""
_MASTERS = ("Dispatcher", "ResourceManager", "JobMaster")


@dataclass
class AvailableJob(StreamingJob):
    """One run; faults are those of *bursts*, in this order."""

    bursts: tuple[str, ...] = ()
    history: list[Event] = field(default_factory=list)

    def program(self) -> Program:
        program = super().program()
        settings = {"interval": "5 s", "timeout": "10 s", "min-pause": "0 ms"}
        options = {f"execution.checkpointing.{key}": value for key, value in settings.items()}
        return replace(
            program,
            splits=1_000,  # more than are read
            records=50,
            longest_pause=5.0,
            longest_work=0.0,
            failures=0.0,
            configuration={**program.configuration, **options},
        )

    @property
    def takes_savepoints(self) -> bool:
        return False

    async def _run(self, program: Program, graph: JobGraph) -> None:
        await self.cluster.start()
        world = await self.user.submit(graph)
        self._began = self.simulation.now
        self._told = asyncio.Event()
        watching = asyncio.ensure_future(self._watch(graph.job_id))
        for burst in self.bursts:
            await self._until_healthy()
            await asyncio.sleep(self.simulation.random.uniform(0.0, _BETWEEN))
            self._note(FaultBegan(self._now, burst))
            await FAULTS[burst](self)
            self._note(FaultEnded(self._now, burst))
        await self._until_healthy()
        found = violations(self.history)
        assert not found, (found, self.history)
        world.is_cancelled = True
        await self.user.insist(lambda: self.user.cancel(graph.job_id))
        self._note(Cancelled(self._now))
        result = await self.user.result(graph.job_id)
        assert result.status is JobStatus.CANCELED, result
        await asyncio.sleep(2 * POLL_EVERY)
        watching.cancel()
        found = violations(self.history)
        assert not found, (found, self.history)
        await self._see_all_gone()

    @property
    def _now(self) -> float:
        return self.simulation.now - self._began

    def _note(self, event: Event) -> None:
        self.history.append(event)
        self.simulation.tell("%s", event)
        self._told.set()

    async def _watch(self, job_id: JobID) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY)
            status = None
            with suppress(RpcError, FlinkRayError, asyncio.TimeoutError):
                status = await asyncio.wait_for(self.cluster.status(job_id), POLL_EVERY)
            self._note(Seen(self._now, status))

    async def _until_healthy(self) -> None:
        """Or as long as the rules of availability want at most."""
        since = len(self.history)

        async def healthy() -> None:
            while not is_healthy(self.history, since):
                self._told.clear()
                await self._told.wait()

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(healthy(), PATIENCE)

    # --- faults -----------------------------------------------------------------------------------

    def _kill(self, name: str) -> None:
        """If it is there still."""
        if name in self.cluster.processes():
            self.simulation.crash(name)

    async def _kill_in_time(self, names: list[str]) -> None:
        random = self.simulation.random
        moments = sorted((random.uniform(0.0, _UNTIL_KILLED), name) for name in names)
        begun = self.simulation.now
        for moment, name in moments:
            await asyncio.sleep(begun + moment - self.simulation.now)
            self._kill(name)

    async def kill_all_task_executors(self) -> None:
        await self._kill_in_time(self.cluster.processes("TaskExecutor"))

    async def kill_random_task_executors(self) -> None:
        random = self.simulation.random
        there = self.cluster.processes("TaskExecutor")
        await self._kill_in_time([name for name in there if random.random() < 0.5])

    async def kill_a_task_executor(self) -> None:
        there = self.cluster.processes("TaskExecutor")
        await self._kill_in_time([self.simulation.random.choice(there)] if there else [])

    async def kill_task_executors_again_and_again(self) -> None:
        for _ in range(_KILLS_IN_A_BURST):
            await self.kill_a_task_executor()

    async def kill_masters_again_and_again(self) -> None:
        end = self.simulation.now + _MASTERS_DIE_FOR
        while self.simulation.now < end:
            for kind in _MASTERS:
                for name in self.cluster.processes(kind):
                    self._kill(name)
            await asyncio.sleep(self.simulation.random.uniform(0.0, _UNTIL_KILLED))

    async def cut_halves_off_while_a_master_recovers(self) -> None:
        """The machines cannot reach each other, and the storage is gone, when it has just died."""
        random = self.simulation.random
        for name in self.cluster.processes("JobMaster"):
            self._kill(name)
        await asyncio.sleep(random.uniform(0.0, 1.0))
        names = [node.name for node in self.simulation.nodes]
        half = len(names) // 2
        cut = self.simulation.partition(names[:half], names[half:])
        disk = self.simulation.disk()
        disk.failing = 1.0
        await asyncio.sleep(random.uniform(*_CUT_FOR))
        disk.failing = 0.0
        self.simulation.heal(cut)


FAULTS: dict[str, Callable[[AvailableJob], Awaitable[None]]] = {
    "kill all TaskExecutors": AvailableJob.kill_all_task_executors,
    "kill random TaskExecutors": AvailableJob.kill_random_task_executors,
    "kill a TaskExecutor": AvailableJob.kill_a_task_executor,
    "kill TaskExecutors again and again": AvailableJob.kill_task_executors_again_and_again,
    "kill masters again and again": AvailableJob.kill_masters_again_and_again,
    "halves, and no storage": AvailableJob.cut_halves_off_while_a_master_recovers,
}
