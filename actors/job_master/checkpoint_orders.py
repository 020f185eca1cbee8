"""How a JobMaster tells tasks of checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flinkray.actors.gateways.task_reports import not_ready
from flinkray.actors.job_master.task_executor_connections import TaskExecutorConnections
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.messages import TriggerCheckpoint
from flinkray.scheduler.job.job_scheduler_actions import OrderCheckpoint
from flinkray.scheduler.job.transitions import CheckpointAnswered

log = logging.getLogger(__name__)

_RETRY_DELAY = 0.1
"""Seconds until a TaskExecutor is told again that may not have heard."""

_MAY_BE_REPEATED = (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError)
"""Others would be answered to the same again."""


class CheckpointOrders:
    """Lives on the JobMaster's main thread.

    To one TaskExecutor, messages go in the order of the decisions; what is told again may come
    after later ones.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        job_id: JobID,
        task_executors: TaskExecutorConnections,
        *,
        told: Callable[[CheckpointAnswered], None],
    ) -> None:
        """*told*: tasks that could not be told to begin have declined."""
        self._job_master = job_master
        self._job_id = job_id
        self._task_executors = task_executors
        self._told = told

    def carry_out(self, action: OrderCheckpoint) -> None:
        """Begin.  A trigger is sent once: told again, it might come after the word that its
        checkpoint was given up.  What has become of one is told until it is heard, or the
        TaskExecutor is lost."""
        self._job_master.create_task(self._carry_out(action), "order a checkpoint")

    async def _carry_out(self, action: OrderCheckpoint) -> None:
        resource_id, order = action.location.resource_id, action.order
        token = self._job_master.fencing_token
        while True:
            try:
                executor = self._task_executors.get(resource_id)
                await executor.order_checkpoint(self._job_id, token, order, action.attempts)
                return
            except FlinkRayError as error:
                cause = f"{resource_id} could not be told: {error}"
                if isinstance(order, TriggerCheckpoint):
                    declined = [not_ready(self._job_id, order, a, cause) for a in action.attempts]
                    self._told(CheckpointAnswered(tuple(declined)))
                    return
                log.info("job %s: of checkpoint %d, %s", self._job_id, order.checkpoint_id, cause)
                if not isinstance(error, _MAY_BE_REPEATED):
                    return
            await self._job_master.rpc_service.pause(_RETRY_DELAY)
