"""The main thread of an endpoint at its edges: what runs late, fails twice, or outlives its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import weakref
from typing import Any

import pytest

from flinkray.core.errors import HandlerCancelledError, RecipientUnreachableError
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcService
from flinkray.rpc.mailbox import EndpointState
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoGateway, Scripted, running
from tests.rpc.on_services import Services, on_local_service, on_local_service_with_threads
from tests.rpc.test_handlers import ScriptedCall

# --- beginning ------------------------------------------------------------------------------------


@on_local_service
async def test_calls_waiting_for_an_on_start_that_is_cancelled_are_not_handled(
    services: Services,
) -> None:
    """RPC-18: the calls fail before on_stop has finished."""
    endpoint = Scripted(services.host)
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    await echo.note(1)
    asked = asyncio.ensure_future(echo.echo(1))
    await services.let_time_pass(1)
    terminated = endpoint.close()
    with pytest.raises(RecipientUnreachableError):
        await asked
    assert endpoint.story == ["on_stop"]
    assert endpoint.seen == []
    assert not terminated.done()
    endpoint.may_stop.set()
    await terminated


@on_local_service
async def test_on_start_that_ignores_its_cancellation_completes_and_calls_are_answered(
    services: Services,
) -> None:
    """RPC-05: the endpoint goes from starting to stopping and never reports that it runs."""
    endpoint = Scripted(services.host)
    endpoint.insists_on_starting = True
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    asked = asyncio.ensure_future(echo.running())
    await services.let_time_pass(1)
    terminated = endpoint.close()
    assert await asked is False
    assert endpoint.mailbox.state is EndpointState.STOPPING
    assert endpoint.story == ["on_start", "on_stop"]
    endpoint.may_stop.set()
    await terminated


# --- errors ---------------------------------------------------------------------------------------


@on_local_service
async def test_error_of_a_cancelled_on_start_does_not_replace_the_first_error(
    services: Services,
) -> None:
    """RPC-12"""

    class FailsAsItIsGivenUp(Scripted):
        async def on_start(self) -> None:
            try:
                await self.may_start.wait()
            finally:
                raise OSError("the last")

    endpoint = FailsAsItIsGivenUp(services.host)
    endpoint.may_stop.set()
    endpoint.start()
    await services.let_time_pass(1)
    endpoint.on_fatal_error(RuntimeError("the first"))
    with pytest.raises(RuntimeError, match="the first"):
        await endpoint.terminated


class AwaitsWhatIsCancelled(Scripted):
    """As one does that cancels a task of its own and waits for its end."""

    def __init__(self, service: RpcService, *, starts: bool) -> None:
        super().__init__(service)
        self._starts = starts
        self.waited_for: asyncio.Future[None] = service.loop.create_future()

    async def on_start(self) -> None:
        if not self._starts:
            await self.waited_for
        self.story.append("on_start")

    async def on_stop(self) -> None:
        self.story.append("on_stop")
        await self.waited_for


@on_local_service
async def test_endpoint_fails_when_a_future_that_on_start_awaits_is_cancelled(
    services: Services,
) -> None:
    """RPC-18: otherwise the endpoint neither runs nor terminates, and calls wait for ever."""
    endpoint = AwaitsWhatIsCancelled(services.host, starts=False)
    endpoint.start()
    echo = await services.caller.connect(endpoint.address, EchoGateway)
    asked = asyncio.ensure_future(echo.echo(1))
    await services.let_time_pass(1)
    endpoint.waited_for.cancel()
    with pytest.raises(RecipientUnreachableError, match="on_start was cancelled, or something"):
        await asked
    with pytest.raises(HandlerCancelledError, match="host/echo: on_start was cancelled"):
        await endpoint.terminated
    assert endpoint.story == []


@on_local_service
async def test_endpoint_terminates_when_a_future_that_on_stop_awaits_is_cancelled(
    services: Services,
) -> None:
    """RPC-13: otherwise the endpoint and its service never end."""
    services.host_error = HandlerCancelledError
    endpoint = AwaitsWhatIsCancelled(services.host, starts=True)
    endpoint.start()
    task = endpoint.create_task(asyncio.Event().wait())
    await services.let_time_pass(1)
    endpoint.close()
    await services.let_time_pass(1)
    endpoint.waited_for.cancel()
    with pytest.raises(HandlerCancelledError, match="on_stop was cancelled, or something"):
        await services.host.close()
    assert endpoint.story == ["on_start", "on_stop"]
    assert endpoint.mailbox.state is EndpointState.TERMINATED
    assert task.cancelled()


@on_local_service
async def test_earlier_error_takes_precedence_over_a_cancelled_on_stop(services: Services) -> None:
    """RPC-12"""
    endpoint = AwaitsWhatIsCancelled(services.host, starts=True)
    endpoint.start()
    await services.let_time_pass(1)
    endpoint.waited_for.cancel()
    endpoint.on_fatal_error(RuntimeError("the first"))
    with pytest.raises(RuntimeError, match="the first"):
        await endpoint.terminated


@on_local_service
async def test_error_of_an_awaitable_returned_to_run_async_ends_the_endpoint(
    services: Services,
) -> None:
    """Any awaitable, not only a coroutine."""
    endpoint = running(services.host)
    await services.let_time_pass(1)
    result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    endpoint.run_async(lambda: result)
    await services.let_time_pass(1)
    assert endpoint.is_running
    result.set_exception(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        await endpoint.terminated


@on_virtual_time
async def test_error_of_a_task_cancelled_with_its_endpoint_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService()
    endpoint = running(service)

    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("cannot clean up")

    endpoint.create_task(fails_at_its_end())
    await asyncio.sleep(1)
    await endpoint.close()
    assert any("error while it ended" in record.getMessage() for record in caplog.records)


def test_error_of_an_ended_endpoint_that_nobody_reads_causes_no_asyncio_complaint() -> None:
    """The error was logged; asyncio reports no exception that was never retrieved."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        service = LocalRpcService()
        endpoint = running(service)
        endpoint.on_fatal_error(OSError("disk full"))
        await asyncio.wait({endpoint.terminated})
        del endpoint
        gc.collect()
        await service.close()

    logging.disable(logging.ERROR)
    try:
        asyncio.run(main())
    finally:
        logging.disable(logging.NOTSET)
    assert complaints == []


# --- functions and timers -------------------------------------------------------------------------


@on_local_service
async def test_call_async_returns_results_of_plain_functions_and_of_coroutines(
    services: Services,
) -> None:
    endpoint = running(services.host)
    assert await endpoint.call_async(lambda: 7, 1.0) == 7
    assert await endpoint.call_async(lambda: asyncio.sleep(0.5, 8), 1.0) == 8
    assert await endpoint.call_async(lambda: asyncio.sleep(500, 9), None) == 9
    await endpoint.close()
    late = endpoint.call_async(lambda: endpoint.story.append("late"), 1.0)
    with pytest.raises(asyncio.CancelledError):
        await late
    assert "late" not in endpoint.story


@on_local_service
async def test_error_of_a_timed_out_call_async_does_not_end_the_endpoint(
    services: Services,
) -> None:
    """RPC-25"""
    endpoint = running(services.host)

    async def fails_late() -> None:
        await asyncio.sleep(2.0)
        raise OSError("disk full")

    with pytest.raises(TimeoutError):
        await endpoint.call_async(fails_late, 1.0)
    await services.let_time_pass(5)
    assert endpoint.is_running


@on_local_service_with_threads
async def test_timeout_error_raised_by_a_function_reaches_the_calling_thread(
    services: Services,
) -> None:
    endpoint = running(services.host)

    def fails() -> None:
        raise concurrent.futures.TimeoutError("its own")

    with pytest.raises(concurrent.futures.TimeoutError, match="its own"):
        await services.host.run_blocking(endpoint.call_from_thread, fails, 100.0)
    result = await services.host.run_blocking(
        endpoint.call_from_thread, lambda: asyncio.sleep(0, "awaited"), None
    )
    assert result == "awaited"


@on_local_service_with_threads
async def test_run_async_from_another_thread_wakes_the_main_thread(services: Services) -> None:
    """RPC-26: asyncio in debug mode checks the calling thread."""
    endpoint, ran = running(services.host), asyncio.Event()
    asyncio.get_running_loop().set_debug(True)
    await asyncio.to_thread(endpoint.run_async, ran.set)
    await ran.wait()


@on_local_service
async def test_finished_timers_and_tasks_of_an_endpoint_are_freed_at_once(
    services: Services,
) -> None:
    """RPC-28: not until the timer would have fired."""
    endpoint = running(services.host)

    class Large:
        def __call__(self) -> None: ...

    def schedule(delay: float) -> weakref.ref[Large]:
        large = Large()
        endpoint.schedule_run_async(delay, large)
        return weakref.ref(large)

    soon, late = schedule(1.0), schedule(1e6)
    cancelled = endpoint.schedule_run_async(1e6, Large())
    cancelled.cancel()
    cancelled.cancel()
    await services.let_time_pass(2)
    gc.collect()
    assert soon() is None
    assert late() is not None
    assert len(endpoint.mailbox._timers) == 1
    await endpoint.close()
    after = schedule(1e6)
    gc.collect()
    assert late() is None
    assert after() is None
    assert endpoint.mailbox._timers == {}
    task = endpoint.create_task(asyncio.Event().wait())
    await services.let_time_pass(1)
    assert task.cancelled()
    assert endpoint.mailbox._background == {}


@on_local_service
async def test_finished_call_async_is_freed_before_its_timeout(
    services: Services,
) -> None:
    """RPC-25: a client with frequent calls and a long timeout would keep all answers."""
    endpoint = running(services.host)

    async def call() -> weakref.ref[asyncio.Future[int]]:
        future = endpoint.call_async(lambda: 7, 1e6)
        assert await future == 7
        return weakref.ref(future)

    gone = await call()
    await services.let_time_pass(1)
    gc.collect()
    assert gone() is None


@on_local_service
async def test_watches_created_by_an_endpoint_end_with_the_endpoint(services: Services) -> None:
    endpoint, watched = running(services.host), running(services.caller)
    told: list[str] = []
    watch = endpoint.watch(watched.address, told.append)
    await services.let_time_pass(1)
    await endpoint.close()
    assert not watch.is_active
    assert not endpoint.watch(watched.address, told.append).is_active
    await watched.close()
    await services.let_time_pass(1)
    assert told == []


# --- the end of its process -----------------------------------------------------------------------


@on_virtual_time
async def test_waiting_and_new_calls_of_an_endpoint_are_dropped_when_its_process_dies() -> None:
    service = LocalRpcService()
    starting, idle, busy = (
        Scripted(service, "starting"),
        Scripted(service, "idle"),
        running(service),
    )
    idle.may_start.set()
    for endpoint in (starting, idle):
        endpoint.start()
    held, posted, late = (ScriptedCall(int) for _ in range(3))
    starting.mailbox.handlers.post(held)
    await asyncio.sleep(1)
    busy.mailbox.handlers.post(posted)
    service.abort()
    assert not any(endpoint.mailbox.accepts_calls for endpoint in (starting, idle, busy))
    idle.mailbox.handlers.post(late)
    await asyncio.sleep(1)
    assert held.story == ["held", "abandoned"]
    assert posted.story == ["abandoned"]
    assert late.story == ["abandoned"]
    assert starting.mailbox.started.cancelled()
    assert starting.story == []


@on_virtual_time
async def test_endpoint_whose_process_has_died_is_not_stopped_a_second_time() -> None:
    service = LocalRpcService()
    endpoint, stopping = running(service), Scripted(service, "stopping")
    stopping.may_start.set()
    stopping.start()
    await asyncio.sleep(1)
    stopping.close()
    await asyncio.sleep(1)
    service.abort()
    service.abort()
    assert endpoint.close() is endpoint.terminated
    endpoint.on_fatal_error(OSError("too late"))
    await asyncio.sleep(1)
    assert endpoint.story == ["on_start"]
    assert stopping.story == ["on_start", "on_stop"]
    assert endpoint.mailbox.state is stopping.mailbox.state is EndpointState.TERMINATED
    assert endpoint.terminated.exception() is None


@on_virtual_time
async def test_endpoint_terminates_although_the_waiting_caller_has_given_up() -> None:
    """``wait_for`` cancels the future that the caller waits for."""
    service = LocalRpcService()
    endpoint = Scripted(service)
    endpoint.may_start.set()
    endpoint.start()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(endpoint.close(), 1.0)
    endpoint.may_stop.set()
    await asyncio.sleep(1)
    assert endpoint.mailbox.state is EndpointState.TERMINATED
    assert service.endpoints() == []
    stopped = endpoint.mailbox._stop_task
    assert stopped is not None
    assert stopped.exception() is None
    await service.close()


@on_virtual_time
async def test_endpoint_with_an_abandoned_close_ends_when_its_process_dies() -> None:
    """``wait_for`` has cancelled the future that tells whether the endpoint is over."""
    service = LocalRpcService()
    endpoint = Scripted(service)
    endpoint.may_start.set()
    endpoint.start()
    task = endpoint.create_task(asyncio.Event().wait())
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(endpoint.close(), 1.0)
    service.abort()
    assert endpoint.mailbox.state is EndpointState.TERMINATED
    assert service.endpoints() == []
    await asyncio.sleep(1)
    assert task.cancelled()
    endpoint.mailbox.abort()
    assert endpoint.terminated.cancelled()


@on_virtual_time
async def test_task_that_kills_its_own_process_is_not_cancelled() -> None:
    network = LocalNetwork()
    service = LocalRpcService("host", network)
    endpoint = running(service)
    story: list[str] = []

    async def ends_everything() -> None:
        network.kill("host")
        await asyncio.sleep(1)
        story.append("went on")

    endpoint.create_task(ends_everything())
    other = endpoint.create_task(asyncio.Event().wait())
    await asyncio.sleep(2)
    assert story == ["went on"]
    assert other.cancelled()


@on_virtual_time
async def test_all_handlers_are_cancelled_when_the_grace_of_the_endpoint_is_over() -> None:
    """RPC-17"""

    class Patient(Scripted):
        handler_grace = 3.0

    service = LocalRpcService()
    endpoint = Patient(service)
    endpoint.may_start.set()
    endpoint.may_stop.set()
    endpoint.start()
    echo = await service.connect(endpoint.address, EchoGateway)
    hanging = [asyncio.ensure_future(echo.hang()) for _ in range(2)]
    await asyncio.sleep(1)
    await endpoint.close()
    assert service.clock.monotonic() == pytest.approx(4.0)
    assert all(
        isinstance(error, RecipientUnreachableError)
        for error in await asyncio.gather(*hanging, return_exceptions=True)
    )
    await service.close()
