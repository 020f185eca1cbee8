"""The task processes of a TaskExecutor: started ahead, watched, replaced when they die."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from flinkray.actors.gateways.task_executor_arguments import TaskExecutorArguments
from flinkray.actors.gateways.task_process import (
    JobPartition,
    TaskProcessArguments,
    TaskProcessGateway,
)
from flinkray.actors.shared.deployment_parts import SentParts
from flinkray.actors.task_executor.standby_task_processes import RESTART_PAUSE, StandbyTaskProcesses
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import ExecutionAttemptID, JobID, JobMasterId
from flinkray.rpc import EndpointSpec, Placement, RpcEndpoint, TerminationWatch
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import TaskDeployments
from flinkray.streaming.network import DataAddress

log = logging.getLogger(__name__)

TASK_PROCESS_FACTORY = "flinkray.actors.task_process.endpoint:create_task_process"

Call = Callable[[TaskProcessGateway], Coroutine[Any, Any, None]]


class TaskProcessPlace:
    """Where the tasks of some slots run: a process, or the one that is being started for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts = 0
        self.process_name: str | None = None
        self.gateway: TaskProcessGateway | None = None
        """None: not there (yet)."""
        self.data_address: DataAddress | None = None
        """Of the present process; None: nobody has asked for it."""
        self.sent_parts = SentParts()
        """To the present process."""
        self.waiting: list[Call] = []
        """For the process that is being started."""
        self.watch: TerminationWatch | None = None

    def __str__(self) -> str:
        return f"the task process {self.process_name}"


class TaskProcesses:
    """Lives on the main thread of its TaskExecutor.

    Slots are given to places by their index, so a slot's place never changes.  The places of the
    TaskExecutor's own slots get their processes at the start, others when they are first used.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        arguments: TaskExecutorArguments,
        *,
        slots_per_process: int,
        standbys: int = 0,
        on_died: Callable[[TaskProcessPlace, str], None],
        factory: str = TASK_PROCESS_FACTORY,
    ) -> None:
        """*standbys*: so many more wait to take the place of one that dies.  *on_died* is called
        once for each process of a place that died, was killed or could not be started; what was
        waiting for it is dropped."""
        self._endpoint = endpoint
        self._resource_id = arguments.resource_id
        self._placement = Placement(
            worker_group=arguments.worker_group, bundle_index=arguments.bundle_index
        )
        self._arguments = TaskProcessArguments(arguments.cluster.configuration, endpoint.address)
        self._slots_per_process = slots_per_process
        self._on_died = on_died
        self._factory = factory
        self._places: dict[int, TaskProcessPlace] = {}
        self._standbys = StandbyTaskProcesses(
            endpoint, arguments.resource_id, standbys, self._start_process
        )

    def start_ahead(self, number_of_slots: int) -> None:
        """Start the processes for the slots with the first so many indices."""
        for slot_index in range(0, number_of_slots, self._slots_per_process):
            self.place_of(slot_index)

    def place_of(self, slot_index: int) -> TaskProcessPlace:
        """Where a slot's tasks run."""
        number = slot_index // self._slots_per_process
        place = self._places.get(number)
        if place is None:
            place = self._places[number] = TaskProcessPlace(number)
            self._start(place)
        return place

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
                if place.gateway is process:
                    place.sent_parts.forget(job_id)
                    on_failed(f"{place} did not take it: {error}")

        self.tell(place, run)

    def cancel_tasks(
        self, place: TaskProcessPlace, attempts: tuple[ExecutionAttemptID, ...]
    ) -> None:
        self.tell(place, lambda process: process.cancel_tasks(attempts))

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

    def forget_job(self, job_id: JobID) -> None:
        """Its next deployments are another JobMaster's."""
        for place in self._places.values():
            place.sent_parts.forget(job_id)
            self.tell(place, lambda process: process.forget_job(job_id))

    def kill(self, place: TaskProcessPlace, cause: str) -> None:
        """End the place's process and start another."""
        name = place.process_name
        if name is not None:
            self._endpoint.create_task(self._endpoint.rpc_service.kill(name), f"kill {name}")
        self._died(place, place.starts, cause)

    def _send(self, place: TaskProcessPlace, call: Call, gateway: TaskProcessGateway) -> None:
        async def send() -> None:
            try:
                await call(gateway)
            except RpcError as error:
                log.info("%s could not be told: %s", place, error)

        self._endpoint.create_task(send(), f"message to {place}")

    def _start(self, place: TaskProcessPlace, delay: float = 0.0) -> None:
        place.starts += 1
        start = place.starts
        place.sent_parts = SentParts()
        standby = self._standbys.take()
        if standby is not None:
            place.process_name, process = standby
            self._began(place, start, process)
            return
        place.process_name = f"TaskProcess-{place.number}.{start}-{self._resource_id}"
        if delay:
            self._endpoint.schedule_run_async(delay, lambda: self._spawn_later(place, start))
        else:
            self._spawn_later(place, start)

    def _spawn_later(self, place: TaskProcessPlace, start: int) -> None:
        self._endpoint.create_task(self._spawn(place, start), f"start {place}")

    async def _spawn(self, place: TaskProcessPlace, start: int) -> None:
        name = place.process_name
        assert name is not None
        try:
            process = await self._start_process(name)
        except Exception as error:  # noqa: BLE001 - whatever the new process raised while it started
            cause = f"{place} could not be started: {type(error).__name__}: {error}"
            self._died(place, start, cause, pause=RESTART_PAUSE)
            return
        if place.starts != start:
            await self._endpoint.rpc_service.kill(name)
            return
        self._began(place, start, process)

    async def _start_process(self, name: str) -> TaskProcessGateway:
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
        return await service.connect(address, TaskProcessGateway)

    def _began(self, place: TaskProcessPlace, start: int, process: TaskProcessGateway) -> None:
        place.gateway = process
        place.watch = self._endpoint.watch(
            process, lambda reason: self._died(place, start, f"{place} died: {reason}")
        )
        waiting, place.waiting = place.waiting, []
        for call in waiting:
            self._send(place, call, process)
        self._standbys.fill()  # not before: what a job waits for comes first

    def _died(self, place: TaskProcessPlace, start: int, cause: str, pause: float = 0.0) -> None:
        if place.starts != start or not self._endpoint.is_running:
            return
        log.warning("%s: %s", self._resource_id, cause)
        if place.watch is not None:
            place.watch.cancel()
        place.gateway = place.watch = place.data_address = None
        place.waiting = []
        self._start(place, pause)
        self._on_died(place, cause)
