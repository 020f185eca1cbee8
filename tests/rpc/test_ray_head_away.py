"""Calls to Ray's head that fail because it is away."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
import ray

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc import RayRpcService
from flinkray.rpc.ray import head as ray_head
from flinkray.rpc.ray.head import ProcessEndsError, RayHead
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoGateway, echo_spec


@pytest.mark.ray
async def test_kill_of_a_process_is_repeated_until_rays_head_answers(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A Dispatcher, for example, must not fail because the head restarts."""
    service = await RayRpcService.open(f"rpc-{uuid.uuid4().hex}", "driver")
    address = await service.spawn(echo_spec("worker", detached=True))
    ask = service.head.ask
    failures = 0

    async def unavailable_at_first(fn: Callable[..., Any], *args: object) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise ray.exceptions.RpcError("UNAVAILABLE: failed to connect", rpc_code=14)
        return await ask(fn, *args)

    monkeypatch.setattr(ray_head, "ASK_AGAIN", 0.0)
    monkeypatch.setattr(service.head, "ask", unavailable_at_first)
    await service.kill("worker")
    assert failures == 3
    assert len([r for r in caplog.records if "head does not answer" in r.message]) == 1
    with pytest.raises(RpcConnectionError, match="worker/echo"):
        await service.connect(address, EchoGateway)
    await service.close()


@pytest.mark.ray
async def test_process_is_not_reported_dead_while_rays_head_cannot_be_asked(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed look-up of the address of a process does not end its watch."""
    namespace = f"rpc-{uuid.uuid4().hex}"
    service = await RayRpcService.open(namespace, "driver")
    address = await service.spawn(echo_spec("worker"))
    client = await RayRpcService.open(namespace, "client")
    ask = client.head.ask
    failures = 0

    async def unavailable_at_first(fn: Callable[..., Any], *args: object) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise ray.exceptions.RpcError("UNAVAILABLE: failed to connect", rpc_code=14)
        return await ask(fn, *args)

    monkeypatch.setattr(ray_head, "ASK_AGAIN", 0.0)
    monkeypatch.setattr(client.head, "ask", unavailable_at_first)
    ends: list[str] = []
    client.watch(address, ends.append)
    echo = await client.connect(address, EchoGateway)
    assert await echo.echo("there") == "there"
    assert (failures, ends) == (3, [])
    await client.close()
    await service.close()


async def test_closed_client_of_rays_head_sends_no_more_requests_to_the_head() -> None:
    """A program that does not close its client must not end with the traceback of a task."""
    head = RayHead("ending")
    await head.close(1.0)
    head.soon(print)
    with pytest.raises(ProcessEndsError, match="this process ends"):
        await head.ask(print)


class Unanswered(Executor):
    """Questions that are answered when a test says so."""

    def __init__(self) -> None:
        self.questions: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.questions.append(Future())
        return self.questions[-1]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@on_virtual_time
async def test_outage_of_rays_head_is_logged_repeatedly_and_its_end_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = Unanswered()
    head = RayHead("test", away, lambda: True)
    first = asyncio.ensure_future(head.ask(max, 1, 2))
    second = asyncio.ensure_future(head.ask(max, 3, 4))
    await asyncio.sleep(4)
    assert (head.outage, warnings(caplog)) == (None, [])
    await asyncio.sleep(26)
    assert "not answered since" in str(head.outage)
    assert [w.partition(":")[0] for w in warnings(caplog)] == [
        f"Ray's head has not answered for {seconds} s" for seconds in (5, 10, 20)
    ]
    told_since = head.outage
    await asyncio.sleep(5)
    assert head.outage == told_since
    caplog.clear()
    away.questions[0].set_result(2)
    assert await first == 2
    assert (head.outage, warnings(caplog)) == (told_since, [])  # the other one still waits
    away.questions[1].set_result(4)
    assert await second == 4
    assert head.outage is None
    assert warnings(caplog) == ["Ray's head answers again, after 35 s"]


@on_virtual_time
async def test_cancelled_question_still_reports_an_outage_of_rays_head() -> None:
    """The thread of the question still waits."""
    away = Unanswered()
    head = RayHead("test", away, lambda: True)
    question = asyncio.ensure_future(head.ask(max, 1, 2))
    await asyncio.sleep(1)
    away.questions[0].set_running_or_notify_cancel()
    question.cancel()
    await asyncio.sleep(9)
    assert head.outage is not None
    away.questions[0].set_result(2)
    await asyncio.sleep(1)
    assert head.outage is None


@on_virtual_time
async def test_ray_head_that_answers_only_with_errors_counts_as_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ray fails the pending calls, and each new question fails as well."""
    failing = Unanswered()
    head = RayHead("test", failing, lambda: True)
    answer = asyncio.ensure_future(head.ask_patiently(max, 1, 2))
    for _ in range(8):
        await asyncio.sleep(0)
        failing.questions[-1].set_exception(ray.exceptions.RpcError("UNAVAILABLE", rpc_code=14))
        await asyncio.sleep(1.01)
    assert head.outage is not None
    failing.questions[-1].set_result(2)
    assert await answer == 2
    assert head.outage is None
    assert "answers again" in warnings(caplog)[-1]


@on_virtual_time
async def test_question_to_rays_head_is_not_repeated_when_this_process_has_left_ray() -> None:
    left = Unanswered()
    head = RayHead("test", left, lambda: False)
    answer = asyncio.ensure_future(head.ask_patiently(max, 1, 2))
    await asyncio.sleep(0)
    left.questions[0].set_exception(ray.exceptions.RaySystemError("not started"))
    with pytest.raises(ray.exceptions.RaySystemError):
        await answer
    assert len(left.questions) == 1


@on_virtual_time
async def test_outage_ends_although_a_cancelled_question_was_never_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise the outage would be logged for ever."""
    head = RayHead("test", failing := Unanswered(), lambda: True)
    impatient = asyncio.ensure_future(head.ask_patiently(max, 1, 2))
    patient = asyncio.ensure_future(head.ask_patiently(max, 3, 4))
    await asyncio.sleep(0)
    unavailable = ray.exceptions.RpcError("UNAVAILABLE", rpc_code=14)
    for question in failing.questions[:2]:
        question.set_exception(unavailable)
    await asyncio.sleep(0.5)
    impatient.cancel()
    await asyncio.sleep(0.6)
    failing.questions[2].set_exception(unavailable)
    await asyncio.sleep(10)
    assert head.outage is not None, "one is left who asks"
    patient.cancel()
    await asyncio.sleep(0.1)
    assert head.outage is None, "nobody asks"
    assert "answers again" not in caplog.text
    answer = asyncio.ensure_future(head.ask(max, 5, 6))
    await asyncio.sleep(0)
    failing.questions[-1].set_result(6)
    assert await answer == 6
    assert "answers again" in warnings(caplog)[-1]
    told = len(warnings(caplog))
    await asyncio.sleep(1000)
    assert (head.outage, len(warnings(caplog))) == (None, told)
