"""Keeping prestarted processes ready while Ray's head comes and goes, and taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import ray

from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.rpc.ray.prestarted import (
    Prestarted,
    PrestartedGateway,
    PrestartedKeeper,
    PrestartedTaker,
)
from flinkray.rpc.wire import codec
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import echo_spec

T = TypeVar("T")


class Book(RayDirectory):
    """Prestarted processes that have begun to start, and a head that may be away."""

    def __init__(self) -> None:
        super().__init__("test")
        self.begun: list[str] = []
        self.ready: list[str] = []
        self.claimed: list[str] = []
        self.there: list[str] = []
        """With a process of their own, whether they are ready or were taken."""
        self.others: list[str] = []
        """Those that have a role."""
        self.removed: list[str] = []
        self.is_away = False
        self.is_kept = False
        self.killed: list[str] = []
        """Notes of killed processes."""

    def keep_prestarted(self, is_kept: bool) -> None:
        self.is_kept = is_kept

    def ends(self) -> list[str]:
        return list(self.killed)

    def forget_end(self, end: str) -> None:
        self.killed.remove(end)

    def starting_prestarted(self) -> list[str]:
        if self.is_away:
            raise ray.exceptions.RpcError("the head is away")
        return self.begun

    def ready_prestarted(self) -> list[str]:
        return list(self.ready)

    def remove_prestarted(self, name: str) -> bool:
        was_ready = name in self.ready
        self.ready = [known for known in self.ready if known != name]
        return was_ready

    def claim_starting(self) -> str | None:
        free = [name for name in self.begun if name not in self.claimed]
        self.claimed += free[:1]
        return free[0] if free else None

    def claimed_prestarted(self) -> list[str]:
        return list(self.claimed)

    def is_ready(self, name: str) -> None:
        """As :meth:`prestarted_ready`."""
        self.begun.remove(name)
        self.claimed = [known for known in self.claimed if known != name]
        self.ready.append(name)

    def prestarted_begun(self, name: str) -> None:
        self.begun.append(name)

    def names(self, prefix: str) -> list[str]:
        return list(self.there)

    def has_become_another(self, name: str) -> bool:
        return name in self.others

    def remove(self, process_name: str, incarnation: str | None = None) -> None:
        self.removed.append(process_name)


@on_virtual_time
async def test_processes_are_prestarted_again_after_an_outage_of_rays_head() -> None:
    service = LocalRpcService()
    book = Book()

    async def run(fn: Callable[..., T], *args: object) -> T:
        return fn(*args)

    async def do_nothing(name: str) -> None:
        """Ray would start or end the actor."""

    keeper = PrestartedKeeper(service, book, run, do_nothing, do_nothing, is_there)
    keeping = service.create_task(keeper.keep(2), "keep")
    await asyncio.sleep(0.5)
    assert len(book.begun) == 2
    book.is_away = True
    await asyncio.sleep(10)
    book.is_away = False
    book.begun.clear()
    await asyncio.sleep(8)
    assert len(book.begun) == 2
    assert not keeping.done()
    await service.close()


async def is_there(name: str) -> bool:
    return name == "Prestarted-1"


class Cluster:
    """A driver, a prestarted process that is ready, and the names of those that were killed."""

    def __init__(self) -> None:
        network = LocalNetwork()
        self.driver = LocalRpcService("driver", network)
        self.host = LocalRpcService("Prestarted-1", network)
        self.prestarted = Prestarted(self.host)
        self.prestarted.start()
        self.hosts = [self.host]
        self.book = Book()
        self.book.ready.append("Prestarted-1")
        self.killed: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def run(self, fn: Callable[..., T], *args: object) -> T:
        """As a thread does: it is done whoever waits, and its answer takes a while."""
        result = fn(*args)
        await self.may_answer.wait()
        return result

    async def kill(self, name: str) -> None:
        self.killed.append(name)

    def keeper(
        self,
        create: Callable[[str], Awaitable[None]] | None = None,
        run: Callable[..., Awaitable[Any]] | None = None,
    ) -> PrestartedKeeper:
        return PrestartedKeeper(
            self.driver, self.book, run or self.run, create or self.kill, self.kill, is_there
        )

    def add(self, name: str) -> None:
        """Add a ready prestarted process."""
        self.hosts.append(LocalRpcService(name, self.host.network))
        Prestarted(self.hosts[-1]).start()
        self.book.ready.append(name)

    def taker(self) -> PrestartedTaker:
        return PrestartedTaker(self.driver, self.book, self.run, self.kill)

    async def close(self) -> None:
        await self.driver.close()
        for host in self.hosts:
            await host.close()


async def cancelled(spawning: asyncio.Future[str | None]) -> None:
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning


@on_virtual_time
async def test_spawn_cancelled_during_the_takeover_ends_the_prestarted_process() -> None:
    cluster = Cluster()
    spawning = asyncio.ensure_future(cluster.taker().spawn(echo_spec("worker")))
    await cluster.prestarted.role
    await cancelled(spawning)
    assert cluster.killed == ["Prestarted-1"]
    await cluster.close()


@on_virtual_time
async def test_spawn_cancelled_while_it_claims_a_prestarted_process_ends_it() -> None:
    cluster = Cluster()
    cluster.may_answer.clear()
    spawning = asyncio.ensure_future(cluster.taker()._take("Prestarted-1"))
    await asyncio.sleep(1)
    assert cluster.book.ready == []
    spawning.cancel()
    await asyncio.sleep(1)
    cluster.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert cluster.killed == ["Prestarted-1"]
    await cluster.close()


@on_virtual_time
async def test_cancelled_spawn_does_not_end_a_process_that_another_spawn_claimed() -> None:
    cluster = Cluster()
    assert cluster.book.remove_prestarted("Prestarted-1")
    cluster.may_answer.clear()
    taking = asyncio.ensure_future(cluster.taker()._take("Prestarted-1"))
    await asyncio.sleep(1)
    taking.cancel()
    await asyncio.sleep(1)
    cluster.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert cluster.killed == []
    await cluster.close()


@on_virtual_time
async def test_only_one_of_two_spawns_gets_the_same_prestarted_process() -> None:
    cluster = Cluster()
    first = asyncio.ensure_future(cluster.taker().spawn(echo_spec("one")))
    second = asyncio.ensure_future(cluster.taker().spawn(echo_spec("two")))
    role = await cluster.prestarted.role
    done, _ = await asyncio.wait({first, second}, timeout=1)
    assert [task.result() for task in done] == [None]
    assert not role.answer.done()
    assert cluster.killed == []
    for task in (first, second):
        task.cancel()
    await asyncio.wait({first, second})
    await cluster.close()


@on_virtual_time
async def test_prestarted_process_that_took_over_a_role_is_not_killed_as_missing() -> None:
    """The process was in the directory at the first look and had its role when it was asked."""
    cluster = Cluster()
    created: list[str] = []

    async def create(name: str) -> None:
        created.append(name)

    async def run(fn: Callable[..., T], *args: object) -> T:
        result = fn(*args)
        if fn == cluster.book.ready_prestarted and cluster.host.is_up:
            cluster.book.remove_prestarted("Prestarted-1")
            await cluster.host.close()
        return result

    keeper = cluster.keeper(create, run)
    await keeper._fill_up(1)
    assert cluster.killed == []
    await cluster.close()


@on_virtual_time
async def test_dead_prestarted_process_is_removed_from_the_process_directory() -> None:
    cluster = Cluster()
    await cluster.host.close()
    keeper = cluster.keeper()
    await keeper._fill_up(0)
    assert cluster.killed == cluster.book.removed == ["Prestarted-1"]
    assert cluster.book.ready == []
    await cluster.close()


@on_virtual_time
async def test_spawn_waits_for_a_prestarted_process_that_is_being_created() -> None:
    cluster = Cluster()
    cluster.book.ready.clear()
    cluster.book.begun.append("Prestarted-1")
    spawning = asyncio.ensure_future(cluster.taker().spawn(echo_spec("worker")))
    await asyncio.sleep(5)
    assert not spawning.done()
    cluster.book.is_ready("Prestarted-1")
    role = await cluster.prestarted.role
    role.answer.set_result(codec.encode((True, "worker/echo")))
    assert await spawning == "worker/echo"
    await cluster.close()


@on_virtual_time
async def test_only_as_many_spawns_wait_as_prestarted_processes_are_being_created() -> None:
    """Many jobs that begin at once must not get their processes one after the other."""
    cluster = Cluster()
    cluster.book.ready.clear()
    cluster.book.begun += ["Prestarted-1", "Prestarted-2"]
    spawning = [
        asyncio.ensure_future(cluster.taker().spawn(echo_spec(name))) for name in ("a", "b", "c")
    ]
    await asyncio.sleep(1)
    assert [task.done() for task in spawning] == [False, False, True]
    assert spawning[-1].result() is None
    cluster.book.begun.remove("Prestarted-2")  # the keeper has ended it: nobody waits for it
    await asyncio.sleep(1)
    assert [task.done() for task in spawning] == [False, True, True]
    await cancelled(spawning[0])
    await cluster.close()


@on_virtual_time
async def test_spawn_waits_at_most_a_minute_for_a_prestarted_process() -> None:
    cluster = Cluster()
    cluster.book.ready.clear()
    cluster.book.begun.append("Prestarted-1")
    started = asyncio.get_running_loop().time()
    assert await cluster.taker().spawn(echo_spec("worker")) is None
    assert 60 <= asyncio.get_running_loop().time() - started < 61
    await cluster.close()


@on_virtual_time
async def test_first_prestarted_processes_are_all_created_at_once() -> None:
    cluster = Cluster()
    cluster.book.ready.clear()
    keeper = cluster.keeper()
    keeping = cluster.driver.create_task(keeper.keep(3), "keep")
    await asyncio.sleep(0.1)
    assert len(cluster.book.begun) == 3
    assert cluster.book.is_kept
    keeping.cancel()
    await keeper.end_all()
    assert not cluster.book.is_kept
    await cluster.close()


@on_virtual_time
async def test_missing_prestarted_processes_are_replaced_one_after_the_other() -> None:
    """Processes of jobs that end soon come back by themselves, so the keeper waits before it starts
    others."""
    cluster = Cluster()
    created: list[str] = []

    async def create(name: str) -> None:
        created.append(name)

    cluster.add("Prestarted-3")
    keeping = cluster.driver.create_task(cluster.keeper(create).keep(2), "keep")
    await asyncio.sleep(0.5)
    cluster.book.remove_prestarted("Prestarted-3")
    await asyncio.sleep(2)
    assert created == []
    cluster.add("Prestarted-2")
    await asyncio.sleep(1)
    cluster.book.remove_prestarted("Prestarted-2")
    cluster.book.remove_prestarted("Prestarted-1")
    await asyncio.sleep(2)
    assert created == [], "there were enough meanwhile"
    await asyncio.sleep(1.5)
    assert len(created) == 1
    await asyncio.sleep(2)
    assert len(created) == 2
    assert cluster.book.claim_starting() == created[0]
    await asyncio.sleep(5)
    assert len(created) == 3, "one is claimed"
    await asyncio.sleep(10)
    assert len(created) == 3
    keeping.cancel()
    await cluster.close()


@on_virtual_time
async def test_notes_of_killed_processes_are_forgotten_when_ray_has_ended_their_actors() -> None:
    cluster = Cluster()
    cluster.book.killed += ["Prestarted-1.7/mark", "Prestarted-2.3/mark"]
    keeping = cluster.driver.create_task(cluster.keeper().keep(1), "keep")
    await asyncio.sleep(59)
    assert len(cluster.book.killed) == 2
    await asyncio.sleep(3)
    assert cluster.book.killed == ["Prestarted-1.7/mark"], "it is still there"
    keeping.cancel()
    await cluster.close()


@pytest.mark.parametrize("has_role", [False, True])
@on_virtual_time
async def test_prestarted_process_that_was_taken_but_got_no_role_is_ended(has_role: bool) -> None:
    """The spawning process has died. A process whose role is being started stays."""
    cluster = Cluster()
    cluster.book.there.append("Prestarted-1")
    assert cluster.book.remove_prestarted("Prestarted-1")
    if has_role:
        prestarted = await cluster.driver.connect("Prestarted-1/prestarted", PrestartedGateway)
        role = asyncio.ensure_future(prestarted.take_over("f", b"", None))
    keeper = cluster.keeper()
    keeping = cluster.driver.create_task(keeper.keep(0), "keep")
    await asyncio.sleep(9)
    assert cluster.killed == []
    await asyncio.sleep(3)
    assert cluster.killed[:1] == ([] if has_role else ["Prestarted-1"])
    keeping.cancel()
    if has_role:
        role.cancel()
    await cluster.close()


@pytest.mark.parametrize("has_role", [False, True])
@on_virtual_time
async def test_silent_prestarted_process_that_was_taken_is_ended_unless_it_has_a_role(
    has_role: bool,
) -> None:
    """A process that has taken over a role could not remove its old name."""
    cluster = Cluster()
    cluster.book.remove_prestarted("Prestarted-1")
    cluster.book.there.append("Prestarted-1")
    cluster.book.others += ["Prestarted-1"] * has_role
    await cluster.host.close()
    keeper = cluster.keeper()
    keeping = cluster.driver.create_task(keeper.keep(0), "keep")
    await asyncio.sleep(50)
    assert cluster.book.removed == []
    await asyncio.sleep(20)
    assert cluster.book.removed[:1] == ["Prestarted-1"]
    assert cluster.killed[:1] == ([] if has_role else ["Prestarted-1"])
    keeping.cancel()
    await cluster.close()


@on_virtual_time
async def test_prestarted_processes_beyond_the_wanted_number_are_ended_after_a_while() -> None:
    """The keeper keeps as many additional processes as were missing in the last minutes."""
    cluster = Cluster()
    cluster.add("Prestarted-5")
    keeping = cluster.driver.create_task(cluster.keeper().keep(2), "keep")
    await asyncio.sleep(0.5)
    cluster.book.remove_prestarted("Prestarted-5")
    await asyncio.sleep(1)
    for name in ("Prestarted-2", "Prestarted-3", "Prestarted-4"):
        cluster.add(name)
    await asyncio.sleep(9)
    assert len(cluster.book.ready) == 4
    await asyncio.sleep(4)
    assert cluster.killed == ["Prestarted-4"]
    await asyncio.sleep(90)
    assert cluster.killed == ["Prestarted-4"], "one was missing"
    await asyncio.sleep(40)
    assert cluster.killed == ["Prestarted-4", "Prestarted-3"]
    keeping.cancel()
    await cluster.close()
