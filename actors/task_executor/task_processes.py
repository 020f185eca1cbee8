"""The task processes of a TaskExecutor: each serves one job, in some of its slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from flinkray.actors.gateways.task_executor_arguments import TaskExecutorArguments
from flinkray.actors.gateways.task_process import (
    JobPartition,
    TaskProcessArguments,
    TaskProcessGateway,
    TaskProcessHost,
)
from flinkray.actors.shared.deployment_parts import SentParts
from flinkray.actors.shared.job_files import sweep_job_files
from flinkray.actors.task_executor.leftover_processes import end_orphans, end_with_descendants
from flinkray.actors.task_executor.process_watch import ProcessWatch
from flinkray.actors.task_executor.task_process_heartbeats import TaskProcessHeartbeats
from flinkray.actors.task_executor.task_process_pool import (
    ProcessRequest,
    StartedProcess,
    TaskProcessPool,
)
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
"""Seconds from the end of a process until it is reported without knowing more."""

_ORDER_RETRY_DELAY = 0.1
"""Seconds until a process is told again of a checkpoint that it may not have been told of."""

_MAY_HAVE_ARRIVED = (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError)
"""What a call fails with that was carried out all the same, perhaps."""

Call = Callable[[TaskProcessGateway], Coroutine[Any, Any, None]]


class TaskProcessPlace:
    """Where the tasks of a job run that are in certain slots: a process of that job alone, or the
    one that is being started."""

    def __init__(self, number: int, job_id: JobID) -> None:
        self.number = number
        self.job_id = job_id
        self.process: StartedProcess | None = None
        """None: it is not there yet."""
        self.request: ProcessRequest | None = None
        """By which it is waited for."""
        self.is_over = False
        """The process has died or was ended, and another place takes this one's."""
        self.data_address: DataAddress | None = None
        """None: nobody has asked for it."""
        self.sent_parts = SentParts()
        self.waiting: list[Call] = []
        """For the process that is being started."""
        self.watch: TerminationWatch | None = None
        self.end_watch: ProcessWatch | None = None

    @property
    def gateway(self) -> TaskProcessGateway | None:
        """None: there is no process (yet)."""
        return None if self.process is None or self.is_over else self.process.gateway

    @property
    def process_name(self) -> str | None:
        """None: there is no process yet."""
        return None if self.process is None else self.process.name

    def __str__(self) -> str:
        return f"the task process {self.process_name or 'that is being started'}"


class TaskProcesses:
    """Lives on the main thread of its TaskExecutor.

    The process of a job's slot follows from the slot's index, so that a restarted task finds its
    process there.  It ends with the job: what the job has done to it, later jobs do not see.
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
        """
        Args:
            waiting: so many wait for a job while others run, but no more than the slots need.
            on_died: called once for each place whose process died, was killed or could not be
                started; what was waiting for it is dropped.
        """
        self._endpoint = endpoint
        self._placement = Placement(
            worker_group=arguments.worker_group, bundle_index=arguments.bundle_index
        )
        self._arguments = TaskProcessArguments(
            arguments.cluster.cluster_id,
            arguments.cluster.configuration,
            endpoint.address,
            arguments.cluster.storage_dir,
        )
        self._slots_per_process = slots_per_process
        self._waiting = waiting
        self._on_died = on_died
        self._factory = factory
        self._ahead = 0
        """So many the TaskExecutor's own slots need."""
        self._heartbeats = TaskProcessHeartbeats(endpoint, heartbeat)
        self._places: dict[tuple[int, JobID], TaskProcessPlace] = {}
        self._pool = TaskProcessPool(endpoint, arguments.resource_id, self._start_process)

    def start_ahead(self, number_of_slots: int) -> None:
        """Keep processes waiting for the slots with the first so many indices."""
        self._ahead = -(-number_of_slots // self._slots_per_process)
        self._fill()

    async def sweep(self) -> None:
        """Remove what processes have left here that died with their TaskExecutor: what they had
        started, and the files of jobs."""
        service = self._endpoint.rpc_service
        if service.has_own_process:
            count = await service.run_blocking(end_orphans)
            if count:
                log.info("ended %d processes that lost task processes had started", count)
            await service.run_blocking(sweep_job_files, self._arguments.cluster_id)

    def place_of(self, slot_index: int, job_id: JobID) -> TaskProcessPlace:
        """Where a job's tasks run that are in that slot."""
        key = slot_index // self._slots_per_process, job_id
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = TaskProcessPlace(*key)
            self._fill()
            self._start(place)
        return place

    def _fill(self) -> None:
        in_use = len(self._places)
        self._pool.keep(max(self._ahead - in_use, min(self._ahead, self._waiting)))

    def tell(self, place: TaskProcessPlace, call: Call) -> None:
        """Send to the place's process, or to the one that is being started.  Messages arrive in the
        order of these calls; an error is logged, as death is told by the watch."""
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
        """Send tasks, with those of the parts that the process has not been sent."""
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
                    # tasks may run there of which nobody would ever hear again
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
        """A TriggerCheckpoint is sent once; other orders until they have arrived, as somebody may
        wait for each, or the process is over."""

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
        """Where the channels of the place's process are reached; None: it is not there (yet).

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
        """Of the stream tasks that run there; none if the process does not answer in time."""
        process = place.gateway
        if process is None:
            return ()
        try:
            return await process.request_io_metrics(job_id)
        except RpcError as error:
            log.info("%s does not tell what its tasks have read and written: %s", place, error)
            return ()

    def led_anew(self, job_id: JobID) -> None:
        """The parts of its next deployments are another JobMaster's: the keys of the last one meant
        something else."""
        for place in self._places.values():
            if place.job_id == job_id:
                place.sent_parts.forget(job_id)

    def forget_job(self, job_id: JobID) -> None:
        """Nothing that its processes have been told goes on."""
        for place in self._places.values():
            if place.job_id == job_id:
                place.sent_parts.forget(job_id)
                self.tell(place, lambda process: process.forget_job(job_id))

    def kill(self, place: TaskProcessPlace, cause: str) -> None:
        """End the place's process; its tasks have failed."""
        self._died(place, cause)

    def end(self, place: TaskProcessPlace) -> asyncio.Task[None] | None:
        """The job needs the process no more.  What is returned is done when it is gone, with all
        that it started; None: there is none."""
        if place.is_over:
            return None
        self._leave(place)
        self._pool.end_pause()
        return self._end_process(place)

    def _end_process(self, place: TaskProcessPlace) -> asyncio.Task[None] | None:
        process, service = place.process, self._endpoint.rpc_service
        if process is None:
            return None

        host, name = process.host, f"end {process.name}"
        killing = self._endpoint.create_task(service.kill(process.name), name)
        if host is None:
            return killing

        async def end() -> None:
            count = await service.run_blocking(end_with_descendants, host)
            if count:
                log.info("ended %d processes that %s had started", count, place)
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
        place.request = self._pool.request(
            lambda process: self._began(place, process),
            lambda cause: self._died(place, cause),
        )

    async def _start_process(self, name: str) -> StartedProcess:
        """Raises whatever the new process raised while it started."""
        service = self._endpoint.rpc_service
        address = await service.spawn(
            EndpointSpec(
                kind="TaskProcess",
                name=name,
                factory=self._factory,
                arguments=self._arguments,
                placement=self._placement,
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
            # the other watch knows more of the cause, if it gets to know of the end
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
            self._pool.withdraw(place.request)
        del self._places[place.number, place.job_id]
        self._fill()


def _death_of(place: TaskProcessPlace, reason: str) -> str:
    """Why, as after a crash in native code, is said nowhere but in what the process has written."""
    return f"{place} died: {reason}. Its last words: flinkray logs {place.job_id}"
