"""Where queryable states are, as the JobScheduler knows it: registered, moved, gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.errors import AttemptDisposedError, FlinkRayError
from flinkray.core.ids import ExecutionAttemptID, JobID, KvStateID
from flinkray.core.key_group_ranges import key_group_range
from flinkray.core.kv_states import (
    KvStateJobNotFoundError,
    KvStateLocation,
    KvStateNameClashError,
    KvStateRegistration,
    UnknownKvStateLocationError,
)
from flinkray.rpc.wire import codec
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import CancelTasks
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.builders import JOB, OTHER_GRAPH, OTHER_JOB, id_of, only
from tests.scheduler.graphs import job, python_vertex, vertex_id
from tests.scheduler.tasks_under_test import TasksUnderTest

GROUPS = 128
_numbers = iter(range(1, 10_000))


def running(restarts: int = 5, a: int = 2) -> TasksUnderTest:
    """Two vertices, of several regions."""
    vertices = (python_vertex("a", a, max_parallelism=GROUPS), python_vertex("b", 2))
    return TasksUnderTest(
        job(vertices=vertices, restart_strategy=FixedDelayRestart(restarts, 1.0))
    ).run()


def registration(
    tasks: TasksUnderTest,
    task: str | ExecutionAttemptID,
    name: str = "totals",
    *,
    operator: str = "op",
    job_id: JobID = JOB,
) -> KvStateRegistration:
    """Of the key groups that the task has."""
    attempt = tasks.attempt(task) if isinstance(task, str) else task
    vertex = next(v for v in tasks.graph.vertices if v.vertex_id == attempt.vertex.job_vertex_id)
    groups = key_group_range(GROUPS, vertex.parallelism, attempt.vertex.subtask_index)
    kv_state_id = id_of(KvStateID, next(_numbers))
    address = f"{tasks.where.get(attempt)}/taskprocess"
    return KvStateRegistration(
        job_id, attempt, operator, *groups, name, kv_state_id, address, "value", "LONG"
    )


def register(tasks: TasksUnderTest, *registrations: KvStateRegistration) -> list[object]:
    return [*tasks.tell(t.KvStatesRegistered(tuple(registrations)))]


def unregister(tasks: TasksUnderTest, *registrations: KvStateRegistration) -> None:
    assert tasks.tell(t.KvStatesUnregistered(tuple(registrations))) == []


def location(tasks: TasksUnderTest, name: str = "totals") -> KvStateLocation:
    return tasks.scheduler.kv_states.location(JOB, name)


def refusal(
    tasks: TasksUnderTest, registration: KvStateRegistration
) -> FlinkRayError | ValueError | None:
    return tasks.scheduler.kv_states.refusal(registration)


def is_there(tasks: TasksUnderTest, name: str = "totals") -> bool:
    try:
        location(tasks, name)
    except UnknownKvStateLocationError:
        return False
    return True


def test_location_of_a_queryable_state_has_ids_and_addresses_of_all_key_groups() -> None:
    """QS-01, QS-05."""
    tasks = running()
    held = {}
    for name in ("one", "two", "three"):
        held[name] = [registration(tasks, task, name) for task in ("a1", "a2")]
        register(tasks, *held[name])
    for name, registrations in held.items():
        found = location(tasks, name)
        assert (found.job_id, found.vertex_id, found.name) == (JOB, vertex_id("a"), name)
        assert found.number_of_key_groups == GROUPS
        assert found.number_of_registered_key_groups == GROUPS
        for group in range(GROUPS):
            owner = registrations[0 if group in registrations[0].key_groups else 1]
            place = found.place_of(group)
            assert place is not None
            assert (place.kv_state_id, place.server_address) == (
                owner.kv_state_id,
                owner.server_address,
            )
        assert codec.decode(codec.encode(found)) == found
    for name, (first, second) in held.items():
        unregister(tasks, first)
        assert location(tasks, name).place_of(0) is None
        assert location(tasks, name).number_of_registered_key_groups == GROUPS // 2
        unregister(tasks, second)
        assert not is_there(tasks, name)


def test_second_registration_of_a_key_group_range_replaces_the_first() -> None:
    """QS-05."""
    tasks = running()
    register(tasks, *(registration(tasks, task) for task in ("a1", "a2")))
    again = registration(tasks, "a1")
    register(tasks, again)
    found = location(tasks)
    assert found.number_of_registered_key_groups == GROUPS
    place = found.place_of(0)
    assert place is not None
    assert place.kv_state_id == again.kv_state_id


@pytest.mark.parametrize("group", [-1, GROUPS])
def test_looking_up_an_unknown_key_group_raises_an_index_error(group: int) -> None:
    tasks = running()
    register(tasks, registration(tasks, "a1"))
    with pytest.raises(IndexError, match=f"128 key groups, and no {group}"):
        location(tasks).place_of(group)


@pytest.mark.parametrize("second", ["b1", "a2"])
def test_state_name_registered_by_a_second_operator_fails_the_job_without_restarts(
    second: str,
) -> None:
    """QS-02: also if it is another operator of the same vertex."""
    tasks = running()
    register(tasks, registration(tasks, "a1"))
    clash = registration(tasks, second, operator="other")
    error = refusal(tasks, clash)
    assert isinstance(error, KvStateNameClashError)
    expected = "has already been registered by another operator (op of vertex 'a')"
    assert expected in str(error)
    actions = register(tasks, clash)
    assert sum(len(cancel.attempts) for cancel in only(actions, CancelTasks)) == 4
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.FAILED
    assert tasks.ended is not None
    assert expected in str(tasks.ended.result.failure)
    assert tasks.scheduler.details().restarts == 0


def test_subtasks_of_one_operator_may_register_the_same_state_name() -> None:
    tasks = running()
    assert register(tasks, registration(tasks, "a1"), registration(tasks, "a2")) == []
    assert tasks.status is JobStatus.RUNNING


def test_state_registration_for_another_job_or_vertex_is_refused() -> None:
    """QS-04, QS-06."""
    tasks = running()
    foreign = registration(tasks, "a1", job_id=OTHER_JOB)
    assert str(refusal(tasks, foreign)) == (
        f"FlinkJobNotFoundException: Could not find Flink job ({OTHER_JOB})"
    )
    mine = registration(tasks, "a1")
    vertex = replace(mine.attempt_id.vertex, job_vertex_id=vertex_id("x"))
    unknown = replace(mine, attempt_id=replace(mine.attempt_id, vertex=vertex))
    error = refusal(tasks, unknown)
    assert isinstance(error, ValueError)
    assert str(error) == f"Unknown JobVertexID {vertex_id('x')}"
    too_far = replace(mine, last_key_group=GROUPS)
    assert "has 128 key groups" in str(refusal(tasks, too_far))
    register(tasks, foreign, unknown, too_far)
    assert not is_there(tasks)
    kv_states = tasks.scheduler.kv_states
    with pytest.raises(KvStateJobNotFoundError, match=str(OTHER_JOB)):
        kv_states.location(OTHER_JOB, "totals")
    assert isinstance(kv_states.refusal_to_unregister(foreign), KvStateJobNotFoundError)


def test_unregistering_an_unknown_or_foreign_state_is_refused() -> None:
    """QS-06."""
    tasks = running()
    refused = tasks.scheduler.kv_states.refusal_to_unregister
    held = registration(tasks, "a1")
    assert "Unknown registration name 'totals'" in str(refused(held))
    register(tasks, held)
    other = registration(tasks, "b1")
    assert "registered the KvState under 'totals'" in str(refused(other))
    assert refused(held) is None
    unregister(tasks, other)
    assert is_there(tasks)


def test_unregistering_unregistered_key_groups_is_refused() -> None:
    """QS-03."""
    tasks = running()
    refused = tasks.scheduler.kv_states.refusal_to_unregister
    held, elsewhere = registration(tasks, "a1"), registration(tasks, "a2")
    register(tasks, held)
    assert "are not registered" in str(refused(elsewhere))
    beyond = replace(held, last_key_group=held.last_key_group + 1)
    assert "or not all of them" in str(refused(beyond))
    register(tasks, elsewhere)
    assert refused(elsewhere) is None
    assert refused(beyond) is None
    unregister(tasks, held)
    assert "are not registered" in str(refused(held))


def test_unregistering_a_replaced_state_registration_keeps_the_later_one() -> None:
    tasks = running()
    first, second = registration(tasks, "a1"), registration(tasks, "a1")
    register(tasks, first, second)
    unregister(tasks, first)
    assert is_there(tasks)
    unregister(tasks, second)
    assert not is_there(tasks)


@pytest.mark.parametrize("state", ["FINISHED", "FAILED"])
def test_registration_of_a_queryable_state_ends_with_its_attempt(state: str) -> None:
    tasks = running()
    register(tasks, *(registration(tasks, task) for task in ("a1", "a2")))
    tasks.report("a1", ExecutionState[state], "out of luck" if state == "FAILED" else None)
    found = location(tasks)
    assert found.place_of(0) is None
    assert found.place_of(GROUPS - 1) is not None


def test_registration_of_a_queryable_state_ends_with_its_task_executor() -> None:
    tasks = running(a=1)
    register(tasks, registration(tasks, "a1"))
    tasks.lose_task_executor(str(tasks.where[tasks.attempt("a1")]))
    assert not is_there(tasks)


def test_late_registration_of_a_queryable_state_by_a_past_attempt_is_refused() -> None:
    tasks = running(a=1)
    late = registration(tasks, "a1")
    register(tasks, late)
    tasks.fail("a1")
    assert isinstance(refusal(tasks, late), AttemptDisposedError)
    register(tasks, late)
    assert not is_there(tasks)
    tasks.restart()
    present = registration(tasks, "a1")
    register(tasks, present)
    register(tasks, replace(late, kv_state_id=id_of(KvStateID, 9)))
    unregister(tasks, late)
    place = location(tasks).place_of(0)
    assert place is not None
    assert place.kv_state_id == present.kv_state_id


def test_registration_of_a_queryable_state_by_another_execution_graph_is_refused() -> None:
    """The graph of an earlier JobMaster, or of another parallelism."""
    tasks = running()
    foreign = replace(tasks.attempt("a1"), graph_id=OTHER_GRAPH)
    stale = registration(tasks, foreign)
    assert isinstance(refusal(tasks, stale), AttemptDisposedError)
    register(tasks, stale)
    assert not is_there(tasks)


def test_query_name_of_a_state_may_be_used_again_once_no_task_has_registered_it() -> None:
    tasks = running()
    register(tasks, registration(tasks, "a1"))
    tasks.fail("a1")
    assert not is_there(tasks)
    taken = registration(tasks, "b1")
    assert refusal(tasks, taken) is None
    register(tasks, taken)
    assert location(tasks).vertex_id == vertex_id("b")


def test_state_name_clash_while_the_job_is_cancelled_does_not_fail_the_job() -> None:
    tasks = running()
    register(tasks, registration(tasks, "a1"))
    tasks.tell(t.CancelJob())
    register(tasks, registration(tasks, "b1"))
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.CANCELED


def test_registration_of_a_queryable_state_at_an_ended_job_is_ignored() -> None:
    tasks = running()
    late = registration(tasks, "a1")
    tasks.tell(t.GlobalFailure(Failure("no", suppress_restarts=True)))
    tasks.confirm_cancellations()
    assert tasks.status is JobStatus.FAILED
    assert register(tasks, late) == []
    assert not is_there(tasks)
