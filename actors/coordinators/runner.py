"""Runs the operator coordinators of a JobMaster, each in a process of its own."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from flinkray.actors.coordinators.process import ConnectedCoordinator, CoordinatorProcess
from flinkray.actors.coordinators.processes import CoordinatorProcesses
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError
from flinkray.core.ids import ResourceID
from flinkray.rpc import (
    EndpointSpec,
    HeartbeatSender,
    HeartbeatSettings,
    RpcEndpoint,
    TerminationWatch,
)
from flinkray.rpc.spec import split_address
from flinkray.scheduler.job.coordinator_events import CoordinatorID
from flinkray.scheduler.job.job_scheduler_actions import StopCoordinator

log = logging.getLogger(__name__)


_ENDS_WITHIN = 1.0
"""Seconds that the process of a coordinator that was stopped has to end by itself."""


class CoordinatorListener(Protocol):
    """Callbacks for events of coordinators.
    They run on the main thread of the coordinators' owner.
    """

    def coordinator_started(self, coordinator: CoordinatorID, address: str) -> None:
        """Called when the coordinator runs and this process is connected to it."""

    def coordinator_lost(self, coordinator: CoordinatorID, cause: str) -> None:
        """Called when a coordinator that should run has died, or could not be started.
        Its process has ended. Not called for a coordinator that is being stopped.
        """

    def coordinator_stopped(self, coordinator: CoordinatorID) -> None:
        """Called after :meth:`CoordinatorRunner.stop` when the process is gone, or if there was
        none."""


@dataclass
class _Running:
    process: str
    how: CoordinatorProcess
    start: asyncio.Task[None]
    address: str | None = None
    watch: TerminationWatch | None = None
    connected: ConnectedCoordinator | None = None
    stop: asyncio.Task[None] | None = None


class CoordinatorRunner:
    """Starts, watches and stops the processes of coordinators, as the JobScheduler decides.

    The runner makes no decisions itself, for instance whether a lost coordinator is started again.
    If the owner's process dies, its coordinators end too, except for the kinds that the job's next
    JobMaster may take over.
    """

    def __init__(
        self,
        owner: RpcEndpoint,
        kinds: CoordinatorProcesses,
        listener: CoordinatorListener,
        heartbeat: HeartbeatSettings,
    ) -> None:
        self._owner = owner
        self._kinds = kinds
        self._listener = listener
        self._heartbeat = heartbeat
        self._heartbeats: HeartbeatSender[None, None] | None = None
        self._running: dict[CoordinatorID, _Running] = {}
        self._ending: list[_Running] = []
        """Coordinators that :meth:`kill_all` has given time to end by themselves."""

    # --- starting ---------------------------------------------------------------------------------

    def start(self, coordinator: CoordinatorID, spec: EndpointSpec) -> None:
        """Start the process of a coordinator in the background."""
        how = self._kinds[coordinator.kind]
        task = self._owner.create_task(
            self._start(coordinator, how, spec), name=f"start {spec.name}"
        )
        self._running[coordinator] = _Running(spec.name, how, task)

    async def _start(
        self, coordinator: CoordinatorID, how: CoordinatorProcess, spec: EndpointSpec
    ) -> None:
        service = self._owner.rpc_service
        try:
            if how.has_fixed_name:
                await service.kill(spec.name)  # the process of another attempt
            address = await service.spawn(await how.prepared(spec))
            connected = await how.connect(service, address)
        except Exception as error:  # noqa: BLE001 - whatever its own start-up raised
            await service.kill(spec.name)  # the process may exist although it did not answer
            cause = f"{how.title} did not start: {type(error).__name__}: {error}"
            self._lost(coordinator, cause)
            return
        running = self._running[coordinator]
        running.address, running.connected = address, connected
        if running.stop is None:
            self._look_after(coordinator, running, connected)
            self._listener.coordinator_started(coordinator, address)

    def adopted(
        self, coordinator: CoordinatorID, address: str, connected: ConnectedCoordinator
    ) -> None:
        """Watch a running coordinator that an earlier JobMaster has started. From now on this
        object also stops it, like the coordinators that it has started itself."""
        how = self._kinds[coordinator.kind]
        process, _ = split_address(address)
        there = self._owner.create_task(_nothing(), name=f"adopt {process}")
        running = _Running(process, how, there, address, connected=connected)
        self._running[coordinator] = running
        self._look_after(coordinator, running, connected)

    def _look_after(
        self, coordinator: CoordinatorID, running: _Running, connected: ConnectedCoordinator
    ) -> None:
        def died(reason: str) -> None:
            if running.how.is_killed_when_lost:
                killing = self._end_useless(coordinator, running, f"died: {reason}")
                self._owner.create_task(killing, f"end {running.process}")
            else:
                self._lost(coordinator, f"{running.how.title} died: {reason}")

        running.watch = self._owner.watch(connected.gateway, died)
        self._monitor(running.process, connected)

    # --- watching ---------------------------------------------------------------------------------

    def _monitor(self, process: str, connected: ConnectedCoordinator) -> None:
        """Send heartbeats to the coordinator. A silent coordinator is killed and counts as lost."""
        if self._heartbeats is None:
            silence = f"no heartbeat from it for {self._heartbeat.timeout:g} s"
            self._heartbeats = HeartbeatSender(
                self._owner,
                self._heartbeat,
                payload=lambda _: None,
                on_timeout=lambda target: self._deaf(target, silence),
                on_unreachable=lambda target: self._deaf(target, "it is unreachable"),
            )
        heartbeats, target = self._heartbeats, ResourceID(process)

        async def ask() -> None:
            await connected.request_heartbeat()
            heartbeats.receive_heartbeat(target, None)

        heartbeats.monitor_target(target, lambda _: ask())

    def _deaf(self, process: ResourceID, reason: str) -> None:
        for coordinator, running in self._running.items():
            if running.process == process and running.stop is None:
                self._owner.create_task(
                    self._end_useless(coordinator, running, f"was killed: {reason}"),
                    f"end {process}",
                )

    async def _end_useless(self, coordinator: CoordinatorID, running: _Running, how: str) -> None:
        if running.watch is not None:
            running.watch.cancel()
        await self._owner.rpc_service.kill(running.process)
        if self._running.get(coordinator) is running:
            self._lost(coordinator, f"{running.how.title} {how}")

    def address_of(self, coordinator: CoordinatorID) -> str | None:
        """Return the coordinator's address. None if it has not started or is being stopped."""
        running = self._running.get(coordinator)
        return None if running is None or running.stop is not None else running.address

    def outlives_us(self, coordinator: CoordinatorID) -> bool:
        """Return whether the coordinator runs on if this JobMaster dies, for the next one."""
        return self._kinds[coordinator.kind].outlives_its_job_master

    def give_up(self, coordinator: CoordinatorID, cause: str) -> None:
        """Begin to kill the coordinator's process, for example because it misbehaves, and then
        report it as lost. Does nothing if the coordinator does not run or is being stopped."""
        running = self._running.get(coordinator)
        if running is not None and running.stop is None:
            self._owner.create_task(
                self._end_useless(coordinator, running, f"was killed: {cause}"),
                f"end {running.process}",
            )

    def _unmonitor(self, running: _Running) -> None:
        if running.watch is not None:
            running.watch.cancel()
        if self._heartbeats is not None:
            self._heartbeats.unmonitor_target(ResourceID(running.process))

    def _lost(self, coordinator: CoordinatorID, cause: str) -> None:
        running = self._running.get(coordinator)
        if running is not None and running.stop is None:
            del self._running[coordinator]
            self._unmonitor(running)
            name = running.how.name_of(coordinator)
            log.warning("%s (%s): %s", name, coordinator, cause)
            self._listener.coordinator_lost(coordinator, cause)

    # --- stopping ---------------------------------------------------------------------------------

    def stop(self, action: StopCoordinator) -> None:
        """Stop the coordinator, gracefully if possible.
        ``coordinator_stopped`` follows when its process is gone, even if there was none.
        """
        coordinator = action.coordinator
        running = self._running.get(coordinator)
        if running is None:
            self._owner.run_async(lambda: self._listener.coordinator_stopped(coordinator))
        elif running.stop is None:
            running.stop = self._owner.create_task(
                self._stop(coordinator, running), name=f"stop {running.process}"
            )

    async def _stop(self, coordinator: CoordinatorID, running: _Running) -> None:
        self._unmonitor(running)
        # otherwise the start would have to wait for a node that may never come
        running.start.cancel()
        await asyncio.wait([running.start])
        if running.connected is not None:
            await self._have_stopped(coordinator, running, running.connected)
        else:
            await self._owner.rpc_service.kill(running.process)
        self._running.pop(coordinator, None)
        self._listener.coordinator_stopped(coordinator)

    async def _have_stopped(
        self, coordinator: CoordinatorID, running: _Running, connected: ConnectedCoordinator
    ) -> None:
        name, process = running.how.name_of(coordinator), running.process
        try:
            await connected.stop()
        except CoordinatorReplacedError as error:
            log.warning("%s (%s) goes on: %s", name, process, error)
            return
        except FlinkRayError as error:
            log.warning("%s (%s) did not stop by itself: %s", name, process, error)
        await self._owner.rpc_service.kill(process, _ENDS_WITHIN)

    async def kill_all(self) -> None:
        """Kill all coordinators because the owner ends. The listener is not called any more. Two
        kinds are not killed: coordinators that are being stopped and need time to clean up
        (:meth:`all_ended` waits for them), and coordinators that another JobMaster may take over.
        """
        running = list(self._running.items())
        self._running.clear()
        if self._heartbeats is not None:
            self._heartbeats.stop()
        for coordinator, one in running:
            self._unmonitor(one)
            one.start.cancel()
            if one.stop is None and one.how.outlives_its_job_master and one.connected is not None:
                stop = self._have_stopped(coordinator, one, one.connected)
                one.stop = self._owner.create_task(stop, f"stop {one.process}")
            if one.stop is not None and one.how.ends_by_itself:
                self._ending.append(one)
            else:
                await self._owner.rpc_service.kill(one.process)

    async def all_ended(self) -> None:
        """Wait until the coordinators that :meth:`kill_all` has left to clean up are gone or timed
        out."""
        await asyncio.gather(*(self._end(one) for one in self._ending))

    async def _end(self, running: _Running) -> None:
        assert running.stop is not None
        await asyncio.wait([running.stop], timeout=running.how.ends_by_itself)
        if not running.stop.done() and not running.how.outlives_its_job_master:
            await self._owner.rpc_service.kill(running.process)


async def _nothing() -> None:
    """Do nothing. Serves as the start task of an adopted coordinator, which already runs."""
