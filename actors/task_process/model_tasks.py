"""The replicas of models that run in a task process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from flinkray.actors.gateways.models import REPLICAS
from flinkray.actors.task_process.code_failure import Cancellation
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.task_runtime import TaskRuntime
from flinkray.core.clock import Clock
from flinkray.core.error_text import summary_of
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import KvStateID
from flinkray.core.kv_states import KvStateRegistration, UnknownKvStateIdError
from flinkray.rpc import RpcEndpoint
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.state.kv_state_registry import KvStateRegistry, Registered
from flinkray.streaming.functions.models import (
    ModelContext,
    ModelFunction,
    ModelUnavailableError,
)
from flinkray.streaming.operators.model_replicas import answer

log = logging.getLogger(__name__)


class ModelTasks:
    """The replicas of a task process. Lives on its main thread."""

    def __init__(
        self, endpoint: RpcEndpoint, runtime: TaskRuntime, registry: KvStateRegistry
    ) -> None:
        """Create the collection, without replicas.
        *registry*: reports to JobMasters where the replicas are, as where queryable states are.
        """
        self.endpoint = endpoint
        self.runtime = runtime
        self.registry = registry
        self.running: dict[KvStateID, ReplicaTask] = {}

    def prepare(self, deployed: DeployedTask) -> ReplicaTask:
        """Return the resources of a replica's task."""
        return ReplicaTask(self, deployed)

    async def infer(self, replica: KvStateID, request: bytes, others_wait: bool) -> bytes:
        """Return a replica's answer; see :class:`ModelReplicaGateway`."""
        task = self.running.get(replica)
        if task is None:
            raise UnknownKvStateIdError(replica)
        return await task.ask(request, others_wait)


@dataclass(frozen=True, slots=True)
class _Request:
    contents: bytes
    others_wait: bool
    answered: asyncio.Future[bytes]


class ReplicaTask:
    """One attempt of a replica. Its thread loads the model, and then answers requests one after
    the other."""

    has_finished = False

    def __init__(self, tasks: ModelTasks, deployed: DeployedTask) -> None:
        self._tasks = tasks
        self._deployed = deployed
        self._id = KvStateID.generate()
        self._signal = tasks.runtime.signal()
        self._clock: Clock = tasks.runtime.clock
        self._requests: deque[_Request] = deque()
        self._cancellation: Cancellation | None = None
        self._records = 0
        self._busy = 0.0
        self._pressed = 0.0
        """Seconds of work during which further requests waited at the callers."""
        self._began: float | None = None
        self._current: _Request | None = None

    # --- on the event loop --------------------------------------------------------------------

    async def open(self, cancellation: Cancellation) -> Callable[[ModelFunction], None]:
        """Return the function that runs the model in the task's thread."""
        cancellation.listen(self._signal.set)
        self._cancellation = cancellation
        return self._run

    async def ask(self, contents: bytes, others_wait: bool) -> bytes:
        """Return the model's answer to a request. A request whose caller is gone is dropped, unless
        the model works for it already."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._requests.append(_Request(contents, others_wait, answered))
        self._signal.set()
        return await answered

    async def finish(self) -> None:
        """Do nothing: a replica has no outputs."""

    async def settle(self) -> None:
        """Do nothing: only the thread works for the replica."""

    def io_metrics(self) -> IOMetrics | None:
        """Return what the replica has done since its model was loaded. The time in which it worked
        while further requests waited at the callers counts as back-pressured."""
        if self._began is None:
            return None
        elapsed = self._clock.monotonic() - self._began
        busy, pressed = self._busy, self._pressed
        idle = max(0.0, elapsed - busy - pressed)
        return IOMetrics(self._records, None, None, None, _ms(busy), _ms(pressed), _ms(idle))

    def ended(self, state: TaskExecutionState) -> None:
        """Refuse all requests, because the attempt has ended."""
        self._tasks.running.pop(self._id, None)
        self._tasks.registry.unregister(self._id)
        gone = UnknownKvStateIdError(self._id)
        current, self._current = self._current, None
        if current is not None and state.state is ExecutionState.FAILED:  # perhaps the cause
            text = f"{self._deployed.name} has failed: {state.failure}"
            _settle(current, ModelUnavailableError(text))
        elif current is not None:
            _settle(current, gone)
        while self._requests:
            _settle(self._requests.popleft(), gone)

    # --- in the task's thread -----------------------------------------------------------------

    def _run(self, model: ModelFunction) -> None:
        deployed = self._deployed
        resources = self._tasks.endpoint.rpc_service.devices
        devices = tuple(device for ids in resources.values() for device in ids)
        name, replica = deployed.vertex.name, deployed.task.subtask_index
        model.open(ModelContext(name, replica, devices))
        try:
            self._began = self._clock.monotonic()
            self._on_loop(self._register)
            while True:
                self._answer(model, self._next())
        finally:
            model.close()

    def _register(self) -> None:
        deployed, subtask = self._deployed, self._deployed.task.subtask_index
        self._tasks.running[self._id] = self
        self._tasks.registry.register(
            Registered(
                KvStateRegistration(
                    deployed.job.job_id,
                    deployed.attempt_id,
                    deployed.vertex.vertex_id.hex(),
                    subtask,
                    subtask,
                    REPLICAS,
                    self._id,
                    self._tasks.endpoint.address,
                    "model",
                    None,
                )
            )
        )

    def _next(self) -> _Request:
        assert self._cancellation is not None
        while True:
            self._cancellation.check()
            if self._requests:
                return self._requests.popleft()
            self._signal.wait()

    def _answer(self, model: ModelFunction, request: _Request) -> None:
        if request.answered.done():  # the caller waits no more
            return
        self._current = request
        begin = self._clock.monotonic()
        outcome: bytes | FlinkRayError
        try:
            outcome, records = answer(model, request.contents)
            self._records += records
        except FlinkRayError as error:
            log.info("%s: %s", self._deployed.name, summary_of(error))
            outcome = error.with_traceback(None)
        seconds = self._clock.monotonic() - begin
        if request.others_wait:
            self._pressed += seconds
        else:
            self._busy += seconds
        self._current = None
        self._on_loop(lambda: _settle(request, outcome))

    def _on_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the process ends
            self._tasks.endpoint.rpc_service.loop.call_soon_threadsafe(function)


def _settle(request: _Request, outcome: bytes | FlinkRayError) -> None:
    if request.answered.done():
        return
    if isinstance(outcome, bytes):
        request.answered.set_result(outcome)
    else:
        request.answered.set_exception(outcome)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
