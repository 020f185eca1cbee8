"""The life cycle of an endpoint and its main thread."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcTimeoutError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import (
    FencedRpcEndpoint,
    FencedRpcGateway,
    LocalRpcService,
    RpcEndpoint,
    RpcGateway,
    RpcService,
)
from flinkray.rpc.mailbox import EndpointState
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, Scripted, running, starting
from tests.rpc.on_services import (
    Services,
    on_every_service,
    on_local_service,
    on_local_service_with_threads,
)


@on_local_service
async def test_calls_wait_until_on_start_has_finished(services: Services) -> None:
    endpoint = Scripted(services.host)
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    answer = asyncio.ensure_future(echo.echo(1))
    await services.let_time_pass(5)
    assert not answer.done()
    states = [endpoint.mailbox.state]
    endpoint.may_start.set()
    endpoint.may_stop.set()
    assert await answer == 1
    states.append(endpoint.mailbox.state)
    assert states == [EndpointState.STARTED, EndpointState.RUNNING]


@on_local_service
async def test_stopping_endpoint_answers_calls_and_reports_that_it_is_not_running(
    services: Services,
) -> None:
    """RPC-05"""
    endpoint = Scripted(services.host)
    endpoint.may_start.set()
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    assert await echo.running()
    terminated = endpoint.close()
    assert not await echo.running()
    await services.let_time_pass(100)
    assert not terminated.done()
    endpoint.may_stop.set()
    await terminated


@on_local_service
async def test_termination_fails_with_the_error_of_on_stop(services: Services) -> None:
    """RPC-12, RPC-13"""
    endpoint = running(services.host)
    endpoint.stop_error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        await endpoint.close()


@on_local_service
async def test_error_of_on_start_terminates_the_endpoint(services: Services) -> None:
    """RPC-18"""
    endpoint = Scripted(services.host)
    endpoint.start_error = ValueError("no way to start")
    endpoint.may_start.set()
    endpoint.start()
    with pytest.raises(ValueError, match="no way to start"):
        await endpoint.terminated
    assert endpoint.story == []
    with pytest.raises(RpcConnectionError):
        await services.caller.connect(endpoint.address, EchoGateway)


@on_local_service
async def test_closing_an_endpoint_twice_runs_on_stop_once(services: Services) -> None:
    """RPC-19"""
    endpoint = starting(services.host)
    await asyncio.sleep(0)
    first, second = endpoint.close(), endpoint.close()
    assert first is second is endpoint.terminated
    endpoint.may_stop.set()
    await first
    assert endpoint.story == ["on_start", "on_stop"]
    with pytest.raises(RuntimeError, match="host/echo was started or closed before"):
        endpoint.start()


@on_local_service
async def test_on_stop_may_wait_for_a_function_on_the_main_thread(services: Services) -> None:
    """RPC-16"""
    endpoint = starting(services.host)
    await asyncio.sleep(0)
    terminated = endpoint.close()
    endpoint.run_async(endpoint.may_stop.set)
    await terminated


@on_local_service
async def test_running_handler_finishes_before_termination_and_later_calls_never_run(
    services: Services,
) -> None:
    """RPC-17"""
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    running = asyncio.ensure_future(echo.hang())
    await endpoint.hanging.wait()
    terminated = endpoint.close()
    await services.let_time_pass(0.1)
    late = asyncio.ensure_future(echo.note(1))
    asked = asyncio.ensure_future(echo.echo(1))
    await services.let_time_pass(0.1)
    assert not terminated.done()
    endpoint.release.set()
    await running
    await terminated
    with pytest.raises(RecipientUnreachableError):
        await asked
    await late
    assert endpoint.seen == []


@on_every_service
async def test_closing_a_service_stops_all_endpoints_although_one_of_them_fails(
    services: Services,
) -> None:
    """RPC-14, RPC-15"""
    service = services.host
    endpoints = [starting(service, f"story-{number}") for number in range(5)]
    endpoints[2].stop_error = OSError("the third fails")
    await asyncio.sleep(0)
    services.host_error = OSError
    closing = asyncio.ensure_future(service.close())
    for endpoint in endpoints:
        await services.let_time_pass(1)
        assert not closing.done()
        endpoint.may_stop.set()
    with pytest.raises(OSError, match="the third fails"):
        await closing
    assert all(endpoint.terminated.done() for endpoint in endpoints)
    with pytest.raises(RpcConnectionError):
        await services.caller.connect(endpoints[0].address, EchoGateway)


class CountGateway(RpcGateway):
    """Counts under a lock for which nobody may ever have to wait."""

    @abstractmethod
    async def step(self) -> None: ...


class FencedCountGateway(FencedRpcGateway, CountGateway):
    """The same, of a leader."""


class Counter(RpcEndpoint, CountGateway):
    """See the gateway."""

    def __init__(self, rpc_service: RpcService, endpoint_id: str, *token: JobMasterId) -> None:
        super().__init__(rpc_service, endpoint_id, *token)
        self.lock = threading.Lock()
        self.steps = 0

    def count(self) -> None:
        assert self.lock.acquire(blocking=False)
        self.steps += 1
        self.lock.release()

    async def step(self) -> None:
        self.count()


class FencedCounter(Counter, FencedRpcEndpoint[JobMasterId], FencedCountGateway):
    """See the gateway."""


@pytest.mark.parametrize("token", [(), (JobMasterId(bytes(16)),)], ids=["unfenced", "fenced"])
@on_local_service
async def test_run_async_functions_and_handlers_never_run_at_the_same_time(
    services: Services, token: tuple[JobMasterId, ...]
) -> None:
    """RPC-26"""
    kind = FencedCounter if token else Counter
    endpoint = kind(services.host, "counter", *token)
    endpoint.start()
    gateway = await services.caller.connect(endpoint.address, CountGateway, *token)
    calls = []
    for number in range(10_000):
        endpoint.run_async(endpoint.count)
        if number % 100 == 0:
            calls.append(asyncio.ensure_future(gateway.step()))
    assert await endpoint.call_async(lambda: endpoint.steps, None) == 10_000
    await asyncio.gather(*calls)
    assert endpoint.steps == 10_100


@on_local_service_with_threads
async def test_run_async_from_other_threads_runs_on_the_main_thread(services: Services) -> None:
    """RPC-26"""
    endpoint = Counter(services.host, "counter")
    endpoint.start()

    def count() -> None:
        endpoint.validate_runs_in_main_thread()
        endpoint.count()

    def run_many() -> None:
        for _ in range(500):
            endpoint.run_async(count)

    await asyncio.gather(*(services.host.run_blocking(run_many) for _ in range(4)))
    assert await endpoint.call_async(lambda: endpoint.steps, None) == 2000
    with pytest.raises(RuntimeError, match="outside the main thread of host/counter"):
        await services.host.run_blocking(endpoint.validate_runs_in_main_thread)


@on_local_service
async def test_call_async_times_out_and_its_function_runs_on(
    services: Services,
) -> None:
    """RPC-25"""
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    done = asyncio.Event()

    async def stuck() -> None:
        await endpoint.hang()
        done.set()

    with pytest.raises(RpcTimeoutError, match=r"host/echo.*stuck.*0\.1 s"):
        await endpoint.call_async(stuck, 0.1)
    assert endpoint.hanging.is_set()
    assert not done.is_set()
    endpoint.release.set()
    await done.wait()
    with pytest.raises(ValueError, match="failed at once"):
        await endpoint.call_async(lambda: endpoint.fail("at once"), 0.1)


@on_local_service_with_threads
async def test_call_from_a_thread_times_out_although_the_main_thread_is_blocked(
    services: Services,
) -> None:
    """RPC-25: the function does not give the main thread back."""
    endpoint = EchoEndpoint(services.host)
    endpoint.start()
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    def call() -> None:
        with pytest.raises(RpcTimeoutError, match=r"host/echo.*stuck.*0\.05 s"):
            endpoint.call_from_thread(stuck, 0.05)
        assert begun.wait(10)
        assert not ended.is_set()
        may_end.set()
        assert endpoint.call_from_thread(lambda: "free again", None) == "free again"

    await services.host.run_blocking(call)
    assert ended.is_set()
    with pytest.raises(ValueError, match="would wait for itself"):
        endpoint.call_from_thread(lambda: 1, None)
    await endpoint.close()
    with pytest.raises(RecipientUnreachableError, match="host/echo"):
        await services.host.run_blocking(endpoint.call_from_thread, lambda: 1, None)


@on_local_service
async def test_scheduled_work_runs_on_the_main_thread_after_its_delay(
    services: Services,
) -> None:
    """RPC-27"""
    endpoint = running(services.host)
    clock, ran = services.host.clock, asyncio.Queue[float]()
    begin = clock.monotonic()

    def note() -> None:
        endpoint.validate_runs_in_main_thread()
        ran.put_nowait(clock.monotonic() - begin)

    for delay in (0.02, 0.01):
        endpoint.schedule_run_async(delay, note)
    first, second = await ran.get(), await ran.get()
    assert (first, second) == pytest.approx((0.01, 0.02))


@on_local_service
async def test_scheduled_work_that_was_cancelled_or_outlived_its_endpoint_does_not_run(
    services: Services,
) -> None:
    """RPC-28"""
    endpoint = running(services.host)
    ran: list[str] = []
    endpoint.schedule_run_async(0.01, lambda: ran.append("cancelled")).cancel()
    endpoint.schedule_run_async(0.01, lambda: ran.append("outlived"))
    await endpoint.close()
    endpoint.schedule_run_async(0.01, lambda: ran.append("after"))
    endpoint.run_async(lambda: ran.append("async"))
    later, is_later = EchoEndpoint(services.host), asyncio.Event()
    later.start()
    later.schedule_run_async(0.02, is_later.set)
    await is_later.wait()
    assert ran == []


@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize("how", ["task", "run_async", "timer"])
@on_local_service
async def test_error_of_work_without_a_waiting_caller_ends_the_endpoint(
    services: Services, how: str, is_coroutine: bool
) -> None:
    endpoint = running(services.host)

    def breaks() -> None:
        raise OSError("disk full")

    async def breaks_later() -> None:
        await asyncio.sleep(0.1)
        breaks()

    work = breaks_later if is_coroutine else breaks
    if how == "task":
        endpoint.create_task(breaks_later())
    elif how == "run_async":
        endpoint.run_async(work)
    else:
        endpoint.schedule_run_async(1.0, work)
    with pytest.raises(OSError, match="disk full"):
        await endpoint.terminated
    assert endpoint.story == ["on_start", "on_stop"]


@on_local_service
async def test_an_endpoint_has_terminated_only_when_its_background_tasks_are_over(
    services: Services,
) -> None:
    endpoint = running(services.host)

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            endpoint.story.append("clean")

    endpoint.create_task(cleans_up())
    await endpoint.create_task(asyncio.sleep(0))
    await services.let_time_pass(1)
    assert len(endpoint.mailbox._background) == 1  # nothing is kept of the one that is over
    await endpoint.close()
    assert endpoint.story == ["on_start", "on_stop", "clean"]


@on_local_service
async def test_watches_that_were_cancelled_or_have_reported_are_not_kept(
    services: Services,
) -> None:
    endpoint, watched = running(services.host), running(services.caller)
    told: list[str] = []
    kept = endpoint.watch(watched.address, told.append)
    for _ in range(1000):
        endpoint.watch(watched.address, told.append).cancel()
    assert len(endpoint.mailbox._watches) < 100
    assert kept in endpoint.mailbox._watches
    watched.close()
    await services.let_time_pass(1)
    assert len(told) == 1
    assert kept not in endpoint.mailbox._watches


@on_virtual_time
async def test_endpoint_whose_process_dies_ends_at_once_without_on_stop() -> None:
    service = LocalRpcService()
    endpoint = starting(service)
    await asyncio.sleep(1)
    task = endpoint.create_task(asyncio.Event().wait())
    endpoint.schedule_run_async(1.0, lambda: endpoint.story.append("timer"))
    endpoint.run_async(lambda: endpoint.story.append("run_async"))
    service.abort()
    assert endpoint.terminated.done()
    assert service.endpoints() == []
    await asyncio.sleep(10)
    assert task.cancelled()
    assert endpoint.story == ["on_start"]


@pytest.mark.parametrize("what", ["start", "close", "create_task", "call_async", "timer", "watch"])
@on_local_service_with_threads
async def test_main_thread_method_called_on_another_thread_is_refused(
    services: Services, what: str
) -> None:
    endpoint = Scripted(services.host)
    waits = asyncio.sleep(0)
    ways: dict[str, Callable[[], object]] = {
        "start": endpoint.start,
        "close": endpoint.close,
        "create_task": lambda: endpoint.create_task(waits),
        "call_async": lambda: endpoint.call_async(lambda: None, 1.0),
        "timer": lambda: endpoint.schedule_run_async(0.0, lambda: None),
        "watch": lambda: endpoint.watch("host/echo", lambda _: None),
    }
    with pytest.raises(RuntimeError, match="outside the main thread of host/echo"):
        await asyncio.to_thread(ways[what])
    waits.close()


@on_virtual_time
async def test_watch_of_an_endpoint_in_its_own_process_reports_the_end() -> None:
    service = LocalRpcService()
    endpoint = EchoEndpoint(service)
    endpoint.start()
    echo = endpoint.get_self_gateway(EchoGateway)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(echo, ended.set_result)
    await endpoint.close()
    assert await ended == "the endpoint has terminated"
    with pytest.raises(RecipientUnreachableError, match="has terminated"):
        await echo.note(2)
