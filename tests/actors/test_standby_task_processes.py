"""Standby task processes by themselves; taking a dead one's place: test_python_jobs.py."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways.task_process import TaskProcessGateway
from flinkray.actors.task_executor.standby_task_processes import RESTART_PAUSE, StandbyTaskProcesses
from flinkray.core.ids import ResourceID
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint
from flinkray.testing import TestingGateway
from flinkray.testing.virtual_time import on_virtual_time


class Processes:
    """Starts them, or not."""

    def __init__(self, number: int) -> None:
        self.network = LocalNetwork()
        self.endpoint = RpcEndpoint(LocalRpcService("executor", self.network), "endpoint")
        self.endpoint.start()
        self.started: list[str] = []
        self.failures = 0
        resource_id = ResourceID("te")
        self.standbys = StandbyTaskProcesses(self.endpoint, resource_id, number, self.start)

    async def start(self, name: str) -> TaskProcessGateway:
        self.started.append(name)
        if self.failures:
            self.failures -= 1
            raise OSError("no memory")
        service = LocalRpcService(name, self.network)
        process = TestingGateway(TaskProcessGateway).lenient().create_endpoint(service, "process")
        process.start()
        return await self.endpoint.rpc_service.connect(process.address, TaskProcessGateway)


async def settled() -> None:
    await asyncio.sleep(RESTART_PAUSE / 2)


def name(number: int) -> str:
    return f"TaskProcess-standby.{number}-te"


@on_virtual_time
async def test_none_is_started_unless_some_are_wanted() -> None:
    processes = Processes(0)
    processes.standbys.fill()
    await settled()
    assert (processes.started, processes.standbys.take()) == ([], None)


@on_virtual_time
async def test_each_is_taken_once_and_those_that_are_missing_are_started() -> None:
    processes = Processes(2)
    processes.standbys.fill()
    assert processes.standbys.take() is None, "none is ready yet"
    processes.standbys.fill()
    await settled()
    assert processes.started == [name(1), name(2)]
    taken = [processes.standbys.take() for _ in range(3)]
    assert [one and one[0] for one in taken] == [name(1), name(2), None]
    processes.standbys.fill()
    await settled()
    assert processes.started[2:] == [name(3), name(4)]


@on_virtual_time
async def test_one_that_cannot_be_started_is_followed_by_another_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processes = Processes(1)
    processes.failures = 1
    processes.standbys.fill()
    await settled()
    processes.standbys.fill()
    assert processes.started == [name(1)]
    assert f"{name(1)} could not be started: OSError: no memory" in caplog.text
    await asyncio.sleep(RESTART_PAUSE)
    assert processes.started == [name(1), name(2)]
    taken = processes.standbys.take()
    assert taken is not None
    assert taken[0] == name(2)
