"""Checkpoints of programs in one process, whenever they are triggered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from flinkray.core.clock import Clock
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.streaming.functions.functions import ProcessFunction
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.local.pending_checkpoint import Checkpoint
from flinkray.streaming.sinks.simple import CallbackSink
from flinkray.streaming.sources.collection import NumberSequenceSource, Slice
from flinkray.streaming.sources.source import (
    EnumeratorContext,
    FixedSplitsEnumerator,
    Source,
    SplitEnumerator,
)
from flinkray.testing.manual_clock import ManualClock

COPIES = 2_000


class Copies(ProcessFunction[Any, Any]):
    """More results than there is room for: whoever reads them is behind when the input ends."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        for copy in range(COPIES):
            yield value, copy


def job_of(taken: list[Any], restore: Checkpoint | None = None) -> LocalJob:
    """One source ends long before the other one; nothing keys, so that the order stays."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    short = env.from_collection([1, 2]).uid("short").process(Copies()).uid("short copies")
    long = env.from_collection([*range(3, 9)]).uid("long").rebalance()
    long = long.process(Copies()).uid("long copies").set_parallelism(2)
    both = short.rebalance().union(long.rebalance())
    tripled = both.map(lambda pair: (3 * pair[0], pair[1])).uid("tripled").set_parallelism(2)
    tripled.rebalance().sink_to(CallbackSink(taken.append)).uid("sink").set_parallelism(1)
    return LocalJob(env.get_stream_graph(), ManualClock(), restore=restore)


EVERYTHING = [(3 * value, copy) for value in range(1, 9) for copy in range(COPIES)]


def run_with_checkpoint(job: LocalJob, taken: list[Any]) -> tuple[Checkpoint, list[Any]]:
    """With what had come out of the job before it."""
    done: list[tuple[Checkpoint, list[Any]]] = []
    job.trigger_checkpoint(1, lambda checkpoint: done.append((checkpoint, [*taken])), pytest.fail)
    job.run()
    (result,) = done
    return result


def test_checkpoint_completes_although_any_of_the_tasks_have_ended() -> None:
    ended: set[frozenset[str]] = set()
    for steps in count():
        taken: list[Any] = []
        job = job_of(taken)
        for _ in range(steps):
            job.advance()
        if job.finished:
            break
        ended.add(frozenset(task.name for task in job.tasks if task.finished))
        checkpoint, before = run_with_checkpoint(job, taken)
        after: list[Any] = []
        job_of(after, checkpoint).run()
        assert sorted(before + after) == EVERYTHING
    assert len(ended) > 4


def unexpected(checkpoint: Checkpoint) -> None:
    pytest.fail("a checkpoint that must not be taken")


def test_checkpoint_of_a_job_that_has_ended_is_declined() -> None:
    job = job_of([])
    job.run()
    declined: list[str] = []
    job.trigger_checkpoint(7, unexpected, declined.append)
    assert declined == ["checkpoint 7 was declined: all tasks of the job have ended"]


@pytest.mark.parametrize("steps", [0, 1])
def test_checkpoint_that_is_incomplete_when_its_job_is_cancelled_is_declined(
    steps: int,
) -> None:
    job = job_of([])
    declined: list[str] = []
    job.trigger_checkpoint(7, unexpected, declined.append)
    for _ in range(steps):
        job.step()
    job.cancel()
    job.run()
    assert declined == ["checkpoint 7 was declined: the job was cancelled"]


def counting_job(final: dict[int, int], restore: Checkpoint | None = None) -> LocalJob:
    """How many copies there are of each value, which keyed state counts."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    short = env.from_collection([1, 2]).uid("short").process(Copies()).uid("short copies")
    long = env.from_collection([*range(3, 9)]).uid("long").rebalance()
    long = long.process(Copies()).uid("long copies").set_parallelism(2)
    ones = short.rebalance().union(long.rebalance()).map(lambda pair: (pair[0], 1)).uid("ones")
    keyed = ones.set_parallelism(2).key_by(lambda pair: pair[0])
    counts = keyed.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("counts").set_parallelism(2)
    counts.sink_to(CallbackSink(lambda pair: final.update([pair]))).uid("sink")
    return LocalJob(env.get_stream_graph(), ManualClock(), restore=restore)


@pytest.mark.parametrize("unaligned", [False, True])
def test_state_counts_each_record_once_wherever_the_checkpoint_is_triggered(
    unaligned: bool,
) -> None:
    """ST-06: records overtaken by unaligned barriers are counted after the restore."""
    in_flight = 0
    for steps in count():
        final: dict[int, int] = {}
        job = counting_job(final)
        for _ in range(steps):
            job.advance()
        if job.finished:
            break
        done: list[Checkpoint] = []
        job.trigger_checkpoint(1, done.append, pytest.fail, unaligned)
        while not done:
            job.advance()
        job.close()
        in_flight += sum(len(elements) for elements in done[0].in_flight.values())
        counting_job(final, done[0]).run()
        assert final == dict.fromkeys(range(1, 9), COPIES), f"after {steps} steps"
    assert (in_flight > 0) == unaligned


class Unwilling(FixedSplitsEnumerator[Any]):
    """Says no to its first checkpoint."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        if checkpoint_id == 1:
            raise ValueError("not now")
        return super().snapshot_state(checkpoint_id)


class UnwillingSource(NumberSequenceSource):
    def create_enumerator(
        self, context: EnumeratorContext[Any], clock: Clock
    ) -> SplitEnumerator[Any]:
        return Unwilling(context, [Slice(place, place + 10) for place in range(0, 50, 10)])


def test_failing_enumerator_declines_its_checkpoint_and_the_job_continues() -> None:
    taken: list[int] = []
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    willing = env.from_sequence(51, 60)
    unwilling: Source[Any] = UnwillingSource(1, 50)
    numbers = willing.union(env.from_source(unwilling, None, "unwilling"))
    numbers.sink_to(CallbackSink(taken.append))
    job = LocalJob(env.get_stream_graph(), ManualClock())
    declined: list[str] = []
    done: list[Checkpoint] = []
    job.trigger_checkpoint(1, unexpected, declined.append)
    job.trigger_checkpoint(2, done.append, pytest.fail)
    job.run()
    assert len(done) == 1
    assert "checkpoint 1 was declined: " in declined[0]
    assert "ValueError: not now" in declined[0]
    assert "enumerator of" in declined[0]
    assert sorted(taken) == [*range(1, 61)]
