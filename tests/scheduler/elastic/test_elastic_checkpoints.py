"""Elastic jobs that take checkpoints: another parallelism goes on from the latest one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.checkpoint.handles import InlineState, TaskState
from flinkray.core.errors import JobSubmissionError
from flinkray.scheduler.checkpoints.actions import RestoreCoordinators
from flinkray.scheduler.checkpoints.messages import AcknowledgeCheckpoint
from flinkray.scheduler.graph.job_graph import JobGraph, SchedulerMode
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job.job_scheduler_actions import DeployTasks
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import JOB, one, only
from tests.scheduler.checkpoints import checkpointed
from tests.scheduler.elastic.test_elastic_job_scheduler import ElasticUnderTest
from tests.scheduler.graphs import stream_vertex
from tests.scheduler.job.checkpointed_job import (
    EVERY_MINUTE,
    Actions,
    CheckpointedJob,
    checkpointed_graph,
)


def graph() -> JobGraph:
    """``a -> b``, ``a`` from 1 to 2 and ``b`` from 2 to 4."""
    return checkpointed_graph(
        stream_vertex("a", 2), stream_vertex("b", 4, min_parallelism=2), mode=SchedulerMode.ADAPTIVE
    )


class ElasticCheckpoints(ElasticUnderTest, CheckpointedJob):
    """Subtasks of ``b`` have keyed state."""

    def keyed(self, checkpoint_id: int) -> Actions:
        """All tasks acknowledge."""
        names = [self.name(attempt_id) for attempt_id in self.tasks]
        of_b = checkpointed.keyed_by_range(
            f"/{checkpoint_id}",
            128,
            names.count("b1") and sum(name.startswith("b") for name in names),
        )
        answers = []
        for attempt_id in self.tasks:
            name = self.name(attempt_id)
            state = TaskState({"b": of_b[int(name[1:]) - 1]}) if name[0] == "b" else None
            answers.append(AcknowledgeCheckpoint(JOB, checkpoint_id, attempt_id, state))
        return self.tell("tasks_reported", answers)

    def key_groups(self) -> dict[str, list[tuple[int, int]]]:
        """Task -> the ranges of keyed state that it begins with."""
        return {
            self.name(attempt_id): [
                (handle.first_key_group, handle.last_key_group)
                for handle in task.restored.state.operators["b"].keyed_state
            ]
            for attempt_id, task in self.tasks.items()
            if task.restored is not None and task.restored.state is not None
        }


def running_with(slots: int) -> ElasticCheckpoints:
    """It has taken one checkpoint."""
    job = ElasticCheckpoints(graph=graph())
    job.tell("start")
    actions = job.has(slots)
    if slots < 4:
        job.timer(actions)
    job.report(list(job.tasks), ExecutionState.RUNNING)
    job.trigger()
    job.keyed(1)
    job.store()
    return job


def test_job_that_grows_goes_on_from_the_latest_checkpoint() -> None:
    job = running_with(2)
    job.now += 100.0
    job.has(4)
    assert job.status is JobStatus.RESTARTING
    actions = job.stopped()
    assert job.tasks_of(actions) == "a1#2 a2#2 b1#2 b2#2 b3#2 b4#2"
    assert job.key_groups() == {
        "b1": [(0, 31)],
        "b2": [(32, 63)],
        "b3": [(64, 95)],
        "b4": [(96, 127)],
    }
    restored = one(job.log, RestoreCoordinators)
    assert restored == RestoreCoordinators(1, {"a": InlineState(b"a at 1")}, 1)
    assert {task.restores for task in job.tasks.values()} == {1}
    job.report(list(job.tasks), ExecutionState.RUNNING)
    orders = job.orders(job.trigger())
    assert sorted(who.split("#")[0] for _, who in orders) == ["a1", "a2"]


def test_job_that_shrinks_after_a_loss_goes_on_from_the_latest_checkpoint() -> None:
    job = running_with(4)
    job.has(3)
    job.timer(job.restarted())
    assert job.key_groups() == {
        "b1": [(0, 31), (32, 42)],
        "b2": [(43, 63), (64, 85)],
        "b3": [(86, 95), (96, 127)],
    }
    assert one(job.log, RestoreCoordinators).checkpoint_id == 1


def test_scaling_waits_until_it_is_known_whether_a_checkpoint_is_stored() -> None:
    job = running_with(2)
    job.trigger()
    job.keyed(2)
    job.now += 100.0
    job.has(4)
    assert only(job.stopped(), DeployTasks) == []
    job.store()
    job.answer()
    assert {task.restored.checkpoint_id for task in job.tasks.values() if task.restored} == {2}
    assert len(job.tasks) == 6


def test_job_that_another_job_master_has_left_begins_with_its_checkpoint() -> None:
    before = running_with(4)
    left = before.scheduler._checkpoints._coordinator.retained  # type: ignore[attr-defined]
    job = ElasticCheckpoints(graph=graph())
    job.scheduler.checkpoints_recovered(left)
    job.tell("start")
    job.timer(job.has(2))
    assert job.key_groups() == {"b1": [(0, 31), (32, 63)], "b2": [(64, 95), (96, 127)]}
    assert one(job.log, RestoreCoordinators).restores == 1


def test_unaligned_checkpoints_of_an_adaptive_job_are_refused() -> None:
    unaligned = replace(graph(), checkpoints=replace(EVERY_MINUTE, is_unaligned=True))
    with pytest.raises(JobSubmissionError, match=r"unaligned\.enabled at false"):
        validate(unaligned)
    validate(replace(unaligned, scheduler_mode=SchedulerMode.DEFAULT))
    validate(graph())
