"""Heartbeats: find out that a peer does not answer although its process lives (after Flink's).

The *sender* (a leader) asks every target for a heartbeat each interval; the *receiver* answers.
Both sides notice silence. Call every method on the endpoint's main thread. Time in which this
process itself stood still does not count as silence of its peers
(:mod:`flinkray.rpc.calls.peer_deadlines`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flinkray.core.errors import ConfigurationError, RecipientUnreachableError, RpcError
from flinkray.core.ids import ResourceID
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.mailbox import TimerHandle

_RESOLUTION = 1e-6
"""Seconds. A timer that fires early by less than this counts as on time."""

OutT = TypeVar("OutT")
InT = TypeVar("InT")


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """The ``heartbeat.*`` settings of Flink, with Flink's defaults."""

    interval: float = 10.0
    """Seconds between two requests of the sender."""
    timeout: float = 50.0
    """Seconds of silence after which a target is reported."""
    failed_rpc_requests_until_unreachable: int = 2
    """A target is reported after so many sends in a row that did not reach it; -1: never."""

    def __post_init__(self) -> None:
        if not 0 < self.interval < self.timeout:
            raise ConfigurationError(
                f"heartbeat interval ({self.interval} s) must be above 0 and below the "
                f"timeout ({self.timeout} s)"
            )
        threshold = self.failed_rpc_requests_until_unreachable
        if threshold < 1 and threshold != -1:
            raise ConfigurationError(
                "heartbeat failed_rpc_requests_until_unreachable must be -1 or above 0, "
                f"not {threshold}"
            )


@dataclass(slots=True)
class _Target(Generic[OutT]):
    send: Callable[[OutT], Awaitable[None]]
    deadline: float
    """The counted time at which silence is reported; each heartbeat moves this deadline."""
    timer: TimerHandle
    last_heartbeat: float = 0.0
    failures: int = 0


class HeartbeatManager(Generic[OutT, InT]):
    """The receiver's side: answers requests and notices silence.

    ``OutT`` is the payload that this side sends to a target, ``InT`` the payload that it receives.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        settings: HeartbeatSettings,
        *,
        payload: Callable[[ResourceID], OutT],
        on_heartbeat: Callable[[ResourceID, InT], None] | None = None,
        on_timeout: Callable[[ResourceID], None],
        on_unreachable: Callable[[ResourceID], None],
    ) -> None:
        """Create a manager that monitors no target yet.

        *payload* is computed for each target and message; *on_heartbeat* gets the payloads that
        targets send. *on_timeout* is called after silence for the whole timeout, *on_unreachable*
        after ``failed_rpc_requests_until_unreachable`` sends in a row that raised
        RecipientUnreachableError. After either call the target is not monitored any more.
        """
        self._endpoint = endpoint
        self._now = endpoint.rpc_service.deadlines.time
        self._settings = settings
        self._payload = payload
        self._on_heartbeat = on_heartbeat
        self._on_timeout = on_timeout
        self._on_unreachable = on_unreachable
        self._targets: dict[ResourceID, _Target[OutT]] = {}

    def monitor_target(
        self, target_id: ResourceID, send: Callable[[OutT], Awaitable[None]]
    ) -> None:
        """Monitor a target for silence.

        *send* sends the target one heartbeat (or a request for one). Monitoring a target again
        replaces *send* and starts the timeout again.
        """
        self.unmonitor_target(target_id)
        timeout = self._settings.timeout
        self._targets[target_id] = _Target(
            send, self._now() + timeout, self._start_timer(target_id, timeout)
        )

    def unmonitor_target(self, target_id: ResourceID) -> None:
        """Stop monitoring the target: nothing is reported about it any more; idempotent."""
        target = self._targets.pop(target_id, None)
        if target is not None:
            target.timer.cancel()

    def stop(self) -> None:
        """Stop monitoring all targets."""
        for target_id in tuple(self._targets):
            self.unmonitor_target(target_id)

    def monitored_targets(self) -> tuple[ResourceID, ...]:
        return tuple(self._targets)

    def last_heartbeat_from(self, target_id: ResourceID) -> float:
        """Return the time of the target's last heartbeat, in seconds since the epoch.

        0: no heartbeat yet. -1: the target is not monitored.
        """
        target = self._targets.get(target_id)
        return -1.0 if target is None else target.last_heartbeat

    def receive_heartbeat(self, target_id: ResourceID, payload: InT) -> None:
        """Note the heartbeat of a target; ignored if the target is not monitored."""
        target = self._targets.get(target_id)
        if target is None:
            return
        target.last_heartbeat = self._endpoint.clock.time()
        target.failures = 0
        target.deadline = self._now() + self._settings.timeout
        if self._on_heartbeat is not None:
            self._on_heartbeat(target_id, payload)

    def request_heartbeat(self, target_id: ResourceID, payload: InT) -> None:
        """Answer a target's request for a heartbeat, if the target is monitored.

        The request also counts as the target's own heartbeat.
        """
        self.receive_heartbeat(target_id, payload)
        self._send(target_id)

    def _send(self, target_id: ResourceID) -> None:
        if target_id in self._targets:
            self._endpoint.create_task(
                self._send_to(target_id, self._targets[target_id]), name=f"heartbeat to {target_id}"
            )

    async def _send_to(self, target_id: ResourceID, target: _Target[OutT]) -> None:
        try:
            await target.send(self._payload(target_id))
        except RecipientUnreachableError:
            target.failures += 1
            threshold = self._settings.failed_rpc_requests_until_unreachable
            if target.failures == threshold and self._targets.get(target_id) is target:
                self.unmonitor_target(target_id)
                self._on_unreachable(target_id)
        except (RpcError, asyncio.TimeoutError):
            pass  # alive or not: the timeout decides
        else:
            target.failures = 0

    def _start_timer(self, target_id: ResourceID, delay: float) -> TimerHandle:
        return self._endpoint.schedule_deadline(delay, lambda: self._timer_over(target_id))

    def _timer_over(self, target_id: ResourceID) -> None:
        target = self._targets[target_id]
        remaining = target.deadline - self._now()
        if remaining > _RESOLUTION:
            target.timer = self._start_timer(target_id, remaining)
        else:
            self.unmonitor_target(target_id)
            self._on_timeout(target_id)


class HeartbeatSender(HeartbeatManager[OutT, InT]):
    """The sender's side: requests a heartbeat from every monitored target each interval."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        settings: HeartbeatSettings,
        *,
        payload: Callable[[ResourceID], OutT],
        on_heartbeat: Callable[[ResourceID, InT], None] | None = None,
        on_timeout: Callable[[ResourceID], None],
        on_unreachable: Callable[[ResourceID], None],
    ) -> None:
        super().__init__(
            endpoint,
            settings,
            payload=payload,
            on_heartbeat=on_heartbeat,
            on_timeout=on_timeout,
            on_unreachable=on_unreachable,
        )
        self._ticker = endpoint.schedule_run_async(0.0, self._tick)

    def stop(self) -> None:
        super().stop()
        self._ticker.cancel()

    def _tick(self) -> None:
        self._ticker = self._endpoint.schedule_run_async(self._settings.interval, self._tick)
        for target_id in tuple(self._targets):
            self._send(target_id)
