"""What a client shows of results that are put again after failures: each value once, in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from flinkray.actors.gateways.stream_coordinator import CollectorPlace
from flinkray.actors.gateways.task_process import JobPartition
from flinkray.actors.task_process.collected_results import CollectedResults, read_results
from flinkray.actors.task_process.partitions import HeldPartition
from flinkray.client.stream_results import ResultPieces
from flinkray.core.ids import ExecutionGraphID, IntermediateDataSetID, JobID, ResultPartitionID

DATA_SET = IntermediateDataSetID(b"d" * 16)


@dataclass
class Checkpoint:
    """What a job goes on from."""

    position: int = 0
    """Of the source: values before it were put."""
    pieces: list[tuple[int, bytes]] = field(default_factory=list)


SAVEPOINT = Checkpoint(7, [(3, b"of another job"), (4, b"")])


class Attempt:
    """Of the task that collects, behind a source of the numbers from 0 on."""

    def __init__(self, number: int, restored: Checkpoint) -> None:
        self.partition = HeldPartition(1, is_pipelined=True)
        self.results = CollectedResults(
            self.partition, lambda: None, lambda: None, is_foreign=restored is SAVEPOINT
        )
        self.position = restored.position
        if restored.pieces:
            self.results.restore(restored.pieces)
        self.end = self.results.restored
        partition = ResultPartitionID(ExecutionGraphID(b"g" * 16), DATA_SET, 0, number)
        self.place = CollectorPlace(
            "somewhere",
            JobPartition(JobID(b"j" * 16), partition),
            self.results.restored,
            self.results.first,
        )
        self.taken: dict[int, Checkpoint] = {}

    def put(self, count: int) -> None:
        self.results.put(range(self.position, self.position + count))
        self.position += count
        self.end += 1

    def capture(self, checkpoint_id: int) -> None:
        pieces = list(self.results.capture(checkpoint_id))
        self.taken[checkpoint_id] = Checkpoint(self.position, pieces)


class Story:
    """A job whose attempts die, and a client that is late."""

    def __init__(self, seed: int, start: Checkpoint) -> None:
        self.random = Random(seed)
        self.start = start.position
        self.pieces = ResultPieces()
        self.shown: list[int] = []
        self.latest = start
        self.attempts = 0
        self.checkpoints = 0
        self.attempt = self.read_from = self.new_attempt()

    def new_attempt(self) -> Attempt:
        self.attempts += 1
        return Attempt(self.attempts, self.latest)

    def take(self) -> None:
        self.checkpoints += 1
        self.attempt.capture(self.checkpoints)

    def complete(self, checkpoint_id: int, is_told: bool) -> None:
        self.latest = self.attempt.taken[checkpoint_id]
        if is_told:
            self.attempt.results.completed(checkpoint_id)
        taken = self.attempt.taken
        self.attempt.taken = {i: it for i, it in taken.items() if i > checkpoint_id}

    async def read(self) -> None:
        """From where the client is, which may be an attempt that was replaced."""
        if self.pieces.position < self.read_from.end:
            size = self.random.choice((1, 100, 10_000))
            data = await self.read_from.partition.read(0, self.pieces.position, size)
            assert data is not None, "it asks for what it has read before"
            for piece in self.pieces.read(data, are_final=False):
                self.shown += read_results(piece)
        assert self.shown == list(range(self.start, self.start + len(self.shown)))

    async def go_on(self) -> None:
        for _ in range(self.random.randint(1, 60)):
            match self.random.randrange(8):
                case 0 | 1:
                    self.attempt.put(self.random.randint(1, 5))
                case 2:
                    self.take()
                case 3 if self.attempt.taken:
                    chosen = self.random.choice(list(self.attempt.taken))
                    self.complete(chosen, self.random.random() < 0.7)
                case 4 if self.random.random() < 0.5:
                    self.attempt = self.new_attempt()
                case 5:
                    self.look()
                case 6 if self.read_from is not self.attempt:
                    self.read_from.put(self.random.randint(1, 5))  # it does not know
                case _:
                    await self.read()
            await asyncio.sleep(0)  # what was put arrives
            await asyncio.sleep(0)

    def look(self) -> None:
        if self.read_from is not self.attempt:
            assert self.pieces.go_on_at(self.attempt.place)
            self.read_from = self.attempt

    async def end(self) -> None:
        """Nothing fails any more."""
        self.look()
        self.attempt.put(1)
        self.take()
        self.complete(self.checkpoints, is_told=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while self.pieces.position < self.attempt.end:
            await self.read()
        for piece in self.pieces.rest():
            self.shown += read_results(piece)
        assert self.shown == list(range(self.start, self.attempt.position))


@pytest.mark.parametrize("start", [Checkpoint(), SAVEPOINT], ids=["anew", "from a savepoint"])
async def test_each_result_is_shown_once_although_the_client_misses_some_attempts(
    start: Checkpoint,
) -> None:
    """Values that were read before a missed attempt are dropped."""
    for seed in range(500):
        story = Story(seed, start)
        await story.go_on()
        await story.end()


def place(restored: int | None, first: int = 0) -> CollectorPlace:
    partition = ResultPartitionID(ExecutionGraphID(b"g" * 16), DATA_SET, 0, 1)
    return CollectorPlace("there", JobPartition(JobID(b"j" * 16), partition), restored, first)


@pytest.mark.parametrize("found", [place(None), place(1)])
async def test_job_attempt_that_would_repeat_results_already_shown_is_rejected(
    found: CollectorPlace,
) -> None:
    """The attempt's checkpoint has fewer pieces than were shown, or there is no checkpoint."""
    attempt = Attempt(1, Checkpoint())
    for _ in range(2):
        attempt.put(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pieces = ResultPieces()
    assert pieces.go_on_at(attempt.place)
    data = await attempt.partition.read(0, 0, 10_000)
    assert data is not None
    assert len(pieces.read(data, are_final=True)) == 2
    assert not pieces.go_on_at(found)
    assert pieces.go_on_at(place(2))
