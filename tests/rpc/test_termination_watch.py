"""A watch by itself: it tells once, and holds nothing when it is over."""

from __future__ import annotations

import asyncio

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.peers import Wire


def connection() -> ClientConnection:
    loop = asyncio.get_running_loop()
    made = ClientConnection("host", "1", Wire(), PatientDeadlines(loop))
    made.followed.add(1)
    return made


def test_watch_of_an_endpoint_releases_its_resources_and_then_reports_the_end_once() -> None:
    story: list[str] = []
    watch = TerminationWatch("host/echo", story.append)
    watch.on_end(lambda: story.append("released"))
    assert watch.is_active
    assert watch.address == "host/echo"
    watch.fire("why")
    assert story == ["released", "why"]
    assert not watch.is_active
    watch.fire("again")
    watch.cancel()
    assert story == ["released", "why"]
    watch.on_end(lambda: story.append("released at once"))
    assert story == ["released", "why", "released at once"]


def test_cancelled_watch_of_an_endpoint_does_not_report_its_end() -> None:
    story: list[str] = []
    watch = TerminationWatch("host/echo", story.append)
    watch.on_end(lambda: story.append("released"))
    watch.cancel()
    watch.cancel()
    watch.fire("why")
    assert story == ["released"]
    assert not watch.is_active


class Watched:
    """A watch that is kept, of endpoint number 1 of one connection after the other."""

    def __init__(self, *successors: ClientConnection) -> None:
        self.told: list[str] = []
        self.first = connection()
        self.successors = list(successors)
        self.asked_for: list[ClientConnection] = []
        self.watch = TerminationWatch("host/echo", self.told.append)

    async def reached(self) -> tuple[ClientConnection, int]:
        return self.first, 1

    def successor_of(self, lost: ClientConnection) -> ClientConnection:
        self.asked_for.append(lost)
        if not self.successors:
            raise RecipientUnreachableError("nobody is there")
        return self.successors.pop(0)

    def keep(self) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.watch.keep(self.reached, self.successor_of))
        self.watch.kept_by(task)
        return task


@on_virtual_time
async def test_watch_continues_on_the_next_connection_until_the_endpoint_ends() -> None:
    second = connection()
    watched = Watched(second)
    task = watched.keep()
    await asyncio.sleep(1)
    watched.first.connection_lost("the wire was cut")
    await asyncio.sleep(1)
    assert watched.told == []
    assert watched.asked_for == [watched.first]
    assert second.is_needed
    second._endpoint_ended(1, "it has ended")
    await asyncio.sleep(1)
    assert watched.told == ["it has ended"]
    assert task.done()


@on_virtual_time
async def test_watch_reports_the_end_of_an_endpoint_that_cannot_be_reached_again() -> None:
    watched = Watched()
    watched.keep()
    await asyncio.sleep(1)
    watched.first.connection_lost("the wire was cut")
    await asyncio.sleep(1)
    assert watched.told == ["nobody is there"]


@on_virtual_time
async def test_watch_of_an_endpoint_ended_with_its_connection_opens_no_other() -> None:
    watched = Watched(connection())
    watched.keep()
    await asyncio.sleep(1)
    watched.first.followed.discard(1)
    watched.first.connection_lost("the wire was cut")
    await asyncio.sleep(1)
    assert watched.told == ["the wire was cut"]
    assert watched.asked_for == []


@on_virtual_time
async def test_watch_of_an_unreachable_endpoint_reports_the_reason() -> None:
    watched = Watched()

    async def nowhere() -> tuple[ClientConnection, int]:
        raise RpcConnectionError("there is nobody")

    watched.reached = nowhere  # type: ignore[method-assign]
    watched.keep()
    await asyncio.sleep(1)
    assert watched.told == ["there is nobody"]


@on_virtual_time
async def test_watch_that_fails_with_a_bug_reports_the_exception() -> None:
    watched = Watched()

    async def broken() -> tuple[ClientConnection, int]:
        raise ValueError("a bug")

    watched.reached = broken  # type: ignore[method-assign]
    task = watched.keep()
    await asyncio.wait({task})
    await asyncio.sleep(1)
    assert watched.told == ["watching it failed: ValueError('a bug')"]


@on_virtual_time
async def test_cancelling_a_watch_cancels_its_task() -> None:
    watched = Watched()
    task = watched.keep()
    await asyncio.sleep(1)
    assert watched.first.is_needed
    watched.watch.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not watched.first.is_needed
    watched.first.connection_lost("the wire was cut")
    await asyncio.sleep(1)
    assert watched.told == []
