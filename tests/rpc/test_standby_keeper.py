"""Keeping standby processes ready while Ray's head comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import ray

from flinkray.rpc import LocalRpcService
from flinkray.rpc.ray_directory import RayDirectory
from flinkray.rpc.ray_standby import StandbyKeeper
from flinkray.testing.virtual_time import on_virtual_time

T = TypeVar("T")


class Book(RayDirectory):
    """Standby processes that have begun to start, and a head that may be away."""

    def __init__(self) -> None:
        super().__init__("test")
        self.begun: list[str] = []
        self.is_away = False

    def starting_standbys(self) -> list[str]:
        if self.is_away:
            raise ray.exceptions.RpcError("the head is away")
        return self.begun

    def ready_standbys(self) -> list[str]:
        return []

    def standby_begun(self, name: str) -> None:
        self.begun.append(name)


@on_virtual_time
async def test_standby_processes_are_kept_ready_again_after_rays_head_was_away() -> None:
    service = LocalRpcService()
    book = Book()

    async def run(fn: Callable[..., T], *args: object) -> T:
        return fn(*args)

    async def do_nothing(name: str) -> None:
        """Ray would start or end the actor."""

    keeper = StandbyKeeper(service, book, run, do_nothing, do_nothing)
    keeping = service.create_task(keeper.keep(2))
    await asyncio.sleep(0.5)
    assert len(book.begun) == 2
    book.is_away = True
    await asyncio.sleep(10)
    book.is_away = False
    book.begun.clear()
    await asyncio.sleep(2)
    assert len(book.begun) == 2
    assert not keeping.done()
    await service.close()
