"""Somebody who runs a program: takes savepoints of its job, stops or cancels it, and resumes it.

Whatever goes wrong meanwhile,

- a savepoint that was answered is complete, and stays;
- a job whose stop was answered has ended for good.  All that is in the savepoint is committed, and
  nothing else; if it was drained, all windows have fired;
- a stop that failed leaves the job running, as the end of the program shows;
- a job goes on from each savepoint that it was stopped with, and from the last checkpoint or
  savepoint of one that was cancelled, with another parallelism as far as that is possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotType
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.layout import metadata_path
from flinkray.core.errors import (
    DuplicateJobSubmissionError,
    FlinkRayError,
    JobStateError,
    RpcError,
)
from flinkray.core.ids import JobID, TriggerID
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.state_reader import SavepointReader, StateNotFoundError
from flinkray.testing.simulated_cluster import SimulatedCluster
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.seeds import stream
from tests.simulation.external_system import ExternalSystem
from tests.simulation.stored_checkpoints import SAVEPOINTS, StoredCheckpoints
from tests.simulation.streaming_program import Program, job_graph
from tests.simulation.streaming_world import StreamingWorld, StreamingWorlds

T = TypeVar("T")

_ACTS = (
    *(SnapshotType.SAVEPOINT,) * 4,
    *(SnapshotType.SUSPEND_WITH_SAVEPOINT,) * 3,
    *(SnapshotType.TERMINATE_WITH_SAVEPOINT,) * 2,
    *(None,) * 2,
)
"""What is done with a job; None: it is cancelled."""

_MOST_ACTS = 4
"""With one job, which then goes on to its end."""

_DIRECTORY = f"simulated://shared/{SAVEPOINTS}"


@dataclass(frozen=True)
class _Answer:
    """What became of a request."""

    request: SnapshotRequest
    path: str | None
    """None: it failed."""


@dataclass
class JobUser:
    """Of one program.  What it asks for it asks again, until it is told what became of it."""

    simulation: Simulation
    cluster: SimulatedCluster
    worlds: StreamingWorlds
    external: ExternalSystem
    stored: StoredCheckpoints

    def __post_init__(self) -> None:
        self._random = stream(self.simulation.seed, "user of savepoints")

    async def run(self, graph: JobGraph) -> JobResult:
        """To its end."""
        world = await self.submit(graph)
        return await self.result(world.job_id)

    async def stop_and_resume(self, program: Program, graph: JobGraph) -> JobResult:
        """Once or twice, then let it run to its end; or it gets there before.  *graph*: that of the
        first job."""
        for stops_left in (*range(self._random.choice((1, 1, 2)), 0, -1), 0):
            world = await self.submit(graph)
            result = asyncio.ensure_future(self.result(world.job_id))
            acting = asyncio.ensure_future(self._act(world, result, may_stop=stops_left > 0))
            answers = await acting
            await result
            if result.result().status is JobStatus.CANCELED:
                program = self._after_cancel(program, world)
            else:
                stopped = await self._stopped(result.result(), answers)
                if stopped is None:
                    return result.result()
                program = self._rescaled(program, stopped)
            graph = job_graph(program)
        raise AssertionError("the last job was not stopped")

    async def submit(self, graph: JobGraph) -> StreamingWorld:
        world = self.worlds.begin(graph)

        async def submit() -> None:
            try:
                await self.cluster.submit(graph)
            except DuplicateJobSubmissionError:
                return

        await self.insist(submit)
        return world

    async def result(self, job_id: JobID) -> JobResult:
        return await self.insist(lambda: self.cluster.result(job_id))

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Until it succeeds."""
        while True:
            try:
                return await call()
            except (RpcError, FlinkRayError) as error:
                self.simulation.tell("tried again: %s", error)
                await asyncio.sleep(0.2)

    # --- what is done with a job ------------------------------------------------------------------

    async def _act(
        self, world: StreamingWorld, result: asyncio.Future[JobResult], *, may_stop: bool
    ) -> list[_Answer]:
        """Until it has ended."""
        random = self._random
        asked: list[asyncio.Future[_Answer]] = []
        for _ in range(_MOST_ACTS if may_stop else random.choice((0, 1, 2))):
            await asyncio.wait([result], timeout=random.expovariate(1 / 1.5))
            if result.done() or any(it.done() and _stops(it.result()) for it in asked):
                break
            kind = random.choice(_ACTS) if may_stop else SnapshotType.SAVEPOINT
            if kind is None:
                while not (result.done() or world.completed):  # there is something to go on from
                    await asyncio.wait([result], timeout=0.1)
                world.is_cancelled = True
                await self.insist(lambda: self.cancel(world.job_id))
                break
            asked.append(asyncio.ensure_future(self._take(world, kind)))
            if random.random() < 0.7:
                await asyncio.wait([asked[-1]])
        await result
        return [await it for it in asked]

    async def cancel(self, job_id: JobID) -> None:
        try:
            await (await self.cluster.dispatcher()).cancel_job(job_id)
        except JobStateError:
            return  # it has ended otherwise

    async def _take(self, world: StreamingWorld, kind: SnapshotType) -> _Answer:
        request = SnapshotRequest(TriggerID.generate(), kind, _DIRECTORY)
        tell = self.simulation.tell
        tell("%s %s is asked for", kind.value, request.trigger_id.short())
        while True:
            try:
                dispatcher = await self.cluster.dispatcher()
                path = (await dispatcher.take_snapshot(world.job_id, request)).path
            except RpcError as error:
                tell("%s: asked again: %s", kind.value, error)
                await asyncio.sleep(0.2)
                continue
            except (CheckpointError, CheckpointStorageError, JobStateError) as error:
                tell("%s %s failed: %s", kind.value, request.trigger_id.short(), error)
                if isinstance(error, JobStateError) and not world.end_is_durable:
                    self.external.violated(f"no {kind.value}, as the job had ended: it had not")
                return _Answer(request, None)
            tell("%s %s: %s", kind.value, request.trigger_id.short(), path)
            self.stored.check()
            if not self.stored.is_kept(metadata_path(path)):
                self.external.violated(f"{path} was answered, and is not complete")
            if kind.stops_the_job and not world.end_is_durable:
                self.external.violated(f"the job was stopped with {path}, and may go on")
            return _Answer(request, path)

    # --- what it goes on from ---------------------------------------------------------------------

    async def _stopped(self, result: JobResult, answers: list[_Answer]) -> str | None:
        """The savepoint that a job was stopped with; None: it has ended otherwise."""
        stopped = [it for it in answers if _stops(it)]
        path = result.savepoint
        for answer in stopped:
            assert answer.path == path, f"{answer} of a job that ended as {result}"
        if path is None:
            return None
        by = next(it for it in answers if it.request.trigger_id == result.stopped_by)
        assert by.path == path, f"{by} of a job that ended as {result}"
        # who has finished has no state any more
        if self.external.is_exactly_once and not self.stored.has_finished(
            metadata_path(path), "count"
        ):
            await self._check_contents(path, by.request.kind)
        return path

    async def _check_contents(self, path: str, kind: SnapshotType) -> None:
        """Records that are counted in it are committed, and no others."""
        counts, fired = dict(self.external.counts), dict(self.external.fired)
        found, open_ = await self.insist(lambda: _counts_in(path))
        assert found == counts, f"{path} counts {found}, and there are {counts}"
        told = {key: fired.get(key, 0) + open_.get(key, 0) for key in counts}
        assert told == counts, f"{path} has {open_} in windows, {fired} of {counts} were told"
        if kind is SnapshotType.TERMINATE_WITH_SAVEPOINT:
            assert fired == counts, f"{path} is drained: {fired} of {counts} were told"

    def _after_cancel(self, program: Program, world: StreamingWorld) -> Program:
        """Start from the newest that the job has left, or from where it has started itself."""
        left = self.stored.left_by(world.job_id)
        if not left:
            return program
        _, location = left[-1]
        self.stored.keep(location)
        is_rescalable = self.stored.is_savepoint(location) or not program.is_unaligned
        # transactions of one subtask that wait to be committed may come to several
        in_order = program.sink == "sink in order" or not self.external.is_exactly_once
        if is_rescalable and in_order:
            return self._rescaled(program, location)
        return program.started_from(location)

    def _rescaled(self, program: Program, start: str) -> Program:
        if self.stored.has_finished(metadata_path(start), "count"):
            return program.started_from(start)  # what is chained to it may not have finished
        sources, counters = (self._random.choice((1, 2, 3)) for _ in range(2))
        return replace(program.started_from(start), sources=sources, counters=counters)


def _stops(answer: _Answer) -> bool:
    """Whether the job has ended with it."""
    return answer.request.kind.stops_the_job and answer.path is not None


async def _counts_in(path: str) -> tuple[dict[int, int], dict[int, int]]:
    """Of each key, all of its records, and those in its window."""
    reader = SavepointReader(path)
    return _values(reader, "count"), _values(reader, "open")


def _values(reader: SavepointReader, state: str) -> dict[int, int]:
    try:
        entries = list(reader.keyed_entries("count", state))
    except StateNotFoundError:  # nothing has come yet
        return {}
    return {entry.key: entry.value for entry in entries}
