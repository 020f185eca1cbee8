"""Heartbeats: their times, their payloads and what is reported."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable

import pytest

from flinkray.core.errors import ConfigurationError, RecipientUnreachableError, RpcTimeoutError
from flinkray.core.ids import ResourceID
from flinkray.rpc import (
    HeartbeatManager,
    HeartbeatSender,
    HeartbeatSettings,
    RpcEndpoint,
    RpcGateway,
    RpcService,
    oneway,
)
from tests.rpc.on_services import Services, on_local_service

A, B = ResourceID("a"), ResourceID("b")
SETTINGS = HeartbeatSettings(interval=10.0, timeout=50.0)


class RecordedManager:
    """A manager, and all that it reports with the times."""

    def __init__(
        self,
        service: RpcService,
        manager: type[HeartbeatManager[str, str]],
        settings: HeartbeatSettings = SETTINGS,
    ) -> None:
        self.endpoint = RpcEndpoint(service, service.new_endpoint_id("endpoint"))
        self.endpoint.start()
        self.clock = service.clock
        self.heard: list[tuple[ResourceID, str]] = []
        self.timeouts: list[tuple[ResourceID, float]] = []
        self.unreachable: list[tuple[ResourceID, float]] = []
        self.manager = manager(
            self.endpoint,
            settings,
            payload=lambda target: f"for {target}",
            on_heartbeat=lambda target, payload: self.heard.append((target, payload)),
            on_timeout=lambda target: self.timeouts.append((target, self.clock.monotonic())),
            on_unreachable=lambda target: self.unreachable.append((target, self.clock.monotonic())),
        )


async def nowhere(payload: str) -> None:
    return


def failing(*outcomes: Exception | None) -> Callable[[str], Awaitable[None]]:
    """Sends that fail as listed; the last outcome repeats."""
    rest = list(outcomes)

    async def send(payload: str) -> None:
        outcome = rest.pop(0) if len(rest) > 1 else rest[0]
        if outcome is not None:
            raise outcome

    return send


@on_local_service
async def test_heartbeat_restarts_the_timeout_and_silence_is_reported_once(
    services: Services,
) -> None:
    """HB-02, HB-03"""
    heartbeats = RecordedManager(services.host, HeartbeatManager)
    heartbeats.manager.monitor_target(A, nowhere)
    heartbeats.manager.monitor_target(B, nowhere)
    for _ in range(6):
        await asyncio.sleep(40)
        heartbeats.manager.receive_heartbeat(A, "alive")
        heartbeats.manager.receive_heartbeat(B, "alive")
    assert heartbeats.timeouts == []
    await asyncio.sleep(40)
    heartbeats.manager.receive_heartbeat(B, "alive")
    await asyncio.sleep(40)
    assert heartbeats.timeouts == [(A, 290.0)]
    assert heartbeats.manager.monitored_targets() == (B,)


class BeatGateway(RpcGateway):
    """Takes heartbeats, which a receiver answers."""

    @abstractmethod
    @oneway
    async def beat(self, sender: ResourceID, payload: str) -> None: ...

    @abstractmethod
    @oneway
    async def fall_silent(self) -> None: ...


class Beater(RpcEndpoint, BeatGateway):
    """One side of a pair of endpoints; notes what its manager reports."""

    def __init__(
        self,
        service: RpcService,
        name: ResourceID,
        manager: type[HeartbeatManager[str, str]],
        settings: HeartbeatSettings,
    ) -> None:
        super().__init__(service, name)
        self.heard = asyncio.Queue[tuple[ResourceID, str]]()
        self.timeouts = asyncio.Queue[ResourceID]()
        self.unreachable = asyncio.Queue[ResourceID]()
        self.sent = 0
        self.manager = manager(
            self,
            settings,
            payload=lambda target: f"for {target}",
            on_heartbeat=lambda target, payload: self.heard.put_nowait((target, payload)),
            on_timeout=self.timeouts.put_nowait,
            on_unreachable=self.unreachable.put_nowait,
        )
        self.start()

    async def monitor(self, target: Beater) -> None:
        gateway = await self.connect(target.address, BeatGateway)

        async def send(payload: str) -> None:
            self.sent += 1
            await gateway.beat(ResourceID(self.endpoint_id), payload)

        self.manager.monitor_target(ResourceID(target.endpoint_id), send)

    async def beat(self, sender: ResourceID, payload: str) -> None:
        if isinstance(self.manager, HeartbeatSender):
            self.manager.receive_heartbeat(sender, payload)
        else:
            self.manager.request_heartbeat(sender, payload)

    async def fall_silent(self) -> None:
        self.manager.stop()


async def pair_of_beaters(services: Services, settings: HeartbeatSettings) -> tuple[Beater, Beater]:
    sender = Beater(services.host, A, HeartbeatSender, settings)
    receiver = Beater(services.caller, B, HeartbeatManager, settings)
    await receiver.monitor(sender)
    await sender.monitor(receiver)
    return sender, receiver


@on_local_service
async def test_two_endpoints_report_no_timeout_until_one_falls_silent(
    services: Services,
) -> None:
    """HB-04, HB-07"""
    sender, receiver = await pair_of_beaters(services, HeartbeatSettings(0.02, 1.0))
    for _ in range(10):
        assert await sender.heard.get() == (B, "for a")
        assert await receiver.heard.get() == (A, "for b")
    await receiver.fall_silent()
    assert await sender.timeouts.get() == B
    assert receiver.timeouts.empty()
    assert sender.unreachable.empty()


@on_local_service
async def test_closed_endpoint_is_reported_unreachable_at_the_fifth_failed_heartbeat(
    services: Services,
) -> None:
    """HB-08"""
    sender, receiver = await pair_of_beaters(services, HeartbeatSettings(0.02, 10.0, 5))
    await receiver.heard.get()
    gone = asyncio.Event()
    sender.watch(receiver.address, lambda _: gone.set())
    await receiver.close()
    await gone.wait()
    sender.sent = 0
    assert await sender.unreachable.get() == B
    assert sender.sent == 5
    assert sender.timeouts.empty()


@on_local_service
async def test_target_that_is_monitored_no_more_is_not_reported(services: Services) -> None:
    """HB-05"""
    heartbeats = RecordedManager(services.host, HeartbeatManager)
    heartbeats.manager.monitor_target(A, nowhere)
    await asyncio.sleep(49)
    heartbeats.manager.unmonitor_target(A)
    await asyncio.sleep(100)
    heartbeats.manager.receive_heartbeat(A, "too late")
    assert heartbeats.timeouts == []
    assert heartbeats.heard == []


@on_local_service
async def test_time_of_the_last_heartbeat_of_a_target_can_be_read(services: Services) -> None:
    """HB-06"""
    heartbeats = RecordedManager(services.host, HeartbeatManager)
    assert heartbeats.manager.last_heartbeat_from(A) == -1
    heartbeats.manager.monitor_target(A, nowhere)
    assert heartbeats.manager.last_heartbeat_from(A) == 0
    await asyncio.sleep(7)
    heartbeats.manager.receive_heartbeat(A, "alive")
    assert heartbeats.manager.last_heartbeat_from(A) == heartbeats.clock.time() == 7


@on_local_service
async def test_fifth_failure_in_a_row_is_reported_as_unreachable_and_not_as_timeout(
    services: Services,
) -> None:
    """HB-08"""
    gone = RecipientUnreachableError("nobody there")
    heartbeats = RecordedManager(services.host, HeartbeatSender, HeartbeatSettings(1.0, 50.0, 5))
    # the success after four failures resets the count
    heartbeats.manager.monitor_target(A, failing(gone, gone, gone, gone, None, gone))
    await asyncio.sleep(8.5)
    assert heartbeats.unreachable == []
    await asyncio.sleep(100)
    assert heartbeats.unreachable == [(A, 9.0)]
    assert heartbeats.timeouts == []


@on_local_service
async def test_received_heartbeat_resets_the_count_of_failed_heartbeats(services: Services) -> None:
    """HB-08"""
    heartbeats = RecordedManager(services.host, HeartbeatSender, HeartbeatSettings(1.0, 50.0, 5))
    heartbeats.manager.monitor_target(A, failing(RecipientUnreachableError("nobody there")))
    await asyncio.sleep(3.5)
    heartbeats.manager.receive_heartbeat(A, "alive")
    await asyncio.sleep(4)
    assert heartbeats.unreachable == []
    await asyncio.sleep(1)
    assert heartbeats.unreachable == [(A, 8.0)]


@on_local_service
async def test_heartbeat_failure_threshold_1_reports_the_first_failure_and_minus_1_none(
    services: Services,
) -> None:
    """HB-08"""
    gone = RecipientUnreachableError("nobody there")
    for threshold, unreachable, timeouts in ((1, [(A, 0.0)], []), (-1, [], [(A, 50.0)])):
        heartbeats = RecordedManager(
            services.host, HeartbeatSender, HeartbeatSettings(1.0, 50.0, threshold)
        )
        begin = heartbeats.clock.monotonic()
        heartbeats.manager.monitor_target(A, failing(gone))
        await asyncio.sleep(100)
        assert [(a, t - begin) for a, t in heartbeats.unreachable] == unreachable
        assert [(a, t - begin) for a, t in heartbeats.timeouts] == timeouts


@on_local_service
async def test_send_errors_other_than_unreachable_lead_only_to_a_timeout(
    services: Services,
) -> None:
    heartbeats = RecordedManager(services.host, HeartbeatSender, HeartbeatSettings(1.0, 50.0, 2))
    heartbeats.manager.monitor_target(A, failing(RpcTimeoutError("slow")))
    await asyncio.sleep(100)
    assert heartbeats.unreachable == []
    assert heartbeats.timeouts == [(A, 50.0)]


@on_local_service
async def test_target_that_is_monitored_again_has_a_full_timeout_and_its_new_sender(
    services: Services,
) -> None:
    """HB-05"""
    heartbeats = RecordedManager(services.host, HeartbeatSender)
    sent: list[str] = []

    def way(name: str) -> Callable[[str], Awaitable[None]]:
        async def send(payload: str) -> None:
            sent.append(name)

        return send

    heartbeats.manager.monitor_target(A, way("first"))
    await asyncio.sleep(45)
    sent.clear()
    heartbeats.manager.monitor_target(A, way("second"))
    await asyncio.sleep(49)
    assert heartbeats.timeouts == []
    assert set(sent) == {"second"}
    await asyncio.sleep(60)
    assert heartbeats.timeouts == [(A, 95.0)]


@on_local_service
async def test_target_that_is_monitored_twice_is_released_by_one_unmonitor_call(
    services: Services,
) -> None:
    """HB-05"""
    heartbeats = RecordedManager(services.host, HeartbeatManager)
    heartbeats.manager.monitor_target(A, nowhere)
    await asyncio.sleep(45)
    heartbeats.manager.monitor_target(A, nowhere)
    await asyncio.sleep(15)
    heartbeats.manager.unmonitor_target(A)
    assert not heartbeats.endpoint.mailbox._timers


@on_local_service
async def test_stopped_heartbeat_manager_sends_no_heartbeats_and_reports_no_timeouts(
    services: Services,
) -> None:
    heartbeats = RecordedManager(services.host, HeartbeatSender)
    sent: list[str] = []

    async def send(payload: str) -> None:
        sent.append(payload)

    heartbeats.manager.monitor_target(A, send)
    heartbeats.manager.monitor_target(B, send)
    await asyncio.sleep(15)
    assert sent == ["for a", "for b"] * 2
    assert heartbeats.endpoint.mailbox._timers
    heartbeats.manager.stop()
    heartbeats.manager.stop()
    assert not heartbeats.endpoint.mailbox._timers
    assert heartbeats.manager.monitored_targets() == ()
    assert heartbeats.manager.last_heartbeat_from(A) == -1
    await asyncio.sleep(200)
    assert heartbeats.timeouts == heartbeats.unreachable == []
    heartbeats.manager.monitor_target(A, send)
    await asyncio.sleep(49)
    assert len(sent) == 4


@on_local_service
async def test_target_times_out_although_other_targets_were_removed_and_added(
    services: Services,
) -> None:
    """The detection of stalls ends with the last target and begins again with the next."""
    heartbeats = RecordedManager(services.host, HeartbeatManager)
    heartbeats.manager.monitor_target(A, nowhere)
    heartbeats.manager.monitor_target(B, nowhere)
    heartbeats.manager.unmonitor_target(A)
    await asyncio.sleep(200)
    assert heartbeats.timeouts == [(B, 50.0)]
    heartbeats.manager.monitor_target(A, nowhere)
    await asyncio.sleep(200)
    assert heartbeats.timeouts == [(B, 50.0), (A, 250.0)]


@on_local_service
async def test_failures_of_overlapping_heartbeats_are_reported_once(services: Services) -> None:
    """HB-08"""
    heartbeats = RecordedManager(services.host, HeartbeatManager, HeartbeatSettings(1.0, 50.0, 2))
    go = asyncio.Event()

    async def send(payload: str) -> None:
        await go.wait()
        raise RecipientUnreachableError("nobody there")

    heartbeats.manager.monitor_target(A, send)
    for _ in range(3):
        heartbeats.manager.request_heartbeat(A, "are you there?")
    await asyncio.sleep(3)
    go.set()
    await asyncio.sleep(3)
    assert heartbeats.unreachable == [(A, 3.0)]


@on_local_service
async def test_failed_heartbeat_sent_before_its_target_was_replaced_is_ignored(
    services: Services,
) -> None:
    """HB-08"""
    heartbeats = RecordedManager(services.host, HeartbeatManager, HeartbeatSettings(1.0, 50.0, 1))
    go = asyncio.Event()

    async def send(payload: str) -> None:
        await go.wait()
        raise RecipientUnreachableError("nobody there")

    heartbeats.manager.monitor_target(A, send)
    heartbeats.manager.request_heartbeat(A, "are you there?")
    await asyncio.sleep(1)
    heartbeats.manager.monitor_target(A, nowhere)
    go.set()
    await asyncio.sleep(10)
    assert heartbeats.unreachable == []
    assert heartbeats.manager.monitored_targets() == (A,)


def test_invalid_heartbeat_intervals_and_thresholds_are_refused() -> None:
    assert HeartbeatSettings() == HeartbeatSettings(10.0, 50.0, 2)
    for interval in (0.0, -1.0, 50.0, 51.0):
        with pytest.raises(ConfigurationError, match="interval"):
            HeartbeatSettings(interval, 50.0)
    with pytest.raises(ConfigurationError, match="until_unreachable"):
        HeartbeatSettings(1.0, 50.0, 0)
