"""Takes over a job's running tasks and processes, after the reports of its TaskExecutors have been
collected (``docs/design/0051-taking-over.md``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from flinkray.actors.coordinators.processes import CoordinatorProcesses
from flinkray.actors.coordinators.runner import CoordinatorRunner
from flinkray.actors.coordinators.stream_coordinator_process import source_operator_of
from flinkray.actors.gateways import TaskExecutorGateway
from flinkray.actors.gateways.messages import JobMasterArguments
from flinkray.actors.job_master.checkpoint_carrier import CheckpointCarrier
from flinkray.actors.job_master.left_by_past_job_masters import Left, PastCopies
from flinkray.actors.job_master.past_coordinators import (
    Adopted,
    AdoptedDriver,
    PastCoordinators,
    PastDrivers,
)
from flinkray.actors.job_master.slots import JobMasterSlots
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.actors.job_master.stored_checkpoints import CheckpointsLostError
from flinkray.actors.job_master.task_deployer import TaskDeployer
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import AttemptDisposedError, FlinkRayError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
)
from flinkray.core.options import (
    JOB_MASTER_TAKEOVER_REPORT_TIMEOUT,
    JOB_MASTER_TAKEOVER_TIMEOUT,
)
from flinkray.rpc import FencedRpcEndpoint, TerminationWatch
from flinkray.scheduler.checkpoints.actions import ResetSubtasks
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.graph.job_graph import STREAM
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorID, CoordinatorKind
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import JobSchedulerAction
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.taking_over import (
    JobNotes,
    ReportedTask,
    SourceCoordinatorPlace,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import VertexInformation, attempt_of
from flinkray.scheduler.slots.slot_ledger import SlotLedger

log = logging.getLogger(__name__)

T = TypeVar("T")

Recover = Callable[[], Awaitable[tuple[CompletedCheckpoint, ...] | None]]


class TakingOver:
    """Takes over a job: collects the reports of all its processes, lets the scheduler decide which
    tasks continue, and carries out the decision. Lives on the JobMaster's main thread.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        arguments: JobMasterArguments,
        configuration: ReadableConfig,
        scheduler: JobScheduler,
        reconciliation: Reconciliation,
        task_executors: TaskExecutorConnections,
        slots: JobMasterSlots,
        deployer: TaskDeployer,
        checkpoints: CheckpointCarrier,
        coordinators: CoordinatorRunner,
        processes: CoordinatorProcesses,
        sources: SourceCoordination,
        *,
        apply: Callable[[list[JobSchedulerAction]], None],
    ) -> None:
        """Create the object; :meth:`run` takes over the job. *apply* carries out the scheduler's
        actions."""
        graph = arguments.job_graph
        self._job_master = job_master
        self._scheduler = scheduler
        self._reconciliation = reconciliation
        self._slots = slots
        self._deployer = deployer
        self._checkpoints = checkpoints
        self._coordinators = coordinators
        self._patience = configuration.get(JOB_MASTER_TAKEOVER_REPORT_TIMEOUT)
        """Seconds to wait for a process that does not answer."""
        self._longest = configuration.get(JOB_MASTER_TAKEOVER_TIMEOUT)
        """Seconds to wait for the reports of TaskExecutors that answer."""
        self._past_coordinators = PastCoordinators(job_master, graph, processes.source_enumerators)
        self._past_drivers = PastDrivers(job_master, graph, processes.spark_drivers, self._patience)
        self._past_copies = PastCopies(job_master, graph, task_executors)
        self._sources = sources
        self._graph = graph
        self._has_run = arguments.has_run
        """Whether the Dispatcher knows that tasks of the job were deployed."""
        self._apply = apply

    def reported(self, report: TaskExecutorReport) -> None:
        """Process the report of a TaskExecutor that has registered. The report is collected until
        this JobMaster has decided which tasks continue. After that, reported tasks that are not
        deployed are cancelled: a task of an earlier JobMaster cannot continue because of a late
        report."""
        if not self._reconciliation.is_decided:
            self._reconciliation.reported(report)
        else:
            running = (attempt_id for attempt_id, _, _ in _running(report))
            self._deployer.reported(report.location.resource_id, running)

    async def run(self, recover: Recover) -> bool:
        """Take over the job. Returns False if the job does not run, because *recover* has failed.

        *recover* makes the job's checkpoints known to the scheduler. If it fails, the job ends.
        """
        steps = _Steps(self._job_master.clock.monotonic)
        self._apply(self._scheduler.handle(t.AwaitReports(), self._now))
        starting = self._slots.start_pool(self._reconciliation.decided)
        self._job_master.create_task(starting, "start the SlotPool")
        recovering = self._job_master.create_task(
            steps.timed("checkpoints", partial(self._recovered, recover)), "recover the checkpoints"
        )
        left = await steps.timed("SlotPools", self._slots.left_by_past_job_masters)
        is_copy = left.notes is None and self._graph.has_stream_coordinator
        if is_copy:
            left = await steps.timed("copies", partial(self._copied, left))
        adopting = self._job_master.create_task(
            steps.timed("coordinator", partial(self._adopted, left.notes)), "adopt the coordinator"
        )
        adopting_drivers = self._job_master.create_task(
            steps.timed("Spark drivers", partial(self._past_drivers.adopt, left.notes)),
            "adopt Spark drivers",
        )
        if left.notes is not None:
            await steps.timed("reports", partial(self._all_reported, _places(left)))
        adopted, drivers, begun = await adopting, await adopting_drivers, await recovering
        kept: tuple[AdoptedDriver, ...] = ()
        if begun is not None:
            kept = self._decide(left, adopted, drivers, begun, is_copy=is_copy)
        log.info("%s: %s, after %s", self._graph.text, self._scheduler.status.name, steps)
        self._reconciliation.is_over()
        ending = self._past_coordinators.end_others(self._sources.owner)
        self._job_master.create_task(ending, "end past coordinators")
        ending = self._past_drivers.end_others(kept)
        self._job_master.create_task(ending, "end past Spark drivers")
        return begun is not None

    async def _all_reported(self, places: Mapping[ResourceID, str]) -> None:
        await self._reconciliation.all_reported(places, self._patience, self._longest)

    async def _copied(self, left: Left) -> Left:
        """Return the latest notes and what belongs to them: from a copy at a TaskExecutor or, if
        there is no copy, *left*. Also *left* if a TaskExecutor does not answer, because it may have
        a later copy. Once a TaskExecutor has reported, an earlier JobMaster that still lives cannot
        change the copy there."""
        await self._all_reported(await self._past_copies.places())
        if not self._reconciliation.all_have_answered:
            return left
        copied = await self._past_copies.left(self._reconciliation.reports)
        if copied is None:
            return left
        self._slots.notes.adopt(copied.parts)
        places_of_both = dict.fromkeys((*left.task_executors, *copied.task_executors))
        return replace(copied, task_executors=tuple(places_of_both))

    @property
    def _now(self) -> float:
        return self._job_master.clock.monotonic()

    async def _recovered(self, recover: Recover) -> dict[int, str] | None:
        """Recover the checkpoints. Returns (id -> directory) of checkpoints that were begun after
        them and are incomplete. None if the job does not start, because its state cannot be read.
        """
        recovered = await recover()
        if recovered is None or not self._scheduler.takes_checkpoints:
            return None if recovered is None else {}
        try:
            return await self._checkpoints.begun_after(recovered)
        except CheckpointsLostError as error:
            failure = Failure(str(error), suppress_restarts=True)
            self._apply(self._scheduler.handle(t.GlobalFailure(failure), self._now))
            return None

    async def _adopted(self, notes: JobNotes | None) -> Adopted | None:
        place = None if notes is None else notes.source_coordinator
        if place is None:
            return None
        return await self._past_coordinators.adopt(place, self._patience)

    # --- the decision -----------------------------------------------------------------------------

    def _decide(
        self,
        left: Left,
        adopted: Adopted | None,
        drivers: dict[JobVertexID, AdoptedDriver],
        begun: dict[int, str],
        *,
        is_copy: bool,
    ) -> tuple[AdoptedDriver, ...]:
        """Let the scheduler decide which tasks continue, and carry out the decision.

        Args:
            left: what past JobMasters have left: slots, notes, finished tasks, sources' progress.
            adopted: the source coordinator that was taken over, if any.
            drivers: the Spark drivers that were taken over, by vertex.
            begun: directories of incomplete checkpoints, by id.
            is_copy: whether only a TaskExecutor had the notes.

        Returns:
            The Spark drivers that continue.
        """
        notes, dead = left.notes, None
        if adopted is not None:
            place: SourceCoordinatorPlace | None = adopted.place
            self._adopt(adopted)
        else:
            dead = None if notes is None else self._dead(notes)
            place = None if dead is None else dead[1]
        if notes is not None:
            notes = replace(notes, source_coordinator=place)
        reports = self._reconciliation.reports
        taking_over = t.TakeOverJob(
            notes,
            tuple(left.finished),
            reports,
            begun,
            drivers.keys(),
            is_copy=is_copy,
            has_run=self._has_run,
        )
        actions = self._scheduler.handle(taking_over, self._now)
        for report in reports:
            self._deployer.adopted(report.location.resource_id, self._that_go_on(report))
        kept: tuple[AdoptedDriver, ...] = ()
        if notes is None or self._scheduler.graph_id != notes.graph_id:
            self._sources.begins_anew()
            if dead is not None:
                self._sources.gone(dead[0], "the job begins anew")
                dead = None
        else:
            kept = tuple(drivers.values())
            for driver in kept:
                self._coordinators.adopted(driver.coordinator, driver.address, driver.connected)
            if notes.source_coordinator is not None:
                for reset in self._resets(reports):
                    self._sources.reset(reset, are_known=True)
        self._apply(actions)
        if dead is not None:
            cause = "it died with its JobMaster"
            self._sources.gone(dead[0], cause, goes_on=True)
            gone = t.CoordinatorGone(dead[0], cause, goes_on=True)
            self._apply(self._scheduler.handle(gone, self._now))
        self._slots.count()
        return kept

    def _adopt(self, adopted: Adopted) -> None:
        coordinator, place = adopted.coordinator, adopted.place
        self._coordinators.adopted(coordinator, place.address, adopted.connected)
        self._sources.adopted(coordinator, place.owner, place.restores or 0)
        self._sources.started(coordinator)

    def _dead(self, notes: JobNotes) -> tuple[CoordinatorID, SourceCoordinatorPlace] | None:
        """Return the source coordinator that *notes* name, as one that has died and will be
        replaced. None if *notes* name none, or if it may not be replaced: all sources must begin
        anew then."""
        place = notes.source_coordinator
        if place is None:
            return None
        coordinator = CoordinatorID(CoordinatorKind.SOURCE_ENUMERATORS, None, place.attempt_number)
        self._sources.adopted(coordinator, place.owner, notes.restores)
        if not self._sources.may_go_on(self._now):
            self._sources.gone(coordinator, "nobody knows how far sources are")
            return None
        has_readers = self._sources.has_readers
        return coordinator, replace(place, restores=notes.restores, has_readers=has_readers)

    def _that_go_on(self, report: TaskExecutorReport) -> Iterator[ExecutionAttemptID]:
        return (attempt_id for attempt_id, _, _ in _running(report) if self._goes_on(attempt_id))

    def _goes_on(self, attempt_id: ExecutionAttemptID) -> bool:
        try:
            self._scheduler.check_current(attempt_id)
        except AttemptDisposedError:
            return False
        return True

    def _resets(self, reports: tuple[TaskExecutorReport, ...]) -> list[ResetSubtasks]:
        """Return orders to take back the splits that earlier attempts have received, for all source
        tasks that continue. The last JobMaster may have died before it gave these orders."""
        operators = {
            vertex.vertex_id: source_operator_of(vertex) for vertex in self._graph.vertices
        }
        subtasks: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for report in reports:
            for attempt_id, vertex, task in _running(report):
                is_source = vertex.invokable.kind == STREAM and not vertex.inputs
                if is_source and self._goes_on(attempt_id):
                    restored = task.deployment.restored
                    of_checkpoint = subtasks.setdefault(
                        0 if restored is None else restored.checkpoint_id, {}
                    )
                    of_operator = of_checkpoint.setdefault(operators[vertex.vertex_id], [])
                    index = attempt_id.vertex.subtask_index
                    of_operator.append((index, attempt_id.attempt_number))
        return [
            ResetSubtasks(checkpoint_id, {name: tuple(each) for name, each in by_operator.items()})
            for checkpoint_id, by_operator in subtasks.items()
        ]


def _places(left: Left) -> dict[ResourceID, str]:
    """Return the addresses of the TaskExecutors on which the job has slots or results."""
    noted = () if left.notes is None else left.notes.task_executors
    return {place.resource_id: place.address for place in (*left.task_executors, *noted)}


def _running(
    report: TaskExecutorReport,
) -> Iterator[tuple[ExecutionAttemptID, VertexInformation, ReportedTask]]:
    for graph in report.graphs:
        parts = {part.key: part.content for part in graph.parts}
        for task in graph.tasks:
            vertex = parts.get(task.deployment.vertex)
            if task.ended is None and isinstance(vertex, VertexInformation):
                yield attempt_of(graph.graph_id, vertex, task.deployment), vertex, task


class _Steps:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = now()
        self._taken: list[str] = []

    async def timed(self, name: str, step: Callable[[], Awaitable[T]]) -> T:
        began = self._now()
        try:
            return await step()
        finally:
            self._taken.append(f"{name} {(self._now() - began) * 1e3:.0f} ms")

    def __str__(self) -> str:
        total = (self._now() - self._began) * 1e3
        return f"{total:.0f} ms ({', '.join(self._taken)})"


_ASK_AGAIN = 1.0
"""Seconds until a TaskExecutor that has not registered is asked again."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A TaskExecutor whose report is awaited: it has not reported, and is not known to be dead."""

    watch: TerminationWatch
    asking: asyncio.Task[None]


class Reconciliation:
    """Collects the reports of TaskExecutors while a JobMaster takes over a job.

    Lives on the JobMaster's main thread. Other events wait until the JobMaster has decided which
    tasks continue, and are then processed in their order.
    """

    def __init__(
        self, job_master: FencedRpcEndpoint[JobMasterId], job_id: JobID, ledger: SlotLedger
    ) -> None:
        self._job_master = job_master
        self._job_id = job_id
        self._ledger = ledger
        self._reports: dict[ResourceID, TaskExecutorReport] = {}
        self._expected: dict[ResourceID, _Expected] = {}
        self._all_there: asyncio.Future[None] | None = None
        self._silent: list[ResourceID] = []
        """TaskExecutors that may live, but gave no report or were lost after their report."""
        self._held: list[Callable[[], None]] = []
        self._decided: asyncio.Future[None] = job_master.rpc_service.loop.create_future()

    # --- what comes meanwhile ---------------------------------------------------------------------

    @property
    def is_decided(self) -> bool:
        """Whether the JobMaster has decided which tasks continue. Until then events wait."""
        return self._decided.done()

    async def decided(self) -> None:
        """Wait until the JobMaster has decided which tasks continue."""
        await asyncio.shield(self._decided)

    def when_decided(self, happen: Callable[[], None]) -> None:
        """Call *happen* now or, if the JobMaster has not decided yet which tasks continue, once it
        has. Waiting calls run in their order, before later events."""
        if self.is_decided:
            happen()
        else:
            self._held.append(happen)

    def is_over(self) -> None:
        """End the waiting, because the JobMaster has decided which tasks continue: events that were
        held back are processed now."""
        held, self._held = self._held, []
        self._decided.set_result(None)
        for happen in held:
            happen()

    # --- reports ----------------------------------------------------------------------------------

    def reported(self, report: TaskExecutorReport) -> None:
        """Store the report of a TaskExecutor, in place of its earlier report, and stop
        awaiting it.
        """
        resource_id = report.location.resource_id
        self._reports[resource_id] = report
        self._expect_no_more(resource_id)

    def lost(self, resource_id: ResourceID) -> None:
        """Note that a TaskExecutor is lost: its report is dropped, and it counts as silent from now
        on."""
        if self._reports.pop(resource_id, None) is not None:
            self._silent.append(resource_id)

    def allocations(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """Return the allocations of the job's slots on a TaskExecutor. Until the JobMaster has
        decided which tasks continue, these are the slots in the TaskExecutor's report."""
        if self.is_decided:
            return self._ledger.on(resource_id)
        report = self._reports.get(resource_id)
        return () if report is None else tuple(slot.allocation_id for slot in report.slots)

    @property
    def reports(self) -> tuple[TaskExecutorReport, ...]:
        """All reports of TaskExecutors that have arrived so far."""
        return tuple(self._reports.values())

    @property
    def all_have_answered(self) -> bool:
        """Whether the tasks and slots of all TaskExecutors are known.
        False if a TaskExecutor did not answer in time, or was lost after its report.
        """
        return not self._silent

    async def all_reported(
        self, places: Mapping[ResourceID, str], patience: float, longest: float
    ) -> None:
        """Wait until each TaskExecutor has reported, has nothing of the job, or is given up: it is
        dead, or silent for too long. The TaskExecutors are asked to register, so that neither
        Dispatcher nor ResourceManager is needed.

        Args:
            places: addresses of the TaskExecutors.
            patience: seconds to wait for a TaskExecutor that does not answer.
            longest: seconds to wait for a TaskExecutor that answers but does not register.
        """
        for resource_id, address in places.items():
            if resource_id not in self._reports and resource_id not in self._expected:
                self._expect(resource_id, address, patience)
        if self._expected:
            self._all_there = self._job_master.rpc_service.loop.create_future()
            with suppress(asyncio.TimeoutError):
                await self._job_master.rpc_service.deadlines.within(longest, self._all_there)
        for resource_id in tuple(self._expected):
            log.warning("%s answers, but does not report its tasks and slots", resource_id)
            self._silent.append(resource_id)
            self._expect_no_more(resource_id)

    def _expect(self, resource_id: ResourceID, address: str, patience: float) -> None:
        def is_dead(reason: str) -> None:
            log.info("%s is not waited for: %s", resource_id, reason)
            self._expect_no_more(resource_id)

        watch = self._job_master.watch(address, is_dead)
        asking = self._job_master.create_task(
            self._keep_asking(resource_id, address, patience), f"ask {resource_id} what it has"
        )
        self._expected[resource_id] = _Expected(watch, asking)

    async def _keep_asking(self, resource_id: ResourceID, address: str, patience: float) -> None:
        """Ask a TaskExecutor to register, repeatedly until it says that it has no slots of the job.
        Gives up after *patience* seconds without an answer. This task is cancelled when the report
        of the TaskExecutor arrives.
        """
        now = self._job_master.counted_time
        answered_at = now()
        while (left := answered_at + patience - now()) > 0:
            try:
                asked = self._ask(address)
                has_slots = await self._job_master.rpc_service.deadlines.within(left, asked)
            except (FlinkRayError, asyncio.TimeoutError) as error:
                log.info("%s is asked again for its report: %s", resource_id, error)
            else:
                answered_at = now()
                if not has_slots:
                    break
            await self._job_master.rpc_service.pause(_ASK_AGAIN)
        else:
            log.warning("%s does not answer: it is not waited for", resource_id)
            self._silent.append(resource_id)
        self._expect_no_more(resource_id)

    async def _ask(self, address: str) -> bool:
        master = self._job_master
        executor = await master.connect(address, TaskExecutorGateway)
        return await executor.take_over_job(self._job_id, master.address, master.fencing_token)

    def _expect_no_more(self, resource_id: ResourceID) -> None:
        expected = self._expected.pop(resource_id, None)
        if expected is not None:
            expected.watch.cancel()
            expected.asking.cancel()
            if not self._expected and self._all_there is not None and not self._all_there.done():
                self._all_there.set_result(None)
