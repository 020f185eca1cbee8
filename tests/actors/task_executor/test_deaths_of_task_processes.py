"""What is told of a task process that has died; the processes only record."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways.task_process import TaskProcessGateway
from flinkray.actors.gateways.task_reports import TaskReport
from flinkray.core.errors import RpcConnectionError
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.task_executor_under_test import JOB
from tests.actors.task_process_doubles import TasksInDoubles, doubles


@on_virtual_time
async def test_failure_of_tasks_of_a_dead_process_names_the_command_for_its_logs() -> None:
    """A crash in native code is described only there."""
    (process,) = doubles(1)
    reported: list[TaskReport] = []
    executor = TasksInDoubles(slots_per_process=4, on_reports=reported.extend)
    await executor.run_four()
    await process.endpoint.close()
    await asyncio.sleep(60)
    failures = {one.failure for one in reported if isinstance(one, TaskExecutionState)}
    (failure,) = failures
    assert failure is not None
    assert failure.startswith("the task process ")
    assert " died: " in failure
    assert failure.endswith(f". Its last words: flinkray logs {JOB}")


@on_virtual_time
async def test_process_that_does_not_confirm_the_start_of_tasks_is_killed_and_not_retried() -> None:
    """A repeated call would run the tasks twice (seeds 37 and 31 of repeated calls)."""
    (process,) = doubles(1)
    process.on(TaskProcessGateway.run_tasks).raising(RpcConnectionError("the answer is lost"))
    reported: list[TaskReport] = []
    executor = TasksInDoubles(slots_per_process=4, on_reports=reported.extend)
    await executor.run_four()
    await asyncio.sleep(60)
    assert len(process.calls_of(TaskProcessGateway.run_tasks)) == 1
    states = [one for one in reported if isinstance(one, TaskExecutionState)]
    assert [state.state for state in states] == [ExecutionState.FAILED] * 4
    assert all("was killed: it did not take its tasks" in str(one.failure) for one in states)
