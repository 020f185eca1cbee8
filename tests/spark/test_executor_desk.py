"""What becomes of executors that TaskExecutors start; no process here."""

from __future__ import annotations

import pytest

from flinkray.spark.executor_launches import ExecutorDesk, StageEndedError
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot


def slot(index: int) -> ExecutorSlot:
    return ExecutorSlot(index, index, f"actor-{index}", "node", "127.0.0.1")


def launch_of(executor_id: str, slot: ExecutorSlot) -> ExecutorLaunch:
    return ExecutorLaunch(executor_id, "stage", None, (), (), (str(slot.subtask_index),), {})


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def desk(failures: list[str]) -> ExecutorDesk:
    desk = ExecutorDesk(failures.append)
    desk.open(launch_of)
    return desk


def start(desk: ExecutorDesk, index: int, pid: int) -> str:
    executor_id = desk.launch(slot(index)).executor_id
    desk.started(executor_id, pid)
    return executor_id


def test_registered_executors_are_listed_with_slot_and_pid_in_bundle_order(
    desk: ExecutorDesk,
) -> None:
    second, first = start(desk, 1, 101), start(desk, 0, 100)

    found = desk.executors([second, first])

    assert [(e.subtask_index, e.bundle_index, e.executor_id, e.pid) for e in found] == [
        (0, 0, first, 100),
        (1, 1, second, 101),
    ]
    assert [e.actor_id for e in found] == ["actor-0", "actor-1"]


def test_unregistered_executor_and_executor_without_a_process_are_not_listed(
    desk: ExecutorDesk,
) -> None:
    start(desk, 0, 100)
    unknown = desk.launch(slot(1)).executor_id

    assert desk.executors([unknown, "driver", "99"]) == ()


def test_executor_that_has_ended_is_not_listed_although_spark_did_not_notice_its_end(
    desk: ExecutorDesk,
) -> None:
    lost, other = start(desk, 0, 100), start(desk, 1, 101)
    desk.executors([lost, other])

    assert not desk.ended(lost, -9, "killed by SIGKILL"), "the JobMaster has another task deployed"

    assert [e.executor_id for e in desk.executors([lost, other])] == [other]


def test_each_start_of_an_executor_gets_a_new_id(desk: ExecutorDesk, failures: list[str]) -> None:
    ids = []
    for pid in range(5):
        ids.append(start(desk, 0, pid))
        desk.executors([ids[-1]])
        desk.ended(ids[-1], 1, "exit status 1")

    assert len(set(ids)) == 5
    assert failures == []


def test_spark_executor_that_ends_twice_before_it_registers_fails_its_stage(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    assert desk.ended(start(desk, 0, 100), 1, "exit status 1")
    assert failures == []
    assert not desk.ended(start(desk, 0, 101), 1, "exit status 1; log: x")

    assert failures == [
        "the executor of slot 0 ended before it registered, twice: exit status 1; log: x"
    ]


def test_early_executor_ends_are_counted_per_slot_until_an_executor_registers(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    assert desk.ended(start(desk, 0, 100), 1, "")
    assert desk.ended(start(desk, 1, 101), 1, "")
    registered = start(desk, 0, 102)
    desk.executors([registered])
    desk.ended(registered, -9, "")

    assert desk.ended(start(desk, 0, 103), 1, "")
    assert failures == []


def test_executor_that_ends_with_status_0_does_not_count_as_lost(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    executor = start(desk, 0, 100)
    desk.executors([executor])

    assert not desk.ended(executor, 0, "exit status 0")

    assert len(desk.executors([executor])) == 1
    assert failures == []


def test_stage_that_ended_before_its_session_opened_refuses_to_launch_executors() -> None:
    desk = ExecutorDesk(lambda why: None)
    desk.close()
    desk.open(launch_of)

    with pytest.raises(StageEndedError):
        desk.launch(slot(0))


def test_stage_that_ended_after_its_session_opened_answers_launch_requests(
    desk: ExecutorDesk,
) -> None:
    desk.close()

    assert desk.launch(slot(0)).arguments == ("0",)
