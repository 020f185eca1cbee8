"""A source task asks its coordinator whether to wait, as often as it takes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from flinkray.actors.gateways.stream_coordinator import Holders, StreamCoordinatorGateway
from flinkray.actors.task_process.coordinator_clients import HoldClient
from flinkray.core.errors import RpcTimeoutError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import LocalRpcService
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time

MASTER = JobMasterId(b"m" * 16)
HOLDERS = Holders((), ("planes",))
FAILS = RpcTimeoutError("await_hold")
Asked = list[tuple[float, bool | None]]
"""At which times, and with what was known."""


async def run(*script: bool | Exception) -> tuple[Asked, list[bool], HoldClient]:
    """The coordinator answers so, and says nothing more.  With what the task was told."""
    service = LocalRpcService()
    loop = asyncio.get_running_loop()
    asked: Asked = []
    told: list[bool] = []
    has_said_all = asyncio.Event()

    async def await_hold(owner: JobMasterId, holders: Holders, known: bool | None) -> bool:
        assert (owner, holders) == (MASTER, HOLDERS)
        asked.append((loop.time(), known))
        if len(asked) > len(script):
            has_said_all.set()
            await loop.create_future()
        answer = script[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    coordinator = TestingGateway(StreamCoordinatorGateway)
    coordinator.on(StreamCoordinatorGateway.await_hold).calling(await_hold)
    client = HoldClient(service, coordinator.start(service, "coordinator").address, MASTER, HOLDERS)

    def post(done_by_the_task: Callable[[], None]) -> None:
        done_by_the_task()
        told.append(client.hold.is_held)

    try:
        assert client.hold.is_held, "until it is known"
        client.attach(post)
        await has_said_all.wait()
    finally:
        client.close()
        await service.close()
    return asked, told, client


@on_virtual_time
async def test_source_pauses_and_resumes_by_each_answer_of_its_coordinator() -> None:
    asked, told, client = await run(False, True, False)
    assert [known for _, known in asked] == [None, False, True, False]
    assert told == [False, True, False]
    assert not client.hold.is_held


@on_virtual_time
async def test_source_stays_paused_while_its_coordinator_does_not_answer() -> None:
    asked, told, client = await run(FAILS, True, FAILS, FAILS)
    assert [known for _, known in asked] == [None, None, True, True, True]
    assert told == [True]
    assert client.hold.is_held


@on_virtual_time
async def test_source_repeats_failed_requests_whether_it_is_paused_after_doubling_waits() -> None:
    asked, _, _ = await run(*[FAILS] * 8, False, FAILS, FAILS)
    times = [time for time, _ in asked]
    pauses = [later - time for time, later in itertools.pairwise(times)]
    expected = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 0.0, 0.02, 0.04]
    assert len(pauses) == len(expected)
    for pause, least in zip(pauses, expected, strict=True):
        assert least - 0.001 < pause < 1.4 * least + 0.01, pauses  # all pauses are jittered


@on_virtual_time
async def test_pause_client_closed_before_its_start_asks_no_coordinator() -> None:
    service = LocalRpcService()
    coordinator = TestingGateway(StreamCoordinatorGateway)
    address = coordinator.start(service, "coordinator").address
    client = HoldClient(service, address, MASTER, HOLDERS)
    client.close()
    client.attach(lambda _: None)
    await asyncio.sleep(1)
    assert coordinator.calls == []
    await service.close()
