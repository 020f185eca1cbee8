"""Looking after actors that are children, while Ray's head comes and goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from flinkray.rpc.ray.actors import RayActors
from flinkray.rpc.ray.head import RayHead
from flinkray.rpc.ray.process import PARKED, RayProcess
from flinkray.testing.virtual_time import on_virtual_time


def child(*errors: Exception) -> Any:
    """What is known here of an actor: what calls fail with, the last one for ever."""
    left = list(errors)

    def park() -> Any:
        future: Future[None] = Future()
        future.set_exception(left.pop(0) if len(left) > 1 else left[0])
        return SimpleNamespace(future=lambda: future)

    return SimpleNamespace(park=SimpleNamespace(remote=park), left=left)


def dead_child() -> Any:
    return child(ray.exceptions.ActorDiedError())


class Head(RayHead):
    """Answers what it is asked, but for its first failures."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__("test", is_in_ray=lambda: True)
        self.failures = list(failures)
        self.asked: list[object] = []

    async def ask(self, fn: Callable[..., Any], *args: object) -> Any:
        self.asked.append(fn)
        if self.failures:
            raise self.failures.pop(0)


@on_virtual_time
async def test_name_of_a_dead_child_is_freed_after_an_outage_of_rays_head() -> None:
    head = Head(ray.exceptions.RpcError("away"), ray.exceptions.RpcError("still away"))
    actors = RayActors("test", head)
    actors._adopt("worker", dead_child())
    (tending,) = actors._tasks
    await asyncio.wait({tending}, timeout=60)
    assert tending.done()
    assert head.asked == [ray.kill] * 3
    assert actors._children == {}


@on_virtual_time
async def test_name_of_a_child_killed_for_lack_of_memory_is_freed() -> None:
    """Ray never reports the death of such an actor."""
    head = Head()
    actors = RayActors("test", head)
    actors._adopt("worker", child(ray.exceptions.OutOfMemoryError("killed")))
    (tending,) = actors._tasks
    await asyncio.wait({tending}, timeout=60)
    assert tending.done()
    assert head.asked == [ray.kill]


@on_virtual_time
async def test_child_that_ray_restarts_after_lack_of_memory_is_not_killed() -> None:
    head = Head()
    actors = RayActors("test", head)
    out_of_memory = ray.exceptions.OutOfMemoryError("killed")
    restarting = ray.exceptions.ActorUnavailableError("restarting", None)
    worker = child(out_of_memory, restarting, out_of_memory, restarting, restarting)
    actors._adopt("worker", worker)
    (tending,) = actors._tasks
    await asyncio.wait({tending}, timeout=60)
    assert not tending.done()
    assert len(worker.left) == 1
    assert head.asked == []
    tending.cancel()


async def test_unexpected_error_while_a_child_process_is_watched_is_logged_with_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    actors = RayActors("test", Head(KeyError("mystery")))
    with caplog.at_level(logging.ERROR):
        actors._adopt("worker", dead_child())
        (tending,) = actors._tasks
        await asyncio.wait({tending})
        await asyncio.sleep(0)
    (record,) = (r for r in caplog.records if r.name == "flinkray.rpc.ray.actors")
    assert "tend worker" in record.getMessage()
    assert record.exc_info is not None


@on_virtual_time
async def test_call_that_waits_for_the_end_of_a_process_returns_after_a_time_limit() -> None:
    """Calls and connections of callers that have died must not stay for ever."""
    process = RayProcess.__new__(RayProcess)
    process._leaving = asyncio.Event()
    began = asyncio.get_running_loop().time()
    assert await process.park() is False
    assert asyncio.get_running_loop().time() - began == pytest.approx(PARKED)

    parked = asyncio.ensure_future(process.park())
    await asyncio.sleep(PARKED / 2)
    process._leaving.set()
    assert await parked is True
