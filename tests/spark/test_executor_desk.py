"""What becomes of executors that TaskExecutors start; no process here."""

from __future__ import annotations

import pytest

from flinkray.spark.executor_desk import ExecutorDesk, StageEndedError
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


def test_registered_executors_come_with_slot_and_process_in_order_of_their_bundles(
    desk: ExecutorDesk,
) -> None:
    second, first = start(desk, 1, 101), start(desk, 0, 100)

    found = desk.executors([second, first])

    assert [(e.subtask_index, e.bundle_index, e.executor_id, e.pid) for e in found] == [
        (0, 0, first, 100),
        (1, 1, second, 101),
    ]
    assert [e.actor_id for e in found] == ["actor-0", "actor-1"]


def test_one_that_is_not_registered_or_whose_process_is_not_known_is_left_out(
    desk: ExecutorDesk,
) -> None:
    start(desk, 0, 100)
    unknown = desk.launch(slot(1)).executor_id

    assert desk.executors([unknown, "driver", "99"]) == ()


def test_one_that_has_ended_is_left_out_although_spark_has_not_noticed(desk: ExecutorDesk) -> None:
    lost, other = start(desk, 0, 100), start(desk, 1, 101)
    desk.executors([lost, other])

    assert not desk.ended(lost, -9, "killed by SIGKILL"), "the JobMaster has another task deployed"

    assert [e.executor_id for e in desk.executors([lost, other])] == [other]


def test_each_start_has_an_id_of_its_own(desk: ExecutorDesk, failures: list[str]) -> None:
    ids = []
    for pid in range(5):
        ids.append(start(desk, 0, pid))
        desk.executors([ids[-1]])
        desk.ended(ids[-1], 1, "exit status 1")

    assert len(set(ids)) == 5
    assert failures == []


def test_executor_that_ends_unregistered_is_retried_once_then_fails_stage(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    assert desk.ended(start(desk, 0, 100), 1, "exit status 1")
    assert failures == []
    assert not desk.ended(start(desk, 0, 101), 1, "exit status 1; log: x")

    assert failures == [
        "the executor of slot 0 ended before it registered, twice: exit status 1; log: x"
    ]


def test_failures_count_by_slot_and_in_a_row(desk: ExecutorDesk, failures: list[str]) -> None:
    assert desk.ended(start(desk, 0, 100), 1, "")
    assert desk.ended(start(desk, 1, 101), 1, "")
    registered = start(desk, 0, 102)
    desk.executors([registered])
    desk.ended(registered, -9, "")

    assert desk.ended(start(desk, 0, 103), 1, "")
    assert failures == []


def test_one_that_its_driver_has_told_to_end_is_neither_lost_nor_followed(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    executor = start(desk, 0, 100)
    desk.executors([executor])

    assert not desk.ended(executor, 0, "exit status 0")

    assert len(desk.executors([executor])) == 1
    assert failures == []


def test_a_stage_that_ends_before_its_session_is_open_takes_none() -> None:
    desk = ExecutorDesk(lambda why: None)
    desk.close()
    desk.open(launch_of)

    with pytest.raises(StageEndedError):
        desk.launch(slot(0))


def test_a_stage_that_is_open_goes_on_answering_when_it_ends(desk: ExecutorDesk) -> None:
    desk.close()

    assert desk.launch(slot(0)).arguments == ("0",)
