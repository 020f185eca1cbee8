"""The tasks that run in a TaskExecutor, and what their JobMasters are told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.shared.batched_sender import MOST_STATES, BatchedSender
from flinkray.actors.task_executor.job_leader_service import JobLeaderService
from flinkray.actors.task_executor.tasks_of_kind import TasksOfKind
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.task_slots.task_slot_table import SlotTableAction, TaskSlotTable

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.1
"""Seconds until states are reported again that the JobMaster did not take."""


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One that runs."""

    job_id: JobID
    runs_in: TasksOfKind


class TaskTable:
    """Lives on the main thread of its TaskExecutor.

    It is the one book of the tasks that run there, whatever runs them; the slot table knows of each
    and the JobMaster hears of each.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        slots: TaskSlotTable,
        job_leaders: JobLeaderService,
        carry_out: Callable[[list[SlotTableAction]], None],
    ) -> None:
        self._endpoint = endpoint
        self._slots = slots
        self._job_leaders = job_leaders
        self._carry_out = carry_out
        self._tasks: dict[ExecutionAttemptID, TaskEntry] = {}
        self._reports: dict[JobID, BatchedSender[TaskExecutionState]] = {}
        self._untold: dict[JobID, dict[ExecutionAttemptID, None]] = {}
        """Attempts that have ended, of which the JobMaster has not heard yet."""

    def add(
        self,
        attempt_id: ExecutionAttemptID,
        job_id: JobID,
        allocation_id: AllocationID,
        runs_in: TasksOfKind,
    ) -> int:
        """It is to run in that slot; returns the slot's index.

        Raises:
            SlotAllocationError: it cannot.
        """
        self._slots.add_task(attempt_id, job_id, allocation_id)
        self._tasks[attempt_id] = TaskEntry(job_id, runs_in)
        return self._slots.slot_index(allocation_id)

    def get(self, attempt_id: ExecutionAttemptID) -> TaskEntry | None:
        """None: it does not run here (any more)."""
        return self._tasks.get(attempt_id)

    def of_job(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """The attempts of a job that run, and those whose end is yet to be told: a JobMaster that
        did not find them here would say that nobody knows how they ended."""
        running = [attempt for attempt, task in self._tasks.items() if task.job_id == job_id]
        untold = self._untold.get(job_id, {})
        return (*running, *(attempt_id for attempt_id in untold if attempt_id not in running))

    def states_changed(self, states: list[TaskExecutionState]) -> None:
        """Tell the JobMasters, and the slot table of those that have ended."""
        by_job: dict[JobID, list[TaskExecutionState]] = {}
        actions: list[SlotTableAction] = []
        for state in states:
            by_job.setdefault(state.job_id, []).append(state)
            if state.state.is_terminal:
                self._tasks.pop(state.attempt_id, None)
                log.info(
                    "task %s ended: %s %s", state.attempt_id, state.state.name, state.failure or ""
                )
                actions += self._slots.remove_task(state.attempt_id)
        for job_id, of_job in by_job.items():
            reports = self._reports.get(job_id)
            if reports is None:
                reports = BatchedSender(
                    self._endpoint, self._report, MOST_STATES, TaskExecutionState.shortened
                )
                self._reports[job_id] = reports
            reports.add(of_job)
            ended = [state.attempt_id for state in of_job if state.state.is_terminal]
            if ended:
                self._untold.setdefault(job_id, {}).update(dict.fromkeys(ended))
                reports.when_sent(partial(self._told, job_id, ended))
        self._carry_out(actions)

    def _told(self, job_id: JobID, ended: list[ExecutionAttemptID]) -> None:
        untold = self._untold.get(job_id)
        if untold is not None:
            for attempt_id in ended:
                untold.pop(attempt_id, None)
            if not untold:
                del self._untold[job_id]

    def forget_job(self, job_id: JobID) -> None:
        """Nobody waits for what is still to be told of its tasks."""
        self._reports.pop(job_id, None)
        self._untold.pop(job_id, None)

    async def _report(self, states: tuple[TaskExecutionState, ...]) -> None:
        """Tell the JobMaster; one that is lost has given the tasks up, and its successor knows them
        by the graph in their ids, if at all.

        Raises:
            FrameTooLargeError: they do not fit into one message.
        """
        job_id = states[0].job_id
        while (master := self._job_leaders.job_master(job_id)) is not None:
            if await self._has_told(master, states):
                return

    async def _has_told(
        self, master: JobMasterGateway, states: tuple[TaskExecutionState, ...]
    ) -> bool:
        try:
            await master.update_task_execution_states(states)
        except (RpcTimeoutError, RecipientUnreachableError, RpcConnectionError) as error:
            # a broken connection is not yet the JobMaster's death, which ends all this
            log.warning("states of %d tasks are reported again: %s", len(states), error)
            await self._endpoint.rpc_service.pause(_REPORT_RETRY_DELAY)
            return False
        except FrameTooLargeError:
            raise  # they go in smaller messages
        except FlinkRayError as error:
            log.warning("states of %d tasks are not known: %s", len(states), error)
            for state in states:
                task = self._tasks.get(state.attempt_id)
                if task is not None and not state.state.is_terminal:
                    cause = f"its state cannot be reported: {error}"
                    task.runs_in.fail(state.attempt_id, cause)  # nobody knows of it (TM-27)
        return True
