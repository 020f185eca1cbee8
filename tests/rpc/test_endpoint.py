"""The life cycle of an endpoint and its main thread, on virtual time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcTimeoutError
from flinkray.rpc import LocalRpcService, RpcEndpoint
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway


class Story(RpcEndpoint):
    """Notes what happens to it; stops when :attr:`may_stop` is set."""

    def __init__(self, service: LocalRpcService, endpoint_id: str = "story") -> None:
        super().__init__(service, endpoint_id)
        self.story: list[str] = []
        self.may_stop = asyncio.Event()
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None

    async def on_start(self) -> None:
        self.story.append("on_start")
        if self.start_error is not None:
            raise self.start_error

    async def on_stop(self) -> None:
        self.validate_runs_in_main_thread()
        self.story.append("on_stop")
        await self.may_stop.wait()
        if self.stop_error is not None:
            raise self.stop_error


class SlowEcho(EchoEndpoint):
    """Its on_start and on_stop take as long as the test wants."""

    def __init__(self, service: LocalRpcService) -> None:
        super().__init__(service)
        self.may_start = asyncio.Event()
        self.may_stop = asyncio.Event()

    async def on_start(self) -> None:
        await self.may_start.wait()

    async def on_stop(self) -> None:
        await self.may_stop.wait()


@on_virtual_time
async def test_calls_wait_for_on_start() -> None:
    service = LocalRpcService()
    endpoint = SlowEcho(service)
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    answer = asyncio.ensure_future(echo.echo(1))
    await asyncio.sleep(5)
    assert not answer.done()
    endpoint.may_start.set()
    endpoint.may_stop.set()
    assert await answer == 1
    await service.close()


@on_virtual_time
async def test_a_stopping_endpoint_still_answers_but_is_not_running() -> None:
    """RPC-05"""
    service = LocalRpcService()
    endpoint = SlowEcho(service)
    endpoint.may_start.set()
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    assert await echo.running()
    terminated = endpoint.close()
    assert not await echo.running()
    await asyncio.sleep(100)
    assert not terminated.done()
    endpoint.may_stop.set()
    await terminated
    await service.close()


@on_virtual_time
async def test_on_stops_error_is_what_termination_fails_with() -> None:
    """RPC-12, RPC-13"""
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.stop_error = OSError("disk full")
    endpoint.may_stop.set()
    endpoint.start()
    with pytest.raises(OSError, match="disk full"):
        await endpoint.close()
    await service.close()


@on_virtual_time
async def test_on_starts_error_terminates_the_endpoint_with_it() -> None:
    """RPC-18"""
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.start_error = ValueError("no way to start")
    endpoint.start()
    with pytest.raises(ValueError, match="no way to start"):
        await endpoint.terminated
    assert endpoint.story == ["on_start"]
    with pytest.raises(RpcConnectionError):
        await service.connect(endpoint.address, EchoGateway)
    await service.close()


@on_virtual_time
async def test_a_call_that_waited_for_an_on_start_that_was_given_up_is_told_at_once() -> None:
    service = LocalRpcService(ask_timeout=10_000)
    endpoint = SlowEcho(service)
    endpoint.may_stop.set()
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    waiting = asyncio.ensure_future(echo.echo(1))
    await asyncio.sleep(1)
    endpoint.close()
    with pytest.raises(RecipientUnreachableError, match=r"EchoGateway\.echo"):
        await waiting
    assert service.clock.monotonic() == pytest.approx(1)
    await service.close()


@on_virtual_time
async def test_closing_twice_runs_on_stop_once() -> None:
    """RPC-19"""
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.start()
    await asyncio.sleep(0)
    first, second = endpoint.close(), endpoint.close()
    assert first is second is endpoint.terminated
    endpoint.may_stop.set()
    await first
    assert endpoint.story == ["on_start", "on_stop"]
    await service.close()


@on_virtual_time
async def test_an_endpoint_that_was_never_started_closes_without_hooks() -> None:
    service = LocalRpcService()
    endpoint = Story(service)
    await endpoint.close()
    assert endpoint.story == []
    with pytest.raises(RuntimeError, match="started or closed before"):
        endpoint.start()
    await service.close()


@on_virtual_time
async def test_on_stop_may_wait_for_what_it_runs_on_the_main_thread() -> None:
    """RPC-16"""
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.start()
    await asyncio.sleep(0)
    terminated = endpoint.close()
    endpoint.run_async(endpoint.may_stop.set)
    await terminated
    await service.close()


@on_virtual_time
async def test_a_running_handler_ends_before_termination_and_a_later_call_never_runs() -> None:
    """RPC-17"""
    service = LocalRpcService()
    endpoint = EchoEndpoint(service)
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    running = asyncio.ensure_future(echo.hang())
    await endpoint.hanging.wait()
    terminated = endpoint.close()
    await asyncio.sleep(0.1)
    late = asyncio.ensure_future(echo.note(1))
    asked = asyncio.ensure_future(echo.echo(1))
    await asyncio.sleep(0.1)
    assert not terminated.done()
    endpoint.release.set()
    await running
    await terminated
    with pytest.raises(RecipientUnreachableError):
        await asked
    await late
    assert endpoint.seen == []
    await service.close()


@on_virtual_time
async def test_a_handler_that_never_ends_does_not_keep_an_endpoint_alive() -> None:
    service = LocalRpcService()
    endpoint = EchoEndpoint(service)
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    running = asyncio.ensure_future(echo.hang())
    await endpoint.hanging.wait()
    before = service.clock.monotonic()
    await endpoint.close()
    assert service.clock.monotonic() - before == pytest.approx(EchoEndpoint.handler_grace)
    with pytest.raises(RecipientUnreachableError):
        await running
    await service.close()


@on_virtual_time
async def test_closing_the_service_stops_all_its_endpoints_whatever_one_does() -> None:
    """RPC-14, RPC-15"""
    service = LocalRpcService()
    endpoints = [Story(service, f"story-{number}") for number in range(5)]
    for endpoint in endpoints:
        endpoint.start()
    endpoints[2].stop_error = OSError("the third fails")
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(service.close())
    for endpoint in endpoints:
        await asyncio.sleep(1)
        assert not closing.done()
        endpoint.may_stop.set()
    with pytest.raises(OSError, match="the third fails"):
        await closing
    assert all(endpoint.terminated.done() for endpoint in endpoints)
    assert service.network.services == {}


@on_virtual_time
async def test_a_second_endpoint_of_the_same_id_is_refused() -> None:
    service = LocalRpcService()
    EchoEndpoint(service)
    with pytest.raises(ValueError, match="local/echo already"):
        EchoEndpoint(service)
    with pytest.raises(ValueError, match="not an endpoint id"):
        EchoEndpoint(service, "a/b")
    await service.close()


@on_virtual_time
async def test_run_async_calls_and_handlers_never_overlap() -> None:
    """RPC-26"""
    service = LocalRpcService()
    endpoint = EchoEndpoint(service)
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    lock = threading.Lock()
    order: list[int] = []

    def step(number: int) -> None:
        assert lock.acquire(blocking=False)
        order.append(number)
        lock.release()

    for number in range(2000):
        endpoint.run_async(lambda number=number: step(number))  # type: ignore[misc]
    await asyncio.gather(*(echo.echo(number) for number in range(100)))
    assert await endpoint.call_async(lambda: len(order), None) == 2000
    assert order == list(range(2000))
    await service.close()


@on_virtual_time
async def test_run_async_from_another_thread_runs_on_the_main_thread() -> None:
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.start()
    ran = asyncio.Event()

    def check() -> None:
        endpoint.validate_runs_in_main_thread()
        ran.set()

    await service.run_blocking(endpoint.run_async, check)
    await ran.wait()
    with pytest.raises(RuntimeError, match="outside the main thread of local/story"):
        await service.run_blocking(endpoint.validate_runs_in_main_thread)
    endpoint.may_stop.set()
    await service.close()


@on_virtual_time
async def test_call_async_fails_when_it_takes_too_long() -> None:
    """RPC-25"""
    service = LocalRpcService()
    endpoint = EchoEndpoint(service)
    endpoint.start()
    with pytest.raises(RpcTimeoutError, match=r"local/echo.*0\.1 s"):
        await endpoint.call_async(endpoint.hang, 0.1)
    assert service.clock.monotonic() == pytest.approx(0.1)
    with pytest.raises(ValueError, match="failed at once"):
        await endpoint.call_async(lambda: endpoint.fail("at once"), 0.1)
    await service.close()


@on_virtual_time
async def test_scheduled_work_runs_when_its_delay_is_over() -> None:
    """RPC-27"""
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.start()
    times: list[float] = []
    for delay in (0.02, 0.01):
        endpoint.schedule_run_async(delay, lambda: times.append(service.clock.monotonic()))
    await asyncio.sleep(1)
    assert times == pytest.approx([0.01, 0.02])
    endpoint.may_stop.set()
    await service.close()


@on_virtual_time
async def test_scheduled_work_that_was_cancelled_or_outlived_its_endpoint_does_not_run() -> None:
    """RPC-28"""
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.may_stop.set()
    endpoint.start()
    ran: list[str] = []
    endpoint.schedule_run_async(1, lambda: ran.append("cancelled")).cancel()
    endpoint.schedule_run_async(1, lambda: ran.append("outlived"))
    await endpoint.close()
    endpoint.schedule_run_async(1, lambda: ran.append("after"))
    endpoint.run_async(lambda: ran.append("async"))
    await asyncio.sleep(10)
    assert ran == []
    await service.close()


@on_virtual_time
async def test_an_error_nobody_awaits_terminates_the_endpoint_with_it() -> None:
    service = LocalRpcService()

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise RuntimeError("in the background")

    def begin(endpoint: Story, how: str) -> None:
        if how == "task":
            endpoint.create_task(fail())
        elif how == "run_async":
            endpoint.run_async(fail)
        else:
            endpoint.schedule_run_async(0.1, fail)

    for how in ("task", "run_async", "timer"):
        endpoint = Story(service)
        endpoint.may_stop.set()
        endpoint.start()
        begin(endpoint, how)
        with pytest.raises(RuntimeError, match="in the background"):
            await endpoint.terminated
        assert endpoint.story == ["on_start", "on_stop"]
    await service.close()


@on_virtual_time
async def test_background_tasks_are_cancelled_after_on_stop() -> None:
    service = LocalRpcService()
    endpoint = Story(service)
    endpoint.start()
    task = endpoint.create_task(asyncio.Event().wait())
    endpoint.close()
    await asyncio.sleep(1)
    assert not task.done()
    endpoint.may_stop.set()
    await endpoint.terminated
    assert task.cancelled()
    await service.close()
