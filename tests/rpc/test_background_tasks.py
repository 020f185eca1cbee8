"""Errors of what a service does by itself, which nobody awaits, come to light."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.rpc.calls.background_tasks import BackgroundTasks
from flinkray.rpc.service import JITTER
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.errors import UnhandledError
from tests.rpc.endpoints import EchoEndpoint, EchoGateway
from tests.rpc.on_services import Services, on_local_service


class DiskFullError(OSError):
    """What no piece of the framework expects."""


async def fail() -> None:
    raise DiskFullError("no room")


async def until_done(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
    await asyncio.sleep(0)  # its callbacks


async def test_an_error_of_a_task_that_nobody_awaits_is_logged_with_name_and_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService("host")
    await until_done(service.create_task(fail(), "count the days"))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "host: count the days" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], DiskFullError)
    assert "in fail" in caplog.text
    await service.close()


async def test_background_tasks_cancelled_with_their_service_are_not_logged_as_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService("host")
    task = service.create_task(asyncio.sleep(1000), "sleep")
    await service.close()
    assert task.cancelled()
    assert caplog.records == []


def test_an_error_of_a_task_that_nobody_awaits_ends_a_simulation() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        simulation.service("host").create_task(fail(), "count the days")
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="host: count the days"):
        simulation.run(scenario())


async def test_error_of_a_watch_callback_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = LocalNetwork()
    host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    endpoint = EchoEndpoint(host)
    endpoint.start()
    told = asyncio.Event()

    def hear(reason: str) -> None:
        told.set()
        raise DiskFullError(reason)

    caller.watch(await caller.connect(endpoint.address, EchoGateway), hear)
    await asyncio.sleep(0)
    await endpoint.close()
    await told.wait()
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert "caller: watch host/echo" in record.getMessage()
    await caller.close()
    await host.close()


async def test_failed_connect_raises_its_error_without_logging_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService("host")
    with pytest.raises(Exception, match="no process nobody is running"):
        await service.connect("nobody/echo", EchoGateway)
    assert caplog.records == []
    await service.close()


async def test_error_of_a_periodic_task_is_logged_when_nobody_reads_its_future(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService("host")
    task = service.schedule_periodically(fail, 0.001, initial_delay=0.0)
    await asyncio.wait({task.future})
    (record,) = caplog.records
    assert "host: fail, each 0.001 s" in record.getMessage()
    assert isinstance(task.future.exception(), DiskFullError)
    await service.close()


@on_local_service
async def test_service_on_virtual_time_has_no_threads(services: Services) -> None:
    assert not services.host.has_threads
    assert await services.host.run_blocking(threading.get_ident) == threading.get_ident()


@on_local_service
async def test_pause_of_a_service_lasts_the_given_time_or_slightly_longer(
    services: Services,
) -> None:
    clock = services.host.clock
    begin = clock.monotonic()
    await services.host.pause(10.0)
    assert 10.0 <= clock.monotonic() - begin <= 10.0 * (1 + JITTER)


async def test_finished_background_task_is_forgotten_and_not_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = BackgroundTasks(asyncio.get_running_loop(), "host")
    running = tasks.create(asyncio.sleep(1000), "sleep")
    done = [tasks.create(asyncio.sleep(0), "be quick"), tasks.create_awaited(fail(), "fail")]
    for task in done:
        await until_done(task)
    assert [task.get_name() for task in (running, *done)] == [
        "host: sleep", "host: be quick", "host: fail",
    ]  # fmt: skip
    gone = [weakref.ref(task) for task in done]
    del task, done
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert caplog.records == [], "the failure was for who awaits it"
    assert tasks.cancel() == (running,)
    await until_done(running)
    assert running.cancelled()
    assert tasks.cancel() == ()
