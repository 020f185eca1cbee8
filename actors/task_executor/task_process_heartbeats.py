"""Finding task processes that live, and do nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from flinkray.actors.gateways.task_process import TaskProcessGateway, TaskProcessHost
from flinkray.core.ids import ResourceID
from flinkray.rpc import HeartbeatSender, HeartbeatSettings, RpcEndpoint

log = logging.getLogger(__name__)

_IDLE = 0.05
"""Of a core: who uses less while nothing is heard of it computes nothing.  What Ray's threads do in
any process is less than half of it, and go on where Python stands still."""


@dataclass(slots=True)
class _Monitored:
    gateway: TaskProcessGateway
    host: TaskProcessHost | None
    on_silent: Callable[[str], None]
    heard_at: float = 0.0
    """In the loop's time."""
    used: float | None = None
    """Processor seconds by then; None: not known."""


class TaskProcessHeartbeats:
    """Lives on the main thread of its TaskExecutor.

    A user's function in C that holds the interpreter's lock keeps its process from answering for as
    long as it takes, though all is well.  A process that was stopped, or whose threads wait for
    each other, does not answer either, and would keep its job waiting for ever.  What they differ
    in is the processor time that they use; so who is silent and uses some is given more time.
    """

    def __init__(self, endpoint: RpcEndpoint, settings: HeartbeatSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._monitored: dict[ResourceID, _Monitored] = {}
        self._sender: HeartbeatSender[None, None] | None = None
        """None: there was no process yet."""

    def monitor(
        self,
        name: str,
        gateway: TaskProcessGateway,
        host: TaskProcessHost | None,
        on_silent: Callable[[str], None],
    ) -> None:
        """*on_silent* is called once, with what was noticed.  *host*: None where processes are
        pretended; they use no processor time."""
        target = ResourceID(name)
        monitored = self._monitored[target] = _Monitored(gateway, host, on_silent)
        self._note(monitored)
        self._watch(target, monitored)

    def unmonitor(self, name: str) -> None:
        """No call back after this; idempotent."""
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
            await monitored.gateway.request_heartbeat()
            if self._monitored.get(target) is monitored:
                self._note(monitored)
                sender.receive_heartbeat(target, None)

        sender.monitor_target(target, lambda _: ask())

    def _note(self, monitored: _Monitored) -> None:
        monitored.heard_at = self._endpoint.rpc_service.loop.time()
        monitored.used = _processor_time(monitored.host)

    def _timed_out(self, target: ResourceID) -> None:
        monitored = self._monitored[target]
        seconds = self._endpoint.rpc_service.loop.time() - monitored.heard_at
        silence = f"no heartbeat from it for {seconds:.0f} s"
        now = _processor_time(monitored.host)
        if now is None or monitored.used is None:
            self._silent(target, silence)
            return
        used = now - monitored.used
        if used < _IDLE * seconds:
            self._silent(target, f"{silence}, in which it used {used:.1f} s of a processor")
            return
        log.warning(
            "%s: %s, but it computes (%.1f s of a processor): a function holds the interpreter's "
            "lock for long",
            target,
            silence,
            used,
        )
        self._note(monitored)
        self._watch(target, monitored)

    def _silent(self, target: ResourceID, what: str) -> None:
        self._monitored.pop(target).on_silent(what)


def _processor_time(host: TaskProcessHost | None) -> float | None:
    """Seconds; None: it cannot be known, or the process is gone."""
    if host is None:
        return None
    try:
        times = psutil.Process(host.pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
