"""Carries out the decisions of a job's checkpoint coordinator, sends checkpoint orders to tasks,
and reports the results to the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.gateways.task_reports import not_ready
from flinkray.actors.job_master.source_coordination import SourceCoordination
from flinkray.actors.job_master.stored_checkpoints import CheckpointsLostError, StoredCheckpoints
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobMasterId
from flinkray.ha import CheckpointStoreFencedError
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints import actions as act
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.earlier_checkpoints import MOST_GIVEN_UP
from flinkray.scheduler.checkpoints.events import (
    CheckpointAnswered,
    CheckpointEvent,
    SnapshotRequested,
)
from flinkray.scheduler.checkpoints.messages import TriggerCheckpoint
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobResult
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)


class CheckpointScheduler(Protocol):
    """The attributes of the JobScheduler that a CheckpointCarrier uses."""

    @property
    def status(self) -> JobStatus: ...

    @property
    def takes_checkpoints(self) -> bool: ...


class CheckpointCarrier:
    """Carries out the checkpoint actions of the JobScheduler, and reports the results to it.
    Lives on the JobMaster's main thread. The JobMaster ends when another JobMaster has taken over
    the job's checkpoints.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        services: ClusterServices,
        graph: JobGraph,
        scheduler: CheckpointScheduler,
        task_executors: TaskExecutorConnections,
        sources: SourceCoordination,
        *,
        handle: Callable[[CheckpointEvent], None],
        on_replaced: Callable[[str], None],
    ) -> None:
        """Create the carrier and its parts.

        Args:
            handle: passes the result of an action, or a request, to the scheduler.
            on_replaced: called with the reason when another JobMaster has taken over the job's
                checkpoints: any further action of this JobMaster would damage them.
        """
        self._on_replaced = on_replaced
        self._job_master = job_master
        self._job_id = graph.job_id
        self._scheduler = scheduler
        self._sources = sources
        self._handle = handle
        self._stored = StoredCheckpoints(
            job_master, services, graph, told=handle, on_fenced=self._replaced
        )
        self._orders = CheckpointOrders(job_master, graph, task_executors, told=handle)
        self._requests: dict[int, asyncio.Future[act.SnapshotFinished]] = {}
        self._last_request = 0
        self._recovered: asyncio.Future[None] = job_master.rpc_service.loop.create_future()
        """Completed when the recovery has ended, whether it succeeded or not."""
        self._end_is_stored: asyncio.Future[None] = job_master.rpc_service.loop.create_future()
        """Completed when the Dispatcher has stored the job's end.
        No JobMaster continues the job then.
        """
        self._are_lost = False
        self.settled: asyncio.Future[None] = job_master.rpc_service.loop.create_future()
        """Completed when no checkpoint is written any more: the coordinator has ended."""
        self.closed: asyncio.Future[None] = job_master.rpc_service.loop.create_future()
        """Completed when no checkpoint is written or deleted any more."""

    async def recover(self) -> tuple[CompletedCheckpoint, ...] | None:
        """Return the checkpoints of earlier JobMasters. None if another JobMaster has taken over.

        Raises:
            CheckpointsLostError: the last checkpoint cannot be read.
        """
        try:
            return await self._stored.recover()
        except CheckpointStoreFencedError as error:
            self._replaced(str(error))
            return None
        except CheckpointsLostError:
            self._are_lost = True
            raise
        finally:
            self._recovered.set_result(None)

    async def begun_after(self, recovered: tuple[CompletedCheckpoint, ...]) -> dict[int, str]:
        """Return (id -> directory) of the checkpoints begun after the last of *recovered*, at most
        the last ``MOST_GIVEN_UP``. Tasks may still write to these checkpoints. Empty if another
        JobMaster has taken over. Raises CheckpointsLostError if the stored counter of ids cannot be
        read."""
        latest = recovered[-1].checkpoint_id if recovered else 0
        try:
            return await self._stored.begun_after(latest, MOST_GIVEN_UP)
        except CheckpointStoreFencedError as error:
            self._replaced(str(error))
            return {}
        except CheckpointsLostError:
            self._are_lost = True
            raise

    async def read_savepoint(self, location: str) -> CompletedCheckpoint:
        """Read the savepoint or checkpoint from which the job shall start.

        Raises:
            CheckpointStorageError: it is not a savepoint or checkpoint, or it is incomplete.
        """
        return await self._stored.read_savepoint(location)

    def carry_out(self, action: act.CheckpointAction) -> None:
        """Begin to carry out an action that concerns checkpoints."""
        match action:
            case act.PrepareCheckpoint():
                self._stored.prepare(action)
            case act.StoreCheckpoint():
                self._stored.store(action)
            case act.AddRestoredSavepoint():
                self._stored.add_restored(action)
            case (
                act.DiscardFiles()
                | act.DiscardDirectory()
                | act.DiscardCheckpoint()
                | act.ForgetCheckpoint()
            ):
                if self._scheduler.status.is_globally_terminal:
                    self._stored.hold()
                self._stored.discard(action)
            case act.OrderCheckpoint():
                self._orders.carry_out(action)
            case act.SnapshotCoordinators():
                self._sources.snapshot(action, self._handle)
            case act.RestoreCoordinators():
                self._sources.restore(action)
            case act.ResetSubtasks():
                self._sources.reset(action)
            case act.OrderCoordinators():
                self._sources.order(action)
            case act.SnapshotFinished():
                self._finished(action)
            case act.CloseCheckpointStores(status):
                self._job_master.create_task(self._close(status), "close the checkpoints' stores")

    # --- requests ---------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        """The job's status, as the scheduler has it."""
        return self._scheduler.status

    @property
    def takes_any(self) -> bool:
        """Whether the job can take checkpoints and savepoints."""
        return self._scheduler.takes_checkpoints

    async def place_of_savepoint(
        self, request: SnapshotRequest, attempt: int = 1
    ) -> str | SnapshotTaken:
        """Return the directory into which this attempt to take the requested savepoint is to write.
        Returns the savepoint instead if an earlier JobMaster has completed it for the same request.

        Raises:
            JobError, CheckpointStorageError: the directory cannot be used.
        """
        await self._recovered
        return await self._stored.place_of_savepoint(request, attempt)

    async def request(
        self, properties: CheckpointProperties | None, directory: str | None
    ) -> act.SnapshotFinished:
        """Request a savepoint in *directory* with these *properties*, or a checkpoint if both are
        None. Returns once the snapshot is finished, with the snapshot or its error."""
        self._last_request += 1
        number = self._last_request
        finished: asyncio.Future[act.SnapshotFinished]
        finished = self._job_master.rpc_service.loop.create_future()
        self._requests[number] = finished
        self._handle(SnapshotRequested(number, properties, directory))
        return await finished

    def _finished(self, action: act.SnapshotFinished) -> None:
        finished = self._requests.pop(action.request_id, None)
        if finished is not None and not finished.done():
            finished.set_result(action)

    # --- the end ----------------------------------------------------------------------------------

    async def _close(self, status: JobStatus) -> None:
        await self._recovered  # a job that is cancelled at once ends before the recovery
        _set(self.settled)
        if status.is_globally_terminal:
            await self._end_is_stored
            self._stored.release()
            await self._stored.forget_job()
        else:
            await self._stored.discarded()
        self._set_closed()

    @property
    def left(self) -> asyncio.Future[None]:
        """A future that completes when this JobMaster may end: no checkpoint is being written any
        more. If the job may continue under another JobMaster, no checkpoint is being deleted
        either."""
        return self.settled if self._scheduler.status.is_globally_terminal else self.closed

    def with_kept(self, result: JobResult) -> JobResult:
        """Return *result*, marked to keep all checkpoints if the job failed and a checkpoint could
        not be read. Otherwise return *result* unchanged.
        """
        if not self._are_lost or result.status is not JobStatus.FAILED:
            return result
        return replace(result, keeps_checkpoints=True)

    async def forget(self) -> None:
        """Note that the job's end is stored, and wait until the checkpoints that are not retained
        are deleted. They must not be deleted earlier: a JobMaster that replaces this one would have
        to begin without state."""
        _set(self._end_is_stored)
        await self.closed

    async def until_end_is_stored(self) -> None:
        """Wait until the job's end is stored. Until then a later JobMaster may continue the job
        from the last checkpoint, or from the savepoint that the job has ended with."""
        await asyncio.shield(self._end_is_stored)

    def _replaced(self, cause: str) -> None:
        self._set_closed()
        self._on_replaced(cause)

    def _set_closed(self) -> None:
        _set(self.settled)
        _set(self.closed)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_RETRY_DELAY = 0.1
"""Seconds until an order is repeated to a TaskExecutor that may not have received it."""

_MAY_BE_REPEATED = (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError)
"""Errors after which it is unknown whether the order arrived.
After other errors a repetition would fail again.
"""


class CheckpointOrders:
    """Sends checkpoint orders to TaskExecutors. Lives on the JobMaster's main thread.

    Orders to a TaskExecutor are sent in order. A repeated order may arrive after later ones.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        graph: JobGraph,
        task_executors: TaskExecutorConnections,
        *,
        told: Callable[[CheckpointAnswered], None],
    ) -> None:
        """Create the sender of checkpoint orders.
        *told* is called with a decline for each task that an order to begin a checkpoint did not
        reach.
        """
        self._job_master = job_master
        self._graph = graph
        self._task_executors = task_executors
        self._told = told

    def carry_out(self, action: act.OrderCheckpoint) -> None:
        """Send an order in the background.
        A trigger is sent once, because a repetition could arrive after the abort of its checkpoint.
        Other orders are repeated until they arrive or the TaskExecutor is lost.
        """
        self._job_master.create_task(self._carry_out(action), "order a checkpoint")

    async def _carry_out(self, action: act.OrderCheckpoint) -> None:
        resource_id, order = action.location.resource_id, action.order
        token = self._job_master.fencing_token
        while True:
            try:
                executor = self._task_executors.get(resource_id)
                await executor.order_checkpoint(self._graph.job_id, token, order, action.attempts)
                return
            except FlinkRayError as error:
                cause = f"{resource_id} could not be told: {error}"
                if isinstance(order, TriggerCheckpoint):
                    may_write = isinstance(error, _MAY_BE_REPEATED)
                    declined = [
                        not_ready(self._graph.job_id, order, attempt_id, cause, may_write=may_write)
                        for attempt_id in action.attempts
                    ]
                    self._told(CheckpointAnswered(tuple(declined)))
                    return
                log.info("%s: of checkpoint %d, %s", self._graph.text, order.checkpoint_id, cause)
                if not isinstance(error, _MAY_BE_REPEATED):
                    return
            await self._job_master.rpc_service.pause(_RETRY_DELAY)
