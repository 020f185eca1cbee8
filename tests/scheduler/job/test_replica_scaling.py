"""Replicas of a model: how many run, and what happens when one fails or is not needed."""

from __future__ import annotations

from dataclasses import replace

from flinkray.scheduler.graph.job_graph import MODEL, ExponentialDelayRestart, Invokable
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.replica_scaling import CALM
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.graphs import job, python_vertex
from tests.scheduler.tasks_under_test import TasksUnderTest

SECOND = 1000


class Model(TasksUnderTest):
    """Replicas from *fewest* to *most*, whose load the test says."""

    def __init__(self, fewest: int, most: int) -> None:
        vertex = replace(
            python_vertex("m", most, min_parallelism=fewest, max_parallelism=most),
            invokable=Invokable(MODEL, b""),
        )
        super().__init__(job(vertices=[vertex], restart_strategy=ExponentialDelayRestart()))
        self.spent: dict[str, tuple[int, int, int]] = {}

    def works(self, busy: float, pressed: float = 0.0, seconds: int = 1) -> None:
        """Each running replica works for these parts of so many seconds. New ones run at once."""
        for _ in range(seconds):
            metrics = {}
            for attempt in self.tasks:
                before = self.spent.get(str(attempt), (0, 0, 0))
                share = (busy, pressed, 1 - busy - pressed)
                now = tuple(b + int(s * SECOND) for b, s in zip(before, share, strict=True))
                self.spent[str(attempt)] = now  # type: ignore[assignment]
                metrics[attempt] = IOMetrics(0, None, None, None, *now)
            self.tell(t.ReplicasMeasured(metrics))
            if self.wanted:
                known = set(self.tasks)
                self.give()
                self.report([a for a in self.tasks if a not in known], ExecutionState.RUNNING)

    @property
    def number(self) -> int:
        return len(self.tasks)


def running(fewest: int, most: int) -> Model:
    model = Model(fewest, most)
    model.run()
    return model


def test_least_number_of_replicas_runs_first() -> None:
    model = running(2, 5)
    assert (model.number, model.status) == (2, JobStatus.RUNNING)


def test_replicas_are_added_while_requests_wait_up_to_the_largest_number() -> None:
    model = running(1, 5)
    model.works(0.9, seconds=20)
    assert model.number == 1, "all work, and nothing waits"
    numbers = []
    for _ in range(30):
        model.works(0.1, 0.9)
        numbers.append(model.number)
    assert sorted(set(numbers)) == [1, 2, 3, 4, 5]
    assert numbers == sorted(numbers)


def test_replicas_are_stopped_one_by_one_after_a_calm_time() -> None:
    model = running(1, 3)
    model.works(0.0, 1.0, seconds=20)
    assert model.number == 3
    model.works(0.1, seconds=int(CALM))
    model.works(0.0, 0.4, seconds=3)
    model.works(0.1, seconds=int(CALM))
    assert model.number == 3, "it was not calm for long enough at a time"
    model.works(0.1, seconds=20)
    assert model.cancelled(model.log) == "m3#0"
    model.confirm_cancellations()
    model.works(0.1, seconds=3 * int(CALM))
    model.confirm_cancellations()
    assert (model.number, model.status) == (1, JobStatus.RUNNING)
    assert model.cancelled(model.log) == "m3#0 m2#0"
    assert len(model.reserved) == 1, "their slots are given back"


def test_stopped_replica_is_started_again_as_another_attempt() -> None:
    model = running(1, 2)
    model.works(0.0, 1.0, seconds=5)
    model.works(0.0, seconds=2 * int(CALM))
    model.confirm_cancellations()
    assert model.number == 1
    model.works(0.0, 1.0, seconds=5)
    assert model.number == 2
    assert model.states() == "m1:RUNNING#0 m2:RUNNING#1"


def test_failed_replica_restarts_alone_and_only_if_it_is_needed() -> None:
    model = running(2, 3)
    model.fail("m2")
    assert model.status.name == "RESTARTING"
    model.restart()
    model.report("m2", ExecutionState.RUNNING)
    assert model.states() == "m1:RUNNING#0 m2:RUNNING#1 m3:CREATED#0"
    assert model.status.name == "RUNNING"


def test_number_of_replicas_stays_while_one_of_them_restarts() -> None:
    model = running(1, 3)
    model.works(0.0, 1.0, seconds=4)
    assert model.number == 2
    model.fail("m1")
    for _ in range(2 * int(CALM)):
        model.works(0.0)
    assert model.number == 1
    assert model.cancelled(model.log) == ""
    model.restart()
    model.report("m1", ExecutionState.RUNNING)
    model.works(0.0, 1.0, seconds=6)
    assert model.number == 3


def test_cancelled_job_ends_although_not_all_replicas_have_run() -> None:
    model = running(1, 4)
    model.tell(t.CancelJob())
    model.confirm_cancellations()
    assert model.ended is not None
    assert model.status is JobStatus.CANCELED
