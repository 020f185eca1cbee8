"""Task processes that wait to take the place of one that dies."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from flinkray.actors.gateways.task_process import TaskProcessGateway
from flinkray.core.ids import ResourceID
from flinkray.rpc import RpcEndpoint, TerminationWatch

log = logging.getLogger(__name__)

RESTART_PAUSE = 1.0
"""Seconds after a start that failed until the next one."""


class _Standby(NamedTuple):
    process: TaskProcessGateway
    watch: TerminationWatch


class StandbyTaskProcesses:
    """Lives on the main thread of its TaskExecutor."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        resource_id: ResourceID,
        number: int,
        start_process: Callable[[str], Awaitable[TaskProcessGateway]],
    ) -> None:
        """
        Args:
            number: so many are to wait.
            start_process: starts the one of that name; may raise anything.
        """
        self._endpoint = endpoint
        self._resource_id = resource_id
        self._number = number
        self._start_process = start_process
        self._ready: dict[str, _Standby] = {}
        self._starting = 0
        self._started = 0

    def fill(self) -> None:
        """Begin to start those that are missing."""
        while len(self._ready) + self._starting < self._number:
            self._starting += 1
            self._started += 1
            name = f"TaskProcess-standby.{self._started}-{self._resource_id}"
            self._endpoint.create_task(self._start(name), f"start {name}")

    def take(self) -> tuple[str, TaskProcessGateway] | None:
        """Its name and the process, if one is ready.  It is not watched any more."""
        if not self._ready:
            return None
        name, standby = next(iter(self._ready.items()))
        del self._ready[name]
        standby.watch.cancel()
        return name, standby.process

    async def _start(self, name: str) -> None:
        try:
            process = await self._start_process(name)
        except Exception as error:  # noqa: BLE001 - whatever the new process raised while it started
            log.warning("%s could not be started: %s: %s", name, type(error).__name__, error)
            self._endpoint.schedule_run_async(RESTART_PAUSE, self._start_has_failed)
            return
        self._starting -= 1
        watch = self._endpoint.watch(process, lambda reason: self._died(name, reason))
        self._ready[name] = _Standby(process, watch)

    def _start_has_failed(self) -> None:
        self._starting -= 1
        self.fill()

    def _died(self, name: str, reason: str) -> None:
        if self._ready.pop(name, None) is not None:
            log.warning("%s died: %s", name, reason)
            self.fill()
