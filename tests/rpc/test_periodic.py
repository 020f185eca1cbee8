"""Work that a service repeats."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.rpc import LocalRpcService
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.on_services import Services, on_local_service


@on_local_service
async def test_next_run_begins_one_interval_after_the_end_of_the_last(
    services: Services,
) -> None:
    """RPC-29"""
    clock, begins, ends = services.host.clock, asyncio.Queue[float](), asyncio.Queue[float]()

    async def run() -> None:
        begins.put_nowait(clock.monotonic())
        await asyncio.sleep(0.02)
        ends.put_nowait(clock.monotonic())

    services.host.schedule_periodically(run, 0.01, initial_delay=0.0)
    await begins.get()
    for _ in range(3):
        assert await ends.get() + 0.01 <= await begins.get() + 1e-9


@on_local_service
async def test_periodic_task_cancelled_in_its_first_run_has_no_second_run(
    services: Services,
) -> None:
    """RPC-29"""
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run() -> None:
        assert not begun.is_set(), "it runs a second time"
        begun.set()
        await may_end.wait()
        ended.set()

    task = services.host.schedule_periodically(run, 0.001, initial_delay=0.0)
    await begun.wait()
    task.cancel()
    task.cancel()
    may_end.set()
    await ended.wait()
    control: asyncio.Queue[None] = asyncio.Queue()
    services.host.schedule_periodically(lambda: control.put_nowait(None), 0.01)
    for _ in range(3):
        await control.get()
    assert task.future.cancelled()


@on_local_service
async def test_periodic_task_runs_from_its_initial_delay_until_it_is_cancelled(
    services: Services,
) -> None:
    """RPC-29: without an initial delay after the first interval."""
    clock = services.host.clock
    runs: list[float] = []
    for delay in (None, 0.0, 1.0, 25.0):
        first = 10.0 if delay is None else delay
        begin = clock.monotonic()
        task = services.host.schedule_periodically(
            lambda: runs.append(clock.monotonic()), 10.0, initial_delay=delay
        )
        await asyncio.sleep(first + 25)
        assert not task.future.done()
        task.cancel()
        assert task.future.cancelled()
        await asyncio.sleep(100)
        assert runs == pytest.approx([begin + first + later for later in (0, 10, 20)])
        runs.clear()


@on_local_service
async def test_error_of_a_periodic_task_ends_the_task(services: Services) -> None:
    def run() -> None:
        raise OSError("disk full")

    task = services.host.schedule_periodically(run, 0.001)
    with pytest.raises(OSError, match="disk full"):
        await task.future


@on_local_service
async def test_periodic_tasks_end_with_their_service(services: Services) -> None:
    runs: list[None] = []
    task = services.host.schedule_periodically(lambda: runs.append(None), 0.001)
    await services.host.close()
    so_far = len(runs)
    assert task.future.cancelled()
    await services.let_time_pass(1.0)
    assert len(runs) == so_far


@on_local_service
async def test_periodic_interval_of_zero_is_refused(services: Services) -> None:
    with pytest.raises(ConfigurationError, match="interval of a periodic task"):
        services.host.schedule_periodically(lambda: None, 0.0)


@on_virtual_time
async def test_error_of_a_periodic_task_that_was_cancelled_during_its_run_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = LocalRpcService()
    may_end = asyncio.Event()

    async def run() -> None:
        await may_end.wait()
        raise OSError("disk full")

    task = service.schedule_periodically(run, 1.0)
    await asyncio.sleep(2)
    task.cancel()
    assert task.future.cancelled()
    may_end.set()
    await asyncio.sleep(2)
    assert caplog.records == []
    await service.close()


@on_local_service
async def test_periodic_task_can_be_cancelled_after_a_run_that_waited(
    services: Services,
) -> None:
    """RPC-29: the task must not sleep until its next run."""
    runs: list[None] = []

    async def run() -> None:
        await asyncio.sleep(1)
        runs.append(None)

    task = services.host.schedule_periodically(run, 1e6, initial_delay=0.0)
    await asyncio.sleep(2)
    task.cancel()
    await asyncio.sleep(1)
    assert len(runs) == 1
    assert task._task.cancelled()


@on_local_service
async def test_periodic_task_cancelled_before_its_first_run_never_runs(services: Services) -> None:
    """RPC-29"""
    runs: list[None] = []
    task = services.host.schedule_periodically(lambda: runs.append(None), 1.0)
    task.cancel()
    assert task.future.cancelled()
    await services.let_time_pass(0.5)
    assert task._task.cancelled()
    await services.let_time_pass(5)
    assert runs == []
