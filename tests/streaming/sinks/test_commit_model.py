"""Writers and committers whose job crashes between any two steps: each record is committed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest

from flinkray.datastream.connectors import (
    CommitRequest,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    StatefulSinkWriter,
    WriterContext,
)
from flinkray.streaming.operators.operator import OperatorState
from flinkray.streaming.records.elements import Barrier, Block
from flinkray.streaming.sinks.sink_operators import (
    CommittableCollector,
    CommittableMessage,
    CommitterOperator,
    SinkWriterOperator,
)
from flinkray.testing.operator_harness import OperatorHarness

RECORDS = 40


class CrashedError(Exception):
    """A process has died in the middle of a commit."""


class World:
    """What outlives processes: boxes that writers have filled, and which of them are seen."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.boxes: dict[str, list[int]] = {}
        self.seen: dict[str, list[int]] = {}

    def new_box(self, values: list[int]) -> str:
        name = f"box {len(self.boxes)}"
        self.boxes[name] = values
        return name


class Boxes(Sink[Any, str]):
    def __init__(self, world: World) -> None:
        self.world = world

    def create_writer(self, context: WriterContext) -> SinkWriter[str]:
        return BoxWriter(self.world, 0)

    def restore_writer(self, context: WriterContext, states: Sequence[Any]) -> SinkWriter[str]:
        return BoxWriter(self.world, sum(states))

    def create_committer(self, context: CommitterContext) -> Committer[str]:
        return BoxCommitter(self.world)


class BoxWriter(StatefulSinkWriter[str, int]):
    def __init__(self, world: World, written: int) -> None:
        self._world = world
        self._values: list[int] = []
        self._written = written

    def write(self, block: Block) -> None:
        self._written += len(block)
        self._values += block.values

    def prepare_commit(self, end_of_input: bool) -> list[str]:
        values, self._values = self._values, []
        middle = self._world.random.randint(0, len(values))
        return [self._world.new_box(part) for part in (values[:middle], values[middle:]) if part]

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        return [self._written]


class BoxCommitter(Committer[str]):
    def __init__(self, world: World) -> None:
        self._world = world

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            chance = self._world.random.random()
            if chance < 0.15 and request.number_of_retries < 5:
                request.retry_later(OSError("not now"))
                continue
            name = request.committable
            if name in self._world.seen:
                request.signal_already_committed()
            self._world.seen[name] = self._world.boxes[name]
            if chance > 0.95:
                raise CrashedError


class Checkpoint(NamedTuple):
    """A durable one."""

    checkpoint_id: int
    position: int
    writers: list[OperatorState]
    committers: list[OperatorState]
    in_flight: list[list[CommittableMessage]]


@dataclass
class Subtask:
    """A writer, the channel behind it, and a committer."""

    writer: OperatorHarness
    committer: OperatorHarness
    channel: list[CommittableMessage] = field(default_factory=list)
    has_ended: bool = False

    def hand_on(self) -> None:
        self.channel += self.writer.values()

    def deliver(self) -> None:
        messages, self.channel = self.channel, []
        if messages:
            self.committer.process(*messages)


class Job:
    """It reads numbers, and goes back when it has crashed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(self.random)
        self.sink = Boxes(self.world)
        self.durable: Checkpoint | None = None
        self.last_id = 0
        self.crashes = 0
        self.zombies: list[Callable[[], None]] = []
        self.start()

    def start(self) -> None:
        durable = self.durable
        while True:
            try:
                self.subtasks = self._subtasks(durable)
            except CrashedError:  # while it commits again
                continue
            break
        self.position = 0 if durable is None else durable.position
        if durable is not None:
            for subtask, messages in zip(self.subtasks, durable.in_flight, strict=False):
                subtask.channel += messages

    def _subtasks(self, durable: Checkpoint | None) -> list[Subtask]:
        parallelism = self.random.randint(1, 3)
        if durable is not None and any(durable.in_flight):
            parallelism = len(durable.writers)
        subtasks = []
        for index in range(parallelism):
            context: dict[str, Any] = {
                "subtask_index": index,
                "parallelism": parallelism,
                "restored_checkpoint_id": 0 if durable is None else durable.checkpoint_id,
            }
            of_writer = [] if durable is None else durable.writers[index::parallelism]
            of_committer = [] if durable is None else durable.committers[index::parallelism]
            subtasks.append(
                Subtask(
                    OperatorHarness(SinkWriterOperator(self.sink), restore=of_writer, **context),
                    OperatorHarness(CommitterOperator(self.sink), restore=of_committer, **context),
                )
            )
        return subtasks

    @property
    def is_over(self) -> bool:
        return all(
            subtask.has_ended
            and not subtask.channel
            and not subtask.committer.operator.awaits_checkpoint
            and not subtask.committer.operator.is_retrying
            for subtask in self.subtasks
        )

    def step(self) -> None:
        steps = [self.read, self.deliver, self.take_checkpoint, self.pass_time, self.wake_zombie]
        weights = [6, 4, 3, 2, 1]
        if self.crashes < 6:
            steps.append(self.crash)
            weights.append(1)
        try:
            self.random.choices(steps, weights)[0]()
        except CrashedError:
            self.crash()

    def read(self) -> None:
        if self.position < RECORDS:
            subtask = self.subtasks[self.position % len(self.subtasks)]
            subtask.writer.process(self.position)
            self.position += 1
            return
        subtask = self.random.choice(self.subtasks)
        if not subtask.has_ended:
            subtask.has_ended = True
            subtask.writer.finish()
            subtask.hand_on()

    def deliver(self) -> None:
        self.random.choice(self.subtasks).deliver()

    def pass_time(self) -> None:
        for subtask in self.subtasks:
            subtask.committer.processing_time(subtask.committer.time_service.now() + 10_000)

    def take_checkpoint(self) -> None:
        self.last_id += 1
        barrier, is_unaligned = Barrier(self.last_id, 0), self.random.random() < 0.4
        writers, committers, in_flight = [], [], []
        for subtask in self.subtasks:
            subtask.writer.operator.prepare_snapshot_pre_barrier(barrier)
            subtask.hand_on()
            writers.append(subtask.writer.snapshot(self.last_id))
            if not is_unaligned:
                subtask.deliver()
            committers.append(subtask.committer.snapshot(self.last_id))
            in_flight.append(list(subtask.channel))
        fate = self.random.random()
        if fate < 0.2:
            return  # it was given up
        self.durable = Checkpoint(self.last_id, self.position, writers, committers, in_flight)
        for subtask in self.random.sample(self.subtasks, len(self.subtasks)):
            operator, checkpoint_id = subtask.committer.operator, self.last_id
            if fate > 0.9:
                self.zombies.append(lambda o=operator, c=checkpoint_id: self._told(o, c))  # type: ignore[misc]
                raise CrashedError
            if fate < 0.8:  # else the news is lost
                operator.notify_checkpoint_complete(checkpoint_id)

    @staticmethod
    def _told(operator: Any, checkpoint_id: int) -> None:
        with suppress(CrashedError):
            operator.notify_checkpoint_complete(checkpoint_id)

    def wake_zombie(self) -> None:
        """An attempt that is over, and does not know yet, hears of a checkpoint that is durable."""
        if self.zombies:
            self.zombies.pop(self.random.randrange(len(self.zombies)))()

    def crash(self) -> None:
        self.crashes += 1
        self.start()


def run(seed: int) -> Counter[int]:
    job = Job(seed)
    for _ in range(3000):
        if job.is_over:
            break
        job.step()
    assert job.is_over, f"seed {seed} comes to no end"
    return Counter(value for values in job.world.seen.values() for value in values)


ONCE = Counter(range(RECORDS))


def test_each_record_is_committed_once_despite_random_crashes() -> None:
    for seed in range(150):
        assert run(seed) == ONCE, f"seed {seed}"


@pytest.mark.parametrize("safeguard", ["wait for completion", "restore", "cover the end"])
def test_random_crashes_reveal_a_missing_safeguard_of_the_commit_protocol(
    safeguard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = CommittableCollector
    if safeguard == "wait for completion":
        monkeypatch.setattr(collector, "_is_due", lambda self, pending: True)
        monkeypatch.setattr(
            "flinkray.streaming.sinks.sink_operators._Pending.place", property(lambda self: (0, 0))
        )
    elif safeguard == "restore":
        monkeypatch.setattr(collector, "restore", lambda self, messages: None)
    else:
        monkeypatch.setattr(collector, "awaits_checkpoint", False)
    assert any(run(seed) != ONCE for seed in range(30))


def test_late_completion_of_an_older_checkpoint_is_ignored() -> None:
    collector = CommittableCollector(completed=4)
    collector.completed(2)
    collector.add([CommittableMessage(3, 0, "of a checkpoint before")])
    assert [request.committable for request in collector.due()] == ["of a checkpoint before"]
