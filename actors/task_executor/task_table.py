"""The tasks that run in a TaskExecutor, and what their JobMasters are told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.task_reports import MOST_REPORTS, TaskReport, is_end, shortened
from flinkray.actors.shared.batched_sender import BatchedSender
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
"""Seconds until something is reported again that the JobMaster did not take."""


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
        self._senders: dict[JobID, BatchedSender[TaskReport]] = {}
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

    def reported(self, reports: Sequence[TaskReport]) -> None:
        """Tell the JobMasters, in this order, and the slot table of those that have ended."""
        by_job: dict[JobID, list[TaskReport]] = {}
        actions: list[SlotTableAction] = []
        for report in reports:
            by_job.setdefault(report.job_id, []).append(report)
            if isinstance(report, TaskExecutionState) and report.state.is_terminal:
                attempt_id, state, failure = report.attempt_id, report.state, report.failure
                self._tasks.pop(attempt_id, None)
                log.info("task %s ended: %s %s", attempt_id, state.name, failure or "")
                actions += self._slots.remove_task(attempt_id)
        for job_id, of_job in by_job.items():
            sender = self._senders.get(job_id)
            if sender is None:
                if self._job_leaders.job_master(job_id) is None:
                    continue  # there is nobody to tell
                sender = BatchedSender(self._endpoint, self._report, MOST_REPORTS, shortened)
                self._senders[job_id] = sender
            sender.add(of_job)
            ended = [report.attempt_id for report in of_job if is_end(report)]
            if ended:
                self._untold.setdefault(job_id, {}).update(dict.fromkeys(ended))
                sender.when_sent(partial(self._told, job_id, ended))
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
        self._senders.pop(job_id, None)
        self._untold.pop(job_id, None)

    async def _report(self, reports: tuple[TaskReport, ...]) -> None:
        """Tell the JobMaster; one that is lost has given the tasks up, and its successor knows them
        by the graph in their ids, if at all.

        Raises:
            FrameTooLargeError: they do not fit into one message.
        """
        job_id = reports[0].job_id
        while (master := self._job_leaders.job_master(job_id)) is not None:
            if await self._has_told(master, reports):
                return

    async def _has_told(self, master: JobMasterGateway, reports: tuple[TaskReport, ...]) -> bool:
        try:
            await master.tasks_reported(reports)
        except (RpcTimeoutError, RecipientUnreachableError, RpcConnectionError) as error:
            # a broken connection is not yet the JobMaster's death, which ends all this
            log.warning("%d reports of tasks are made again: %s", len(reports), error)
            await self._endpoint.rpc_service.pause(_REPORT_RETRY_DELAY)
            return False
        except FrameTooLargeError:
            raise  # they go in smaller messages
        except FlinkRayError as error:
            log.warning("%d reports of tasks are not taken: %s", len(reports), error)
            for report in reports:
                if not isinstance(report, TaskExecutionState) or is_end(report):
                    continue
                task = self._tasks.get(report.attempt_id)
                if task is not None:
                    cause = f"its state cannot be reported: {error}"
                    task.runs_in.fail(report.attempt_id, cause)  # nobody knows of it (TM-27)
        return True
