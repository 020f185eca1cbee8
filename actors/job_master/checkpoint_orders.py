"""Sends a JobMaster's checkpoint orders to tasks."""

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
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.messages import TriggerCheckpoint
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.job_scheduler_actions import OrderCheckpoint
from flinkray.scheduler.job.transitions import CheckpointAnswered

log = logging.getLogger(__name__)

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
        """Create the sender.
        *told* is called with a decline for each task that did not get the order to begin a
        checkpoint.
        """
        self._job_master = job_master
        self._graph = graph
        self._task_executors = task_executors
        self._told = told

    def carry_out(self, action: OrderCheckpoint) -> None:
        """Send an order in the background.
        A trigger is sent once, because a repetition could arrive after the abort of its checkpoint.
        Other orders are repeated until they arrive or the TaskExecutor is lost.
        """
        self._job_master.create_task(self._carry_out(action), "order a checkpoint")

    async def _carry_out(self, action: OrderCheckpoint) -> None:
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
