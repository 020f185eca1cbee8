"""Sends the updates of global aggregates by a task's functions to the job's coordinator."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from flinkray.actors.gateways.stream_coordinator import (
    AggregateAnswer,
    AggregateUpdate,
    StreamCoordinatorGateway,
    stream_coordinator_address,
)
from flinkray.actors.task_process.code_failure import Cancellation
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.core.error_text import summary_of
from flinkray.core.errors import CoordinatorReplacedError, RpcError
from flinkray.rpc import RpcService
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import AggregateFunction
from flinkray.streaming.functions.global_aggregates import (
    GlobalAggregateManager,
    GlobalAggregatesLostError,
    check_aggregate,
    pickled_aggregand,
)
from flinkray.streaming.network import Signal
from flinkray.user_code import UserCodeError, dump_function

log = logging.getLogger(__name__)

IN = TypeVar("IN")
OUT = TypeVar("OUT")

_PAUSE = 0.1
"""Seconds until an unanswered update is repeated."""


class GlobalAggregateClient(GlobalAggregateManager):
    """Sends the updates of global aggregates for one attempt of a task, one at a time.
    Created on the event loop. Any thread of the task's functions may update. Each update is
    repeated until the coordinator answers, because the coordinator may not have started yet or may
    be replaced. The coordinator ignores repetitions.
    """

    def __init__(
        self,
        rpc_service: RpcService,
        deployed: DeployedTask,
        signal: Signal,
        cancellation: Cancellation,
    ) -> None:
        """Create the client of an attempt.
        *signal* wakes the thread that waits for an answer. Nothing else may use it.
        """
        self._rpc_service = rpc_service
        self._deployed = deployed
        self._signal = signal
        self._check_cancelled = cancellation.check
        cancellation.listen(signal.set)
        self._turn = threading.Lock()
        self._number = 0
        self._known: str | None = None
        """Id of the coordinator that has answered last. None before the first answer."""
        self._functions: dict[str, tuple[AggregateFunction[Any, Any, Any], bytes]] = {}
        """Name of an aggregate -> the last function, and its pickled form."""
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def update_global_aggregate(
        self, name: str, aggregand: IN, aggregate_function: AggregateFunction[IN, Any, OUT]
    ) -> OUT:
        check_aggregate(name, aggregate_function)
        deployed = self._deployed
        if not deployed.job.has_stream_sources:
            raise StreamError(
                f"{deployed.name} cannot update the global aggregate {name!r}: its job is a "
                "BatchJob in which all sources are Spark stages, and such a job has no global "
                "aggregates"
            )
        value = pickled_aggregand(name, aggregand)
        with self._turn:
            function = self._dump(name, aggregate_function)
            self._number += 1
            update = AggregateUpdate(
                deployed.coordinator_owner,
                deployed.attempt_id,
                self._number,
                self._known,
                name,
                value,
                function,
                deployed.blob_server,
            )
            answer = self._answer(update)
            self._known = answer.coordinator
        if answer.result is None:
            raise GlobalAggregatesLostError(name)
        loaded: OUT = pickle.loads(answer.result)
        return loaded

    def _dump(self, name: str, function: AggregateFunction[Any, Any, Any]) -> bytes:
        known, code = self._functions.get(name, (None, b""))
        if known is not function:
            try:
                code = dump_function(lambda _: function)
            except UserCodeError as error:
                raise StreamError(
                    f"the function of the global aggregate {name!r} cannot be sent: {error}"
                ) from error
            self._functions[name] = function, code
        return code

    def _answer(self, update: AggregateUpdate) -> AggregateAnswer:
        answer: Future[AggregateAnswer] = Future()
        answer.add_done_callback(lambda _: self._signal.set())
        self._call(lambda: self._begin(update, answer))
        while not answer.done():
            self._signal.wait()
            self._check_cancelled()
        try:
            return answer.result()
        except RpcError as error:
            # an RpcError would count as the loss of the task's input
            raise StreamError(
                f"the global aggregate {update.name!r} was not updated: {summary_of(error)}"
            ) from error

    def _call(self, function: Callable[[], None]) -> None:
        self._rpc_service.loop.call_soon_threadsafe(function)

    def _begin(self, update: AggregateUpdate, answer: Future[AggregateAnswer]) -> None:
        def ended() -> None:
            if not answer.done():
                answer.set_exception(StreamError(f"{self._deployed.name} has ended"))

        if self._is_closed:
            ended()
            return
        self._asking = asyncio.ensure_future(self._ask(update, answer))
        self._asking.add_done_callback(lambda _: ended())

    async def _ask(self, update: AggregateUpdate, answer: Future[AggregateAnswer]) -> None:
        address = stream_coordinator_address(self._deployed.job.job_id, update.job_master_id)
        while True:
            try:
                coordinator = await self._rpc_service.connect(address, StreamCoordinatorGateway)
                answer.set_result(await coordinator.update_global_aggregate(update))
                return
            except Exception as error:  # noqa: BLE001 - also an error of the user's function
                is_retryable = isinstance(error, RpcError) and error.retryable
                if not is_retryable and not isinstance(error, CoordinatorReplacedError):
                    answer.set_exception(error)
                    return
                log.info("%s does not update %r yet: %s", address, update.name, error)
            await self._rpc_service.pause(_PAUSE)

    def close(self) -> None:
        """Stop sending, because the task has ended. Called on the event loop."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
