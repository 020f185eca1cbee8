"""Properties, configuration, plan, requests and tolerated failures: one rule at a time."""

from __future__ import annotations

import pickle

import pytest

from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.job_options import ENDLESS
from flinkray.rpc.wire.codec import decode, encode
from flinkray.scheduler.checkpoints.failures import (
    CheckpointError,
    CheckpointFailureManager,
    CheckpointFailureReason,
)
from flinkray.scheduler.checkpoints.plan import (
    TasksMissingError,
    calculate_plan,
    check_all_is_held,
    check_queries_are_held,
)
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    savepoint,
    synchronous_savepoint,
)
from flinkray.scheduler.checkpoints.trigger_decisions import (
    CheckpointRequest,
    CheckpointRequestDecider,
    PeriodicTrigger,
    TooEarly,
)
from flinkray.scheduler.graph.checkpoint_configuration import (
    LONGEST_PAUSE,
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import JOB
from tests.scheduler.checkpoints.job_with_checkpoints import Topology

Reason = CheckpointFailureReason
CHECKPOINT = CheckpointProperties(SnapshotKind.CHECKPOINT)
SAVEPOINT = savepoint()
UNFORCED = savepoint(is_forced=False)
STOP = synchronous_savepoint(is_drain=False)
ENDS = [JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED]

# --- properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "discarded"),
    [
        (CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION, [True, True, True, False]),
        (CheckpointRetentionPolicy.RETAIN_ON_FAILURE, [True, True, False, False]),
        (CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION, [True, False, False, False]),
    ],
)
def test_job_end_discards_the_checkpoints_that_the_retention_policy_does_not_retain(
    policy: CheckpointRetentionPolicy, discarded: list[bool]
) -> None:
    """CP-29: a suspended job keeps all its checkpoints, because its next JobMaster restores one."""
    properties = CheckpointProperties(SnapshotKind.CHECKPOINT, retention=policy)
    assert [properties.is_discarded_at(status) for status in ENDS] == discarded
    assert properties.is_discarded_when_subsumed


@pytest.mark.parametrize("properties", [SAVEPOINT, UNFORCED, STOP])
def test_savepoints_are_never_discarded(properties: CheckpointProperties) -> None:
    """CP-29"""
    assert not any(properties.is_discarded_at(status) for status in ENDS)
    assert not properties.is_discarded_when_subsumed


def test_only_a_stop_with_savepoint_may_drain_and_end_event_time() -> None:
    """CP-21"""
    assert synchronous_savepoint(is_drain=True).is_drain
    with pytest.raises(ValueError, match="end of event time"):
        CheckpointProperties(SnapshotKind.SAVEPOINT, is_drain=True)
    with pytest.raises(ValueError, match="synchronous"):
        CheckpointProperties(SnapshotKind.CHECKPOINT, is_synchronous=True)


def test_job_recovers_from_checkpoints_and_its_stop_savepoint_but_no_other_savepoint() -> None:
    """CP-19"""
    recovered = [p.is_recovered_from for p in (CHECKPOINT, SAVEPOINT, STOP)]
    assert recovered == [True, False, True]


# --- configuration --------------------------------------------------------------------------------


def test_no_failed_checkpoint_is_tolerated_by_default_and_any_number_with_minus_one() -> None:
    """CP-23"""
    assert CheckpointConfiguration().tolerated == 0
    assert CheckpointConfiguration(tolerable_failures=-1).tolerated == ENDLESS
    assert CheckpointConfiguration(tolerable_failures=3).tolerated == 3


def test_default_configuration_of_checkpoints_equals_that_of_flink() -> None:
    """CP-23"""
    default = CheckpointConfiguration()
    assert (default.timeout, default.min_pause) == (600.0, 0.0)
    assert (default.max_concurrent, default.max_retained) == (1, 1)


def test_checkpoint_period_is_at_least_the_minimum_pause_and_is_bounded() -> None:
    """CP-10"""
    assert CheckpointConfiguration(interval=1.0, min_pause=5.0).period == 5.0
    assert CheckpointConfiguration(interval=5.0, min_pause=1.0).period == 5.0
    assert CheckpointConfiguration(interval=1.0, min_pause=1e12).period == LONGEST_PAUSE
    assert CheckpointConfiguration().period is None


@pytest.mark.parametrize(
    "values",
    [
        {"interval": 0.0},
        {"timeout": 0.0},
        {"min_pause": -1.0},
        {"alignment_timeout": -1.0},
        {"max_concurrent": 0},
        {"max_retained": 0},
        {"tolerable_failures": -2},
        {"is_unaligned": True, "is_exactly_once": False},
    ],
)
def test_invalid_checkpoint_configuration_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"checkpoint|failures"):
        CheckpointConfiguration(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        CheckpointConfiguration(interval=1.0),
        STOP,
        CheckpointError(JOB, Reason.CHECKPOINT_DECLINED, 7, "no room"),
    ],
)
def test_checkpoint_messages_and_errors_survive_encoding_and_pickling(value: object) -> None:
    for copy in (decode(encode(value)), pickle.loads(pickle.dumps(value))):
        assert type(copy) is type(value)
        assert str(copy) == str(value)


def test_checkpoint_error_names_the_checkpoint_and_the_reason() -> None:
    error = CheckpointError(JOB, Reason.CHECKPOINT_DECLINED, 7, "no room")
    assert str(error).endswith("checkpoint 7 failed: a task declined it: no room")
    without = CheckpointError(JOB, Reason.CHECKPOINT_EXPIRED)
    assert str(without).endswith("a checkpoint failed: it expired before it was complete")


# --- plan -----------------------------------------------------------------------------------------


def test_checkpoint_plan_triggers_the_sources_and_waits_for_all_tasks() -> None:
    """CP-01"""
    topology = Topology(2, 2)
    plan = calculate_plan(topology, allows_finished=True)
    assert plan.to_trigger == tuple(topology.attempts[:2])
    assert plan.running == dict(
        zip(topology.attempts, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True)
    )


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "state",
    [s for s in ExecutionState if s not in (ExecutionState.RUNNING, ExecutionState.FINISHED)],
)
def test_checkpoint_plan_fails_when_a_task_is_not_running(
    number: int, state: ExecutionState
) -> None:
    """CP-01: whether the task is to be triggered or only to acknowledge."""
    topology = Topology(2, 2)
    topology.vertices[number].states[1] = state
    with pytest.raises(TasksMissingError, match=rf"{'ab'[number]} \(2/2\) is {state.value}"):
        calculate_plan(topology, allows_finished=True)


def test_checkpoint_leaves_out_finished_tasks_only_if_the_job_allows_finished_tasks() -> None:
    """CP-01"""
    topology = Topology(2, 2)
    topology.vertices[0].states[1] = ExecutionState.FINISHED
    plan = calculate_plan(topology, allows_finished=True)
    assert plan.to_trigger == (topology.attempts[0],)
    assert list(plan.running) == [topology.attempts[i] for i in (0, 2, 3)]
    assert [v.finished for v in plan.vertices] == [{1}, set()]
    with pytest.raises(TasksMissingError, match="FINISHED"):
        calculate_plan(topology, allows_finished=False)


def test_tasks_whose_producers_have_all_finished_are_triggered() -> None:
    """CP-01: a task with a running producer gets its barriers from the producer."""
    one_by_one, all_to_all = Topology(2, 2, pointwise=True), Topology(2, 2)
    for topology in (one_by_one, all_to_all):
        topology.vertices[0].states[1] = ExecutionState.FINISHED
    triggered = calculate_plan(one_by_one, allows_finished=True).to_trigger
    assert triggered == (one_by_one.attempts[0], one_by_one.attempts[3])
    triggered = calculate_plan(all_to_all, allows_finished=True).to_trigger
    assert triggered == (all_to_all.attempts[0],)
    all_to_all.vertices[0].states[0] = ExecutionState.FINISHED
    triggered = calculate_plan(all_to_all, allows_finished=True).to_trigger
    assert triggered == tuple(all_to_all.attempts[2:])


@pytest.mark.parametrize(
    ("a", "b", "is_held"),
    [("", "", True), ("a", "", False), ("a", "b", False), ("aa", "b", False), ("aa", "bb", True)],
)
def test_savepoint_is_refused_while_records_of_a_finished_task_are_only_in_spark(
    a: str, b: str, is_held: bool
) -> None:
    """Vertex a hands records to Spark, and vertex b brings them back. *a* and *b*: one character
    for each finished subtask."""
    topology = Topology(2, 2)
    giver, taker = topology.vertices
    giver.hands_over_to, taker.brings_back_of = ("one", "other"), "other"
    for vertex, finished in zip(topology.vertices, (a, b), strict=True):
        vertex.states[: len(finished)] = [ExecutionState.FINISHED] * len(finished)
    if is_held:
        check_all_is_held(topology)
    else:
        with pytest.raises(
            TasksMissingError, match="a has finished, and Spark still processes its records"
        ):
            check_all_is_held(topology)
    taker.brings_back_of = "another"
    check_all_is_held(topology)
    topology.unfinished = ["one"]
    if a:
        with pytest.raises(
            TasksMissingError, match="a has finished, and Spark still processes its records"
        ):
            check_all_is_held(topology)
    else:
        check_all_is_held(topology)


@pytest.mark.parametrize(
    ("finished", "is_held"), [((), True), ((1, 2), True), ((0,), False), ((0, 1, 2), True)]
)
def test_savepoint_is_refused_if_only_the_first_spark_query_reader_may_have_finished(
    finished: tuple[int, ...], is_held: bool
) -> None:
    """Only the first reader saves what Spark has noted. If all readers have finished, nothing is
    left to save."""
    topology = Topology(3, 1)
    source, sink = topology.vertices
    source.brings_back_of = "spark"
    for subtask in finished:
        source.states[subtask] = ExecutionState.FINISHED
    if is_held:
        check_queries_are_held(topology)
    else:
        with pytest.raises(
            TasksMissingError, match="the first task of a, which adds the state of the Spark query"
        ):
            check_queries_are_held(topology)
        sink.hands_over_to = ("spark",)  # then the stage makes nothing by itself
        check_queries_are_held(topology)


def test_checkpoint_plan_fails_when_all_tasks_have_finished() -> None:
    """CP-01"""
    topology = Topology()
    for each in topology.vertices:
        each.states[0] = ExecutionState.FINISHED
    with pytest.raises(TasksMissingError, match="all tasks have finished"):
        calculate_plan(topology, allows_finished=True)


# --- requests -------------------------------------------------------------------------------------


def request(
    number: int, properties: CheckpointProperties = CHECKPOINT, *, periodic: bool = False
) -> CheckpointRequest:
    return CheckpointRequest(number, properties, None if periodic else number)


def decider(*requests: CheckpointRequest, most: int = 1000) -> CheckpointRequestDecider:
    made = CheckpointRequestDecider(1, most)
    for each in requests:
        assert made.add(each) is None
    return made


def drained(made: CheckpointRequestDecider) -> list[int]:
    return [each.number for each in made.drain()]


def test_user_requests_are_served_before_periodic_and_savepoints_before_checkpoints() -> None:
    """CP-16"""
    requests = [
        request(1, periodic=True),
        request(2),
        request(3, UNFORCED),
        request(4, SAVEPOINT),
        request(5),
        request(6, SAVEPOINT),
    ]
    assert drained(decider(*requests)) == [4, 6, 3, 2, 5, 1]
    assert drained(decider(*reversed(requests))) == [4, 6, 3, 2, 5, 1]


def test_request_queue_over_its_limit_drops_the_lowest_ranked_request() -> None:
    """CP-16"""
    first, second = request(1), request(2)
    made = decider(first, second, most=2)
    assert made.add(request(3)) == request(3)
    assert made.add(request(4, SAVEPOINT)) == second
    assert made.add(request(5, periodic=True)) == request(5, periodic=True)
    assert drained(made) == [4, 1]
    assert len(made) == 0


def test_second_waiting_periodic_request_is_dropped() -> None:
    """CP-16: missed periodic checkpoints are not caught up by several in a row."""
    made = decider(request(1, periodic=True))
    assert made.add(request(2, periodic=True)) == request(2, periodic=True)
    assert drained(made) == [1]


def test_minimum_pause_drops_periodic_requests_and_no_others() -> None:
    """CP-17"""
    early = decider(request(1, periodic=True))
    assert early.next(number_of_pending=0, is_pause_over=False) == TooEarly(
        request(1, periodic=True)
    )
    assert len(early) == 0
    for properties in (CHECKPOINT, SAVEPOINT, UNFORCED, STOP):
        chosen = decider(request(1, properties)).next(number_of_pending=0, is_pause_over=False)
        assert chosen == request(1, properties)
    chosen = decider(request(1, periodic=True)).next(number_of_pending=0, is_pause_over=True)
    assert chosen == request(1, periodic=True)


def test_only_forced_savepoints_start_beyond_the_limit_of_pending_checkpoints() -> None:
    """CP-17"""
    for waiting in (request(1), request(1, UNFORCED), request(1, periodic=True)):
        made = decider(waiting)
        assert made.next(number_of_pending=1, is_pause_over=True) is None
        assert made.next(number_of_pending=0, is_pause_over=True) == waiting
    forced = request(1, SAVEPOINT)
    assert decider(forced).next(number_of_pending=9, is_pause_over=True) == forced


# --- periodic triggers ----------------------------------------------------------------------------


def test_the_first_periodic_checkpoint_is_due_at_random_between_pause_and_interval() -> None:
    """CP-10"""
    config = CheckpointConfiguration(interval=10.0, min_pause=4.0)
    for random, delay in ((0.0, 4.0), (0.5, 7.0), (0.99, 9.94)):
        assert PeriodicTrigger(config, iter([random]).__next__).start() == pytest.approx(delay)


def test_periodic_checkpoint_timer_that_was_replaced_or_stopped_triggers_nothing() -> None:
    """CP-11"""
    periodic = PeriodicTrigger(CheckpointConfiguration(interval=10.0), lambda: 0.0)
    periodic.start()
    first = periodic.number
    assert periodic.start() is None
    assert periodic.fired(first) == 10.0
    assert periodic.fired(first) is None
    second = periodic.number
    periodic.stop()
    assert periodic.fired(second) is None
    assert periodic.fired(periodic.number) is None
    assert periodic.start() == 0.0
    assert periodic.fired(second) is None


# --- tolerated failures ---------------------------------------------------------------------------


def failures(manager: CheckpointFailureManager, reason: Reason, *ids: int) -> list[bool]:
    """Whether the job is to fail, by checkpoint."""
    return [manager.failed(CHECKPOINT, reason, each, is_triggered=True) is not None for each in ids]


def test_job_fails_if_one_more_checkpoint_in_a_row_fails_than_tolerated() -> None:
    """CP-23"""
    expired = Reason.CHECKPOINT_EXPIRED
    assert failures(CheckpointFailureManager(0), expired, 1) == [True]
    manager = CheckpointFailureManager(2)
    assert failures(manager, expired, 1, 2) == [False, False]
    manager.completed(3)
    assert failures(manager, expired, 4, 5, 6, 7) == [False, False, True, False]
    assert failures(CheckpointFailureManager(ENDLESS), expired, *range(99)) == [False] * 99


def test_failed_checkpoint_older_than_the_last_completed_one_does_not_count() -> None:
    """CP-23"""
    manager = CheckpointFailureManager(0)
    manager.completed(5)
    assert failures(manager, Reason.CHECKPOINT_DECLINED, 4, 5) == [False, True]


@pytest.mark.parametrize("reason", Reason)
def test_only_failures_caused_by_the_checkpoint_count_towards_the_tolerance(
    reason: Reason,
) -> None:
    """CP-22, CP-23: as in Flink's CheckpointFailureReason."""
    counted = {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_EXPIRED,
        Reason.CHECKPOINT_DECLINED,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
    assert failures(CheckpointFailureManager(0), reason, 1) == [reason in counted]


def test_failed_savepoint_fails_the_job_only_if_it_was_to_stop_the_job() -> None:
    """CP-20: also not if the tasks were never triggered or are restarted anyway."""
    manager = CheckpointFailureManager(0)
    declined = Reason.CHECKPOINT_DECLINED
    assert manager.failed(SAVEPOINT, declined, 1, is_triggered=True) is None
    assert manager.failed(STOP, declined, 2, is_triggered=False) is None
    assert manager.failed(STOP, Reason.TASK_FAILURE, 2, is_triggered=True) is None
    assert manager.failed(STOP, declined, 3, is_triggered=True) is not None
