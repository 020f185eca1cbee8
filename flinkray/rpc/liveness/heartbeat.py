"""Heartbeats: finding out that a peer is deaf although its process lives (after Flink's).

The *sender* (a leader) asks every target for a heartbeat each interval; the *receiver* answers.
Both sides notice silence.  Every method is to be called on the endpoint's main thread.

Time in which this process itself stood still (it was stopped, its machine was suspended, a garbage
collection or a blocking call took long) is no silence of others: what they sent meanwhile lies in
its sockets and its mailbox.  So that time does not count, and after it there is a twentieth of the
timeout to read what lies there before anybody is reported.  A target that is dead is found all the
same: when the timeout, and that twentieth, have passed in this process's own time.
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
"""Seconds: a timer that is early by less is not."""

_PUNCTUAL = 0.01
"""Seconds: a timer that is late by less tells of no stall."""

_LOOKS = 20
"""A timeout is watched in so many parts, for parts of it in which this process stood still."""

OutT = TypeVar("OutT")
InT = TypeVar("InT")


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """Flink's ``heartbeat.*`` with Flink's defaults."""

    interval: float = 10.0
    """Seconds between two requests of the sender."""
    timeout: float = 50.0
    """Seconds of silence after which a target is reported."""
    failed_rpc_requests_until_unreachable: int = 2
    """So many messages in a row that found nobody there report a target; -1: never."""

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
    """In the loop's time; moved by each heartbeat, and looked at when the timer is over."""
    timer: TimerHandle
    was_spared: bool = False
    """Since its last heartbeat the deadline was put off once, for what lies unread."""
    last_heartbeat: float = 0.0
    failures: int = 0


class HeartbeatManager(Generic[OutT, InT]):
    """The receiver's side: answers requests, notices silence.

    ``OutT`` is what we tell a target, ``InT`` what we hear from it.
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
        """*payload* is computed for each target and message; *on_heartbeat* gets what targets send.

        *on_timeout*: silence for the whole timeout.  *on_unreachable*: so many sends in a row as
        the settings say raised RecipientUnreachableError.  After either the target is not
        monitored any more.
        """
        self._endpoint = endpoint
        self._loop = endpoint.rpc_service.loop
        self._settings = settings
        self._payload = payload
        self._on_heartbeat = on_heartbeat
        self._on_timeout = on_timeout
        self._on_unreachable = on_unreachable
        self._targets: dict[ResourceID, _Target[OutT]] = {}
        self._look_interval = settings.timeout / _LOOKS
        self._last_look: float
        self._looker: TimerHandle  # both while there are targets

    def monitor_target(
        self, target_id: ResourceID, send: Callable[[OutT], Awaitable[None]]
    ) -> None:
        """Watch for a target's silence; *send* sends it one heartbeat (or request for one).

        Monitoring a target again replaces *send* and begins anew.
        """
        self.unmonitor_target(target_id)
        if not self._targets:
            self._last_look = self._loop.time()
            self._look_later()
        timeout = self._settings.timeout
        self._targets[target_id] = _Target(
            send, self._loop.time() + timeout, self._start_timer(target_id, timeout)
        )

    def unmonitor_target(self, target_id: ResourceID) -> None:
        """No report about this target any more; idempotent."""
        target = self._targets.pop(target_id, None)
        if target is not None:
            target.timer.cancel()
            if not self._targets:
                self._looker.cancel()

    def stop(self) -> None:
        """Monitor nothing any more."""
        for target_id in tuple(self._targets):
            self.unmonitor_target(target_id)

    def monitored_targets(self) -> tuple[ResourceID, ...]:
        return tuple(self._targets)

    def last_heartbeat_from(self, target_id: ResourceID) -> float:
        """Seconds since the epoch of the last heartbeat; 0: none yet; -1: not monitored."""
        target = self._targets.get(target_id)
        return -1.0 if target is None else target.last_heartbeat

    def receive_heartbeat(self, target_id: ResourceID, payload: InT) -> None:
        """A target's heartbeat is here; ignored when it is not monitored."""
        target = self._targets.get(target_id)
        if target is None:
            return
        target.last_heartbeat = self._endpoint.clock.time()
        target.failures = 0
        target.deadline = self._loop.time() + self._settings.timeout
        target.was_spared = False
        if self._on_heartbeat is not None:
            self._on_heartbeat(target_id, payload)

    def request_heartbeat(self, target_id: ResourceID, payload: InT) -> None:
        """A target asks for our heartbeat, which counts as its own; answered when monitored."""
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
        return self._endpoint.schedule_run_async(delay, lambda: self._timer_over(target_id))

    def _timer_over(self, target_id: ResourceID) -> None:
        """Silence, or a heartbeat has come since: one timer serves many of them."""
        self._look()
        target = self._targets[target_id]
        remaining = target.deadline - self._loop.time()
        if remaining < -_PUNCTUAL:
            remaining = self._spare(target)
        if remaining > _RESOLUTION:
            target.timer = self._start_timer(target_id, remaining)
        else:
            self.unmonitor_target(target_id)
            self._on_timeout(target_id)

    # --- stalls of this process ---------------------------------------------------------------

    def _look_later(self) -> None:
        self._looker = self._endpoint.schedule_run_async(self._look_interval, self._look_again)

    def _look_again(self) -> None:
        self._look_later()
        self._look()

    def _look(self) -> None:
        """Whether this process stood still since the last look."""
        now = self._loop.time()
        stall = now - self._last_look - self._look_interval
        self._last_look = now
        if stall > self._look_interval:
            for target in self._targets.values():
                target.deadline += stall
                self._spare(target)

    def _spare(self, target: _Target[OutT]) -> float:
        """Put a deadline off that is about to pass, once; returns what remains."""
        now = self._loop.time()
        if not target.was_spared and target.deadline < now + self._look_interval:
            target.was_spared = True
            target.deadline = now + self._look_interval
        return target.deadline - now


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
