"""Finds task processes that live but neither answer nor compute."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from flinkray.actors.gateways.task_process import TaskProcessGateway, TaskProcessHost
from flinkray.core.ids import ResourceID
from flinkray.rpc import HeartbeatSender, HeartbeatSettings, RpcEndpoint

log = logging.getLogger(__name__)

_IDLE = 0.05
"""Share of a core below which a silent process does not compute.
Ray's threads in any process use less than half of this, even when Python stands still.
"""


@dataclass(slots=True)
class _Monitored:
    gateway: TaskProcessGateway
    host: TaskProcessHost | None
    on_silent: Callable[[str], None]
    heard_at: float
    """When the process was last heard, in the loop's time."""
    used: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=2))
    """For the last two heartbeat requests:
    (time, processor seconds used so far or None if unknown).
    """


class TaskProcessHeartbeats:
    """Sends heartbeats to task processes, and finds the processes that must be killed.

    Lives on the main thread of its TaskExecutor. A process does not answer if a user's C function
    holds the interpreter's lock, although nothing is wrong. A process that was stopped or whose
    threads are deadlocked does not answer either, and its job would wait for ever. Only the first
    kind uses processor time. So a silent process that uses processor time is given more time.
    """

    def __init__(self, endpoint: RpcEndpoint, settings: HeartbeatSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._monitored: dict[ResourceID, _Monitored] = {}
        self._sender: HeartbeatSender[None, None] | None = None
        """Sends the heartbeats. None until the first process is monitored."""

    def monitor(
        self,
        name: str,
        gateway: TaskProcessGateway,
        host: TaskProcessHost | None,
        on_silent: Callable[[str], None],
    ) -> None:
        """Send heartbeats to a process. *on_silent* is called once, with a description, when the
        process counts as dead. *host* is None for simulated processes, which use no processor time.
        """
        target = ResourceID(name)
        monitored = _Monitored(gateway, host, on_silent, self._now())
        self._monitored[target] = monitored
        self._watch(target, monitored)

    def unmonitor(self, name: str) -> None:
        """Stop monitoring: there is no callback after this. Idempotent."""
        target = ResourceID(name)
        if self._sender is not None and self._monitored.pop(target, None) is not None:
            self._sender.unmonitor_target(target)

    def _watch(self, target: ResourceID, monitored: _Monitored) -> None:
        if self._sender is None:
            self._sender = HeartbeatSender(
                self._endpoint,
                self._settings,
                payload=lambda _: None,
                on_timeout=self._timed_out,
                on_unreachable=lambda silent: self._silent(silent, "it is unreachable"),
            )
        sender = self._sender

        async def ask() -> None:
            monitored.used.append((self._now(), _processor_time(monitored.host)))
            await monitored.gateway.request_heartbeat()
            if self._monitored.get(target) is monitored:
                monitored.heard_at = self._now()
                sender.receive_heartbeat(target, None)

        sender.monitor_target(target, lambda _: ask())

    def _now(self) -> float:
        return self._endpoint.rpc_service.loop.time()

    def _timed_out(self, target: ResourceID) -> None:
        monitored = self._monitored[target]
        silence = f"no heartbeat from it for {self._now() - monitored.heard_at:.0f} s"
        at, before = monitored.used[0]
        now, seconds = _processor_time(monitored.host), self._now() - at
        if now is None or before is None:
            self._silent(target, silence)
            return
        used = f"{now - before:.1f} s of a processor in the last {seconds:.1f} s"
        if now - before < _IDLE * seconds:
            self._silent(target, f"{silence}, and it used {used}")
            return
        log.warning(
            "%s: %s, but it computes (%s): a function holds the interpreter's lock for long",
            target,
            silence,
            used,
        )
        self._watch(target, monitored)

    def _silent(self, target: ResourceID, what: str) -> None:
        self._monitored.pop(target).on_silent(what)


def _processor_time(host: TaskProcessHost | None) -> float | None:
    """Return the processor seconds that the process has used. None if unknown or if it is gone."""
    if host is None:
        return None
    try:
        times = psutil.Process(host.pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
