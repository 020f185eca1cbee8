"""The committers of sinks: when they commit, again after restarts, and what fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from flinkray.datastream.connectors import CommitRequest, CommitterContext, SinkError
from flinkray.streaming.operators.task_services import CommitLog, TaskServices
from flinkray.streaming.sinks.sink_operators import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MOST_RETRIES,
    CommittableMessage,
    CommitterOperator,
)
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.two_phases import Shelf


def message(checkpoint_id: int | None, committable: str, subtask: int = 0) -> CommittableMessage:
    return CommittableMessage(checkpoint_id, subtask, committable)


def complete(h: OperatorHarness, checkpoint_id: int) -> None:
    h.operator.notify_checkpoint_complete(checkpoint_id)


def test_complete_checkpoints_are_committed_in_order() -> None:
    sink = Shelf()
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(1, "a"))
    h.snapshot(1)
    h.process(message(2, "b"))
    h.snapshot(2)
    h.process(message(3, "c"))
    assert sink.commits == []
    complete(h, 2)  # 1 was never confirmed by itself
    assert sink.commits == ["a", "b"]
    h.snapshot(3)
    complete(h, 3)
    assert sink.commits == ["a", "b", "c"]


def test_final_committables_wait_for_a_checkpoint_that_begins_later() -> None:
    """A checkpoint that was in progress does not contain them."""
    sink = Shelf()
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(1, "a"))
    h.snapshot(1)
    h.process(message(None, "rest"))
    h.finish()
    complete(h, 1)
    assert sink.commits == ["a"]
    assert h.operator.awaits_checkpoint
    h.snapshot(2)
    assert h.operator.awaits_checkpoint
    complete(h, 2)
    assert sink.commits == ["a", "rest"]
    assert not h.operator.awaits_checkpoint


def test_committer_without_committables_does_not_wait_for_a_checkpoint() -> None:
    h = OperatorHarness(CommitterOperator(Shelf()))
    h.finish()
    assert not h.operator.awaits_checkpoint
    assert not h.operator.is_retrying


def test_committable_that_arrives_after_its_checkpoint_has_completed_is_committed() -> None:
    sink = Shelf()
    h = OperatorHarness(CommitterOperator(sink))
    h.snapshot(4)
    complete(h, 4)
    h.process(message(4, "overtaken"))
    assert sink.commits == ["overtaken"]
    restored = Shelf()
    h = OperatorHarness(CommitterOperator(restored), restored_checkpoint_id=4)
    h.process(message(4, "overtaken"), message(5, "later"))
    assert restored.commits == ["overtaken"]


def test_restored_committables_are_committed_again_for_any_checkpoint_id() -> None:
    first = OperatorHarness(CommitterOperator(Shelf()))
    first.process(message(98, "a"), message(99, "b"))
    snapshots = [first.snapshot(99)]
    first.process(message(None, "after"))
    for restored_checkpoint_id in (99, 1):
        sink = Shelf()
        h = OperatorHarness(
            CommitterOperator(sink),
            restore=snapshots,
            restored_checkpoint_id=restored_checkpoint_id,
        )
        assert sink.commits == ["a", "b"]
        again = Shelf()
        OperatorHarness(CommitterOperator(again), restore=h.snapshot(100))
        assert again.commits == []  # it was shown that they were committed


def test_committer_gets_its_subtask_attempt_job_and_operator() -> None:
    sink = Shelf()
    OperatorHarness(
        CommitterOperator(sink),
        subtask_index=1,
        parallelism=2,
        attempt_number=3,
        job_id="ab",
        operator_id="cd",
        restored_checkpoint_id=4,
    )
    assert sink.contexts == [CommitterContext(1, 2, 3, "ab", "cd", 4)]


# --- what fails -----------------------------------------------------------------------------------


class Failing:
    """Of the requests named, the first attempts fail."""

    def __init__(self, **failures: int) -> None:
        self.left = failures
        self.retries: list[int] = []

    def __call__(self, request: CommitRequest[Any]) -> None:
        if self.left.get(request.committable, 0):
            self.left[request.committable] -= 1
            self.retries.append(request.number_of_retries)
            request.retry_later(OSError("no way"))


def test_retried_commit_does_not_block_other_commits() -> None:
    failing = Failing(a=2)
    sink = Shelf(failing)
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(1, "a"), message(1, "b"))
    complete(h, 1)
    assert sink.commits == ["b"]
    assert h.operator.is_retrying
    h.process(message(2, "c"))
    complete(h, 2)
    assert sink.commits == ["b", "c"]  # and "a" was not tried with it
    h.time_service.input_ended()
    h.processing_time(FIRST_PAUSE)
    assert sink.commits == ["b", "c"]
    h.processing_time(3 * FIRST_PAUSE - 1)
    assert sink.commits == ["b", "c"]
    h.processing_time(3 * FIRST_PAUSE)
    assert sink.commits == ["b", "c", "a"]
    assert failing.retries == [0, 1]
    assert not h.operator.is_retrying


def test_updated_commit_request_is_retried_and_stored_in_its_new_form() -> None:
    def half(request: CommitRequest[Any]) -> None:
        if request.committable == "ab":
            request.update_and_retry_later("b", OSError("only a"))

    sink = Shelf(half)
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(1, "ab"))
    complete(h, 1)
    restored = Shelf()
    OperatorHarness(CommitterOperator(restored), restore=h.snapshot(2))
    assert restored.commits == ["b"]
    h.processing_time(FIRST_PAUSE)
    assert sink.commits == ["b"]


def test_commits_of_an_ordered_sink_wait_for_the_retry_of_an_earlier_commit() -> None:
    sink = Shelf(Failing(b=1))
    sink.commits_in_order = True
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(2, "c", 1), message(1, "b", 1), message(1, "a", 0), message(2, "d", 0))
    complete(h, 2)
    assert sink.commits == ["a"]
    h.process(message(3, "e"))
    complete(h, 3)
    assert sink.commits == ["a"]
    h.processing_time(FIRST_PAUSE)
    assert sink.commits == ["a", "b", "d", "c", "e"]


def test_last_failed_commit_retry_fails_the_task_with_the_cause() -> None:
    h = OperatorHarness(CommitterOperator(Shelf(Failing(a=100))))
    h.process(message(1, "a"))
    complete(h, 1)
    now = 0
    for retry in range(MOST_RETRIES - 1):
        now += min(FIRST_PAUSE << retry, LONGEST_PAUSE)
        h.processing_time(now)
    assert now == 32_700
    with pytest.raises(SinkError, match=r"cannot commit 'a', tried 11 times: no way") as failure:
        h.processing_time(now + LONGEST_PAUSE)
    assert isinstance(failure.value.__cause__, OSError)


def test_commit_failure_of_unknown_reason_fails_the_task_at_once() -> None:
    sink = Shelf(lambda r: r.signal_failed_with_unknown_reason(ValueError("no such table")))
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(1, "a"))
    with pytest.raises(
        SinkError, match="cannot commit 'a': no such table; what was prepared stays"
    ):
        complete(h, 1)


def test_expired_committable_is_logged_and_the_job_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Shelf(lambda r: r.signal_failed_with_known_reason(ValueError("expired")))
    h = OperatorHarness(CommitterOperator(sink))
    h.process(message(1, "a"))
    with caplog.at_level(logging.ERROR):
        complete(h, 1)
    assert "could never be committed: 'a': expired" in caplog.text
    assert counts(h)["failedCommittables"] == 1
    assert OperatorHarness(CommitterOperator(Shelf()), restore=h.snapshot(2)).operator is not None
    assert not h.operator.awaits_checkpoint


def test_metrics_count_the_outcomes_of_committables() -> None:
    def outcome(request: CommitRequest[Any]) -> None:
        if request.committable == "done before":
            request.signal_already_committed()
        elif request.number_of_retries == 0 and request.committable == "later":
            request.retry_later(OSError())

    h = OperatorHarness(CommitterOperator(Shelf(outcome)))
    h.process(*(message(1, text) for text in ("done before", "later", "now")), message(2, "next"))
    complete(h, 1)
    assert counts(h) == {
        "totalCommittables": 4,
        "successfulCommittables": 1,
        "alreadyCommittedCommittables": 1,
        "failedCommittables": 0,
        "retriedCommittables": 1,
        "pendingCommittables": 2,
    }


def counts(h: OperatorHarness) -> dict[str, int]:
    metrics = h.operator.context.metrics.all()
    return {
        name.rpartition(".")[2]: (
            metric.get_count() if hasattr(metric, "get_count") else metric.get_value()
        )
        for name, metric in metrics.items()
    }


# --- without checkpoints --------------------------------------------------------------------------


class Noted(CommitLog):
    def __init__(self) -> None:
        self.noted: Sequence[Any] | None = None

    def settle(self, committables: Sequence[Any]) -> Sequence[Any]:
        if self.noted is None:
            self.noted = list(committables)
        return self.noted


def at_end(sink: Shelf, log: CommitLog) -> OperatorHarness:
    class Services(TaskServices):
        def commit_log(self, operator_id: str) -> CommitLog:
            return log

    return OperatorHarness(CommitterOperator(sink, at_end=True), services=Services())


def test_without_checkpoints_committables_are_recorded_before_the_commit_at_the_end() -> None:
    log = Noted()
    sink = Shelf(lambda _: noted_by_then.append(log.noted is not None))
    noted_by_then: list[bool] = []
    h = at_end(sink, log)
    h.process(message(None, "b", 1))
    h.process(message(None, "a", 0))
    assert sink.commits == []
    h.finish()
    assert (sink.commits, noted_by_then) == (["a", "b"], [True, True])
    assert not h.operator.awaits_checkpoint


def test_later_attempt_commits_only_the_committables_recorded_by_the_first_attempt() -> None:
    log = Noted()
    first = at_end(Shelf(), log)
    first.process(message(None, "first"))
    first.finish()
    sink = Shelf()
    second = at_end(sink, log)
    second.process(message(None, "second"))
    second.finish()
    assert sink.commits == ["first"]


def test_failed_commit_without_checkpoints_is_retried_after_the_end() -> None:
    sink = Shelf(Failing(a=1))
    h = at_end(sink, Noted())
    h.process(message(None, "a"))
    h.finish()
    h.time_service.input_ended()
    assert h.operator.is_retrying
    h.processing_time(FIRST_PAUSE)
    assert sink.commits == ["a"]
    assert not h.operator.is_retrying


def test_committer_emits_no_watermark_or_status_and_is_closed_once() -> None:
    sink = Shelf()
    h = OperatorHarness(CommitterOperator(sink))
    h.watermark(5)
    h.status(True)
    h.finish()
    assert h.output() == []
    h.close()
    h.close()
    assert sink.closed == ["committer"]
