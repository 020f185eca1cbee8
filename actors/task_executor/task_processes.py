"""The task processes of a TaskExecutor: each serves one job, in some of its slots."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from flinkray.actors.gateways.task_executor import TaskExecutorArguments
from flinkray.actors.gateways.task_process import (
    JobPartition,
    TaskProcessArguments,
    TaskProcessGateway,
    TaskProcessHost,
)
from flinkray.actors.shared.deployment_parts import SentParts
from flinkray.actors.shared.leftover_processes import end_with_descendants, sweep_machine
from flinkray.actors.task_executor.spare_task_processes import (
    ProcessRequest,
    SpareTaskProcesses,
    StartedProcess,
)
from flinkray.actors.task_executor.task_process_heartbeats import TaskProcessHeartbeats
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcError,
    RpcTimeoutError,
)
from flinkray.core.ids import ExecutionAttemptID, JobID, JobMasterId
from flinkray.rpc import (
    EndpointSpec,
    HeartbeatSettings,
    Placement,
    RpcEndpoint,
    TerminationWatch,
)
from flinkray.scheduler.checkpoints.messages import CheckpointOrder, TriggerCheckpoint
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import TaskDeployments
from flinkray.streaming.network import DataAddress

log = logging.getLogger(__name__)

TASK_PROCESS_FACTORY = "flinkray.actors.task_process.endpoint:create_task_process"

_CAUSE_TIME = 1.0
"""Seconds to wait after the end of a process for a report with a better cause."""

_ORDER_RETRY_DELAY = 0.1
"""Seconds until a checkpoint order is repeated to a process that may not have received it."""

_MAY_HAVE_ARRIVED = (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError)
"""Errors after which it is unknown whether the call was carried out."""

Call = Callable[[TaskProcessGateway], Coroutine[Any, Any, None]]


class TaskProcessPlace:
    """The process in which a job's tasks of certain slots run, started or still being started.
    The process serves this job alone.
    """

    def __init__(self, number: int, job_id: JobID) -> None:
        self.number = number
        self.job_id = job_id
        self.process: StartedProcess | None = None
        """The started process. None until it has started."""
        self.request: ProcessRequest | None = None
        """The request for a spare process. None once the process has started."""
        self.is_over = False
        """Whether the process has died or was ended. Later tasks get another TaskProcessPlace."""
        self.data_address: DataAddress | None = None
        """Address of the process's channels.
        None before :meth:`TaskProcesses.data_address_of` is called.
        """
        self.sent_parts = SentParts()
        self.waiting: list[Call] = []
        """Calls that are made once the process has started."""
        self.watch: TerminationWatch | None = None
        self.end_watch: ProcessWatch | None = None

    @property
    def gateway(self) -> TaskProcessGateway | None:
        """The gateway of the process. None if there is no process, or not yet."""
        return None if self.process is None or self.is_over else self.process.gateway

    @property
    def process_name(self) -> str | None:
        """The name of the process. None if it has not started yet."""
        return None if self.process is None else self.process.name

    def __str__(self) -> str:
        return f"the task process {self.process_name or 'that is being started'}"


class TaskProcesses:
    """Starts, calls and ends the task processes of a TaskExecutor. Lives on its main thread.

    The index of a slot determines the process for its tasks, so that a restarted task runs in the
    same process. The process ends with the job, so that later jobs are not affected by changes that
    tasks have made in the process.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        arguments: TaskExecutorArguments,
        *,
        slots_per_process: int,
        heartbeat: HeartbeatSettings,
        waiting: int = 0,
        on_died: Callable[[TaskProcessPlace, str], None],
        factory: str = TASK_PROCESS_FACTORY,
    ) -> None:
        """Create the object without processes.

        Args:
            waiting: number of processes that wait for a job while others run, limited by the number
                that the slots need or jobs have taken in the last minutes.
            on_died: called once for each TaskProcessPlace whose process died, was killed or could
                not be started. Calls that wait for this process are dropped.
        """
        self._endpoint = endpoint
        devices = arguments.total_profile.extended
        self._placement = Placement(
            resources=dict(devices),
            worker_group=arguments.worker_group,
            bundle_index=arguments.bundle_index,
        )
        self._arguments = TaskProcessArguments(
            arguments.cluster.cluster_id,
            arguments.cluster.configuration,
            endpoint.address,
            arguments.cluster.storage_dir,
        )
        self._slots_per_process = slots_per_process
        self._waiting = 0 if devices else waiting
        self._on_died = on_died
        self._factory = factory
        self._ahead = 0
        """Number of processes that the TaskExecutor's own slots need."""
        self._heartbeats = TaskProcessHeartbeats(endpoint, heartbeat)
        self._places: dict[tuple[int, JobID], TaskProcessPlace] = {}
        has_processors = endpoint.rpc_service.has_own_process
        self._spares = SpareTaskProcesses(
            endpoint,
            arguments.resource_id,
            self._start_process,
            self._end_started,
            most_ahead=max(1, (os.cpu_count() or 1) // 2) if has_processors else 1,
        )

    def start_ahead(self, number_of_slots: int) -> None:
        """Start processes before jobs need them, as many as *number_of_slots* slots need. None is
        started if a process takes the slot's accelerators, because no other could have them."""
        if not self._placement.resources:
            self._ahead = -(-number_of_slots // self._slots_per_process)
            self._fill()

    async def sweep(self) -> None:
        """Remove what dead task processes have left on this machine."""
        service = self._endpoint.rpc_service
        if service.has_own_process:
            configuration = ReadableConfig(self._arguments.configuration)
            count = await service.run_blocking(
                sweep_machine, self._arguments.cluster_id, configuration
            )
            if count:
                log.info("ended %d processes that lost task processes had started", count)

    def place_of(self, slot_index: int, job_id: JobID) -> TaskProcessPlace:
        """Return the process for the job's tasks in that slot; a missing process is started."""
        key = slot_index // self._slots_per_process, job_id
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = TaskProcessPlace(*key)
            self._fill()
            self._start(place)
        return place

    def _fill(self) -> None:
        in_use = len(self._places)
        wanted = max(self._ahead - in_use, min(self._ahead, self._waiting))
        self._spares.keep(wanted, self._waiting)

    def tell(self, place: TaskProcessPlace, call: Call) -> None:
        """Make *call* to the process in the background, once the process has started.
        Messages arrive in the order of calls. An error is only logged. The death of the process is
        reported by its watch.
        """
        if place.gateway is None:
            place.waiting.append(call)
        else:
            self._send(place, call, place.gateway)

    def run_tasks(
        self,
        place: TaskProcessPlace,
        deployments: TaskDeployments,
        job_master_id: JobMasterId,
        blob_server: str | None,
        on_failed: Callable[[str], None],
    ) -> None:
        """Send tasks to a process, with the shared information that the process does not have yet.
        *on_failed* is called with the cause if the process refuses the message. If it is not known
        whether the message has arrived, the process is killed."""
        job_id = deployments.job_id
        new = place.sent_parts.take_new(job_id, deployments.graph_id, deployments.parts)
        message = replace(deployments, parts=new)

        async def run(process: TaskProcessGateway) -> None:
            try:
                await process.run_tasks(message, job_master_id, blob_server)
            except FlinkRayError as error:
                if place.gateway is not process:
                    return
                if isinstance(error, _MAY_HAVE_ARRIVED):
                    # tasks may run there that would never be heard of again
                    self.kill(place, f"{place} was killed: it did not take its tasks: {error}")
                else:
                    place.sent_parts.forget(job_id)
                    on_failed(f"{place} did not take it: {error}")

        self.tell(place, run)

    def cancel_tasks(
        self, place: TaskProcessPlace, attempts: tuple[ExecutionAttemptID, ...]
    ) -> None:
        self.tell(place, lambda process: process.cancel_tasks(attempts))

    def order_checkpoint(
        self,
        place: TaskProcessPlace,
        order: CheckpointOrder,
        attempts: tuple[ExecutionAttemptID, ...],
        on_failed: Callable[[str], None],
    ) -> None:
        """Send a checkpoint order, and call *on_failed* with the cause if this fails. A
        TriggerCheckpoint is sent once. If another order may have got lost, it is repeated until it
        arrives or the process has ended, because other parties may wait for its effect."""

        async def order_until_told(process: TaskProcessGateway) -> None:
            while place.gateway is process:
                try:
                    await process.order_checkpoint(order, attempts)
                    return
                except FlinkRayError as error:
                    is_lost = isinstance(error, _MAY_HAVE_ARRIVED)
                    if isinstance(order, TriggerCheckpoint) or not is_lost:
                        on_failed(f"{place} could not be told: {error}")
                        return
                    log.info("%s is told again of a checkpoint: %s", place, error)
                await self._endpoint.rpc_service.pause(_ORDER_RETRY_DELAY)

        self.tell(place, order_until_told)

    def release_partitions(
        self, place: TaskProcessPlace, partitions: tuple[JobPartition, ...]
    ) -> None:
        self.tell(place, lambda process: process.release_partitions(partitions))

    async def data_address_of(self, place: TaskProcessPlace) -> DataAddress | None:
        """Return the address of the process's channels. None if there is no process, or not yet.

        Raises:
            FlinkRayError: the process did not answer.
        """
        process = place.gateway
        if process is None or place.data_address is not None:
            return place.data_address
        address = await process.data_address()
        if place.gateway is process:
            place.data_address = address
        return place.data_address

    async def io_metrics_at(
        self, place: TaskProcessPlace, job_id: JobID
    ) -> tuple[TaskIOMetrics, ...]:
        """Return the I/O metrics of the job's stream tasks in a process.
        Empty if the process does not answer in time.
        """
        process = place.gateway
        if process is None:
            return ()
        try:
            return await process.request_io_metrics(job_id)
        except RpcError as error:
            log.info("%s does not return the I/O metrics of its tasks: %s", place, error)
            return ()

    def led_anew(self, job_id: JobID) -> None:
        """Send the job's shared information (``SharedPart``) to its processes again from now on:
        another JobMaster leads the job, and its keys mean other parts than those of the last
        JobMaster."""
        for place in self._places.values():
            if place.job_id == job_id:
                place.sent_parts.forget(job_id)

    def forget_job(self, job_id: JobID) -> None:
        """Tell the job's processes to drop the information that the job's deployments shared."""
        for place in self._places.values():
            if place.job_id == job_id:
                place.sent_parts.forget(job_id)
                self.tell(place, lambda process: process.forget_job(job_id))

    def kill(self, place: TaskProcessPlace, cause: str) -> None:
        """Kill a process. Its death is reported with *cause*, as if it had died, and its tasks
        fail."""
        self._died(place, cause)

    def end(self, place: TaskProcessPlace) -> asyncio.Task[None] | None:
        """End a process that its job does not need any more. Returns a task that is done when the
        process and everything it started are gone. None if there is no process."""
        if place.is_over:
            return None
        self._leave(place)
        self._spares.end_pause()
        return self._end_process(place)

    def _end_process(self, place: TaskProcessPlace) -> asyncio.Task[None] | None:
        return None if place.process is None else self._end_started(place.process)

    def _end_started(self, process: StartedProcess) -> asyncio.Task[None]:
        service, host, name = self._endpoint.rpc_service, process.host, f"end {process.name}"
        killing = self._endpoint.create_task(service.kill(process.name), name)
        if host is None:
            return killing

        async def end() -> None:
            count = await service.run_blocking(end_with_descendants, host)
            if count:
                log.info("ended %d processes that %s had started", count, process.name)
            await self.sweep()

        return self._endpoint.create_task(end(), name)

    def _send(self, place: TaskProcessPlace, call: Call, gateway: TaskProcessGateway) -> None:
        async def send() -> None:
            try:
                await call(gateway)
            except RpcError as error:
                log.info("%s could not be told: %s", place, error)

        self._endpoint.create_task(send(), f"message to {place}")

    def _start(self, place: TaskProcessPlace) -> None:
        place.request = self._spares.request(
            lambda process: self._began(place, process),
            lambda cause: self._died(place, cause),
        )

    async def _start_process(self, name: str, is_ahead: bool) -> StartedProcess:
        service = self._endpoint.rpc_service
        address = await service.spawn(
            EndpointSpec(
                kind="TaskProcess",
                name=name,
                factory=self._factory,
                arguments=self._arguments,
                placement=self._placement,
                is_ahead=is_ahead,
            )
        )
        gateway = await service.connect(address, TaskProcessGateway)
        return StartedProcess(name, gateway, await gateway.host())

    def _began(self, place: TaskProcessPlace, process: StartedProcess) -> None:
        place.process, place.request = process, None
        place.watch = self._endpoint.watch(
            process.gateway, lambda reason: self._died(place, _death_of(place, reason))
        )
        self._watch_end(place, process.host)
        self._heartbeats.monitor(
            process.name,
            process.gateway,
            process.host,
            lambda silence: self._died(place, f"{place} was killed: {silence}"),
        )
        waiting, place.waiting = place.waiting, []
        for call in waiting:
            self._send(place, call, process.gateway)

    def _watch_end(self, place: TaskProcessPlace, host: TaskProcessHost | None) -> None:
        if host is None:
            return
        cause = _death_of(place, f"there is no process {host.pid} any more")

        def ended() -> None:
            # the other watch knows more about the cause, if it notices the end
            self._endpoint.schedule_run_async(_CAUSE_TIME, lambda: self._died(place, cause))

        try:
            place.end_watch = ProcessWatch(self._endpoint.rpc_service.loop, host.pid, ended)
        except ProcessLookupError:
            ended()
        except OSError as error:
            log.info("the end of %s is heard of by its connection only: %s", place, error)

    def _died(self, place: TaskProcessPlace, cause: str) -> None:
        if place.is_over or not self._endpoint.is_running:
            return
        log.warning("%s: %s", self._endpoint.address, cause)
        self._leave(place)
        self._end_process(place)
        self._on_died(place, cause)

    def _leave(self, place: TaskProcessPlace) -> None:
        place.is_over = True
        place.waiting = []
        place.data_address = None
        if place.watch is not None:
            place.watch.cancel()
        if place.end_watch is not None:
            place.end_watch.cancel()
        if place.process is not None:
            self._heartbeats.unmonitor(place.process.name)
        if place.request is not None:
            self._spares.withdraw(place.request)
        del self._places[place.number, place.job_id]
        self._fill()


def _death_of(place: TaskProcessPlace, reason: str) -> str:
    return f"{place} died: {reason}. Its last words: flinkray logs {place.job_id}"


class ProcessWatch:
    """Calls *on_ended* once on the event loop when the process has ended.

    This is needed for a process that has forked others: its sockets stay open in them. So neither a
    broken connection nor Ray, which watches a connection, shows its end.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, on_ended: Callable[[], None]
    ) -> None:
        """Watch the process with this *pid*.

        Raises:
            OSError: there is no such process, or the kernel is older than Linux 5.3.
        """
        self._loop = loop
        self._on_ended = on_ended
        self._descriptor: int | None = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._ended)

    def cancel(self) -> None:
        """Stop the watch: there is no callback after this. Idempotent."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _ended(self) -> None:
        self.cancel()
        self._on_ended()
