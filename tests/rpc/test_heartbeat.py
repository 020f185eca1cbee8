"""Heartbeats, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flinkray.core.errors import ConfigurationError, RecipientUnreachableError, RpcTimeoutError
from flinkray.core.ids import ResourceID
from flinkray.rpc import (
    HeartbeatManager,
    HeartbeatSender,
    HeartbeatSettings,
    LocalRpcService,
    RpcEndpoint,
)
from flinkray.testing.virtual_time import on_virtual_time

A, B = ResourceID("a"), ResourceID("b")
SETTINGS = HeartbeatSettings(interval=10.0, timeout=50.0)


class Story:
    """A manager, and all that it reports with the times."""

    def __init__(
        self,
        manager: type[HeartbeatManager[str, str]],
        settings: HeartbeatSettings = SETTINGS,
    ) -> None:
        service = LocalRpcService()
        endpoint = RpcEndpoint(service, "endpoint")
        endpoint.start()
        self.clock = service.clock
        self.close = service.close
        self.heard: list[tuple[ResourceID, str]] = []
        self.timeouts: list[tuple[ResourceID, float]] = []
        self.unreachable: list[tuple[ResourceID, float]] = []
        self.manager = manager(
            endpoint,
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


@on_virtual_time
async def test_each_heartbeat_begins_the_timeout_anew_and_silence_is_reported_once() -> None:
    """HB-02, HB-03"""
    story = Story(HeartbeatManager)
    story.manager.monitor_target(A, nowhere)
    story.manager.monitor_target(B, nowhere)
    for _ in range(6):
        await asyncio.sleep(40)
        story.manager.receive_heartbeat(A, "alive")
        story.manager.receive_heartbeat(B, "alive")
    assert story.timeouts == []
    await asyncio.sleep(40)
    story.manager.receive_heartbeat(B, "alive")
    await asyncio.sleep(40)
    assert story.timeouts == [(A, 290.0)]
    assert story.manager.monitored_targets() == (B,)
    await story.close()


@on_virtual_time
async def test_a_sender_and_a_receiver_keep_each_other_content_until_one_stops() -> None:
    """HB-04"""
    sender, receiver = Story(HeartbeatSender), Story(HeartbeatManager)

    async def request(payload: str) -> None:
        receiver.manager.request_heartbeat(A, payload)

    async def answer(payload: str) -> None:
        sender.manager.receive_heartbeat(B, payload)

    sender.manager.monitor_target(B, request)
    receiver.manager.monitor_target(A, answer)
    await asyncio.sleep(100)
    assert len(sender.heard) >= 5
    assert len(receiver.heard) >= 5
    assert set(sender.heard) == {(B, "for a")}
    assert set(receiver.heard) == {(A, "for b")}
    assert sender.timeouts == receiver.timeouts == []
    receiver.manager.stop()
    await asyncio.sleep(60)
    assert [target for target, _ in sender.timeouts] == [B]
    assert receiver.timeouts == []
    await sender.close()
    await receiver.close()


@on_virtual_time
async def test_a_target_that_is_not_monitored_any_more_is_not_reported() -> None:
    """HB-05"""
    story = Story(HeartbeatManager)
    story.manager.monitor_target(A, nowhere)
    await asyncio.sleep(49)
    story.manager.unmonitor_target(A)
    await asyncio.sleep(100)
    story.manager.receive_heartbeat(A, "too late")
    assert story.timeouts == []
    assert story.heard == []
    await story.close()


@on_virtual_time
async def test_the_time_of_the_last_heartbeat_is_known() -> None:
    """HB-06"""
    story = Story(HeartbeatManager)
    assert story.manager.last_heartbeat_from(A) == -1
    story.manager.monitor_target(A, nowhere)
    assert story.manager.last_heartbeat_from(A) == 0
    await asyncio.sleep(7)
    story.manager.receive_heartbeat(A, "alive")
    assert story.manager.last_heartbeat_from(A) == story.clock.time() == 7
    await story.close()


@on_virtual_time
async def test_each_target_gets_a_payload_of_its_own() -> None:
    """HB-07"""
    story = Story(HeartbeatSender)
    sent: dict[ResourceID, list[str]] = {A: [], B: []}

    def send_to(target: ResourceID) -> Callable[[str], Awaitable[None]]:
        async def send(payload: str) -> None:
            sent[target].append(payload)

        return send

    for target in (A, B):
        story.manager.monitor_target(target, send_to(target))
    await asyncio.sleep(15)
    assert sent == {A: ["for a"] * 2, B: ["for b"] * 2}
    await story.close()


@on_virtual_time
async def test_the_fifth_failure_in_a_row_means_unreachable_not_timeout() -> None:
    """HB-08"""
    gone = RecipientUnreachableError("nobody there")
    story = Story(HeartbeatSender, HeartbeatSettings(1.0, 50.0, 5))
    # the success after four failures resets the count
    story.manager.monitor_target(A, failing(gone, gone, gone, gone, None, gone))
    await asyncio.sleep(8.5)
    assert story.unreachable == []
    await asyncio.sleep(100)
    assert story.unreachable == [(A, 9.0)]
    assert story.timeouts == []
    await story.close()


@on_virtual_time
async def test_a_heartbeat_that_arrives_resets_the_failures() -> None:
    """HB-08"""
    story = Story(HeartbeatSender, HeartbeatSettings(1.0, 50.0, 5))
    story.manager.monitor_target(A, failing(RecipientUnreachableError("nobody there")))
    await asyncio.sleep(3.5)
    story.manager.receive_heartbeat(A, "alive")
    await asyncio.sleep(4)
    assert story.unreachable == []
    await asyncio.sleep(1)
    assert story.unreachable == [(A, 8.0)]
    await story.close()


@on_virtual_time
async def test_threshold_one_reports_at_the_first_failure_and_minus_one_never() -> None:
    """HB-08"""
    gone = RecipientUnreachableError("nobody there")
    for threshold, unreachable, timeouts in ((1, [(A, 0.0)], []), (-1, [], [(A, 50.0)])):
        story = Story(HeartbeatSender, HeartbeatSettings(1.0, 50.0, threshold))
        begin = story.clock.monotonic()
        story.manager.monitor_target(A, failing(gone))
        await asyncio.sleep(100)
        assert [(a, t - begin) for a, t in story.unreachable] == unreachable
        assert [(a, t - begin) for a, t in story.timeouts] == timeouts
        await story.close()


@on_virtual_time
async def test_other_errors_of_a_send_leave_the_decision_to_the_timeout() -> None:
    story = Story(HeartbeatSender, HeartbeatSettings(1.0, 50.0, 2))
    story.manager.monitor_target(A, failing(RpcTimeoutError("slow")))
    await asyncio.sleep(100)
    assert story.unreachable == []
    assert story.timeouts == [(A, 50.0)]
    await story.close()


def test_bad_settings_are_refused() -> None:
    assert HeartbeatSettings() == HeartbeatSettings(10.0, 50.0, 2)
    with pytest.raises(ConfigurationError, match="interval"):
        HeartbeatSettings(50.0, 50.0)
    with pytest.raises(ConfigurationError, match="until_unreachable"):
        HeartbeatSettings(1.0, 50.0, 0)
