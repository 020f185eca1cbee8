"""Task processes that wait for jobs, by themselves; with jobs: test_python_jobs.py."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from flinkray.actors.gateways.task_process import TaskProcessGateway, TaskProcessHost
from flinkray.actors.task_executor.spare_task_processes import (
    DEMAND_TIME,
    REFILL_PAUSE,
    RESTART_PAUSE,
    START_TIMEOUT,
    ProcessRequest,
    SpareTaskProcesses,
    StartedProcess,
)
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
        self.ahead: list[bool] = []
        """Whether a job waited for each of them."""
        self.ready = 0
        self.most_at_once = 0
        self.duration = 0.0
        """Seconds of a start."""
        self.given: list[str] = []
        self.refusals: list[str] = []
        self.failures = 0
        self.hang: set[int] = set()
        """Which starts never end, counted from 1."""
        self.hosts: dict[int, TaskProcessHost] = {}
        """Operating-system processes of the started task processes, by the number of the start."""
        self.ended: list[str] = []
        self.spares = SpareTaskProcesses(
            self.endpoint,
            ResourceID("te"),
            self.start,
            lambda process: self.ended.append(process.name),
        )
        self.spares.keep(number)

    async def start(self, name: str, is_ahead: bool) -> StartedProcess:
        self.started.append(name)
        self.ahead.append(is_ahead)
        self.most_at_once = max(self.most_at_once, len(self.started) - self.ready)
        number = len(self.started)
        if number in self.hang:
            await asyncio.get_running_loop().create_future()
        if self.failures:
            self.failures -= 1
            raise OSError("no memory")
        await asyncio.sleep(self.duration)
        self.ready += 1
        service = LocalRpcService(name, self.network)
        process = TestingGateway(TaskProcessGateway).lenient().create_endpoint(service, "process")
        process.start()
        gateway = await self.endpoint.rpc_service.connect(process.address, TaskProcessGateway)
        return StartedProcess(name, gateway, self.hosts.get(number))

    def request(self) -> ProcessRequest | None:
        return self.spares.request(
            lambda process: self.given.append(process.name), self.refusals.append
        )


async def settled() -> None:
    await asyncio.sleep(REFILL_PAUSE / 4)


def name(number: int) -> str:
    return f"TaskProcess-{number}-te"


@on_virtual_time
async def test_spare_task_process_that_is_not_kept_starts_only_on_request() -> None:
    processes = Processes(0)
    await settled()
    assert processes.started == []
    assert processes.request() is not None
    await settled()
    assert processes.given == processes.started == [name(1)]


@on_virtual_time
async def test_waiting_task_process_is_given_to_one_request_and_replaced_after_a_pause() -> None:
    processes = Processes(2)
    await settled()
    assert processes.started == [name(1), name(2)]
    assert processes.request() is None
    assert processes.request() is None
    assert processes.given == [name(1), name(2)], "at once"
    await settled()
    assert processes.started == [name(1), name(2)], "a job is being deployed"
    await asyncio.sleep(REFILL_PAUSE)
    assert processes.started == [name(number) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize("meanwhile", [0, 1])
@on_virtual_time
async def test_pause_before_a_task_process_is_replaced_ends_with_the_job(meanwhile: int) -> None:
    """Otherwise a job that follows another job within a second would wait for its process."""
    processes = Processes(1)
    await settled()
    processes.request()
    processes.spares.keep(meanwhile)
    await settled()
    assert processes.started == [name(1)], "a job is being deployed"
    processes.spares.keep(1)
    processes.spares.end_pause()
    await settled()
    assert processes.started == [name(1), name(2)], "it has ended"
    await asyncio.sleep(REFILL_PAUSE)
    processes.spares.end_pause()
    await settled()
    assert processes.started == [name(1), name(2)]


@pytest.fixture
def sleeping() -> Iterator[dict[int, TaskProcessHost]]:
    """Three processes of this machine, by number; the first and the third are stopped."""
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    for stopped in processes[::2]:
        stopped.send_signal(signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
    yield {n: TaskProcessHost(process.pid, 0, 0) for n, process in enumerate(processes, 1)}
    for process in processes:
        process.kill()
        process.wait()


@on_virtual_time
async def test_waiting_task_process_that_was_suspended_is_ended_and_another_one_is_given(
    sleeping: dict[int, TaskProcessHost],
) -> None:
    """Otherwise a job would wait for an answer until its tasks are given up, and would be
    restarted."""
    processes = Processes(3)
    processes.hosts = sleeping
    await settled()
    assert processes.request() is None
    assert processes.given == [name(2)]
    assert processes.request() is not None, "no other one answers"
    assert processes.ended == [name(1), name(3)]
    await settled()
    assert processes.given == [name(2), name(4)]


@on_virtual_time
async def test_request_without_a_spare_task_process_starts_a_process_without_a_pause() -> None:
    processes = Processes(1)
    await settled()
    processes.request()
    assert processes.request() is not None
    await settled()
    assert processes.given == processes.started == [name(1), name(2)]
    await asyncio.sleep(REFILL_PAUSE)
    assert processes.started == [name(1), name(2), name(3)]


@on_virtual_time
async def test_task_process_started_for_a_withdrawn_request_serves_the_next_request() -> None:
    processes = Processes(0)
    request = processes.request()
    assert request is not None
    processes.spares.withdraw(request)
    await settled()
    assert processes.given == []
    assert processes.request() is None
    assert processes.given == [name(1)]


@on_virtual_time
async def test_failed_process_start_is_repeated_after_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    processes = Processes(1)
    processes.failures = 1
    await settled()
    assert processes.started == [name(1)]
    assert f"{name(1)} could not be started: OSError: no memory" in caplog.text
    await asyncio.sleep(RESTART_PAUSE)
    assert processes.started == [name(1), name(2)]
    processes.request()
    assert (processes.given, processes.refusals) == ([name(2)], [])


@on_virtual_time
async def test_failed_start_of_a_task_process_fails_its_request_and_delays_the_next_start() -> None:
    processes = Processes(0)
    processes.failures = 1
    processes.request()
    await settled()
    (refusal,) = processes.refusals
    assert "no memory" in refusal
    processes.request()
    await settled()
    assert processes.started == [name(1)]
    await asyncio.sleep(RESTART_PAUSE)
    assert processes.given == [name(2)]


@on_virtual_time
async def test_waiting_process_that_dies_is_replaced() -> None:
    processes = Processes(1)
    await settled()
    processes.network.services[name(1)].abort()
    await settled()
    assert processes.started == [name(1), name(2)]
    processes.request()
    assert processes.given == [name(2)]


@on_virtual_time
async def test_request_gets_whichever_task_process_has_started_first() -> None:
    """Tasks must not stay DEPLOYING because the start of their own process hangs while another
    process waits."""
    processes = Processes(0)
    processes.hang = {1}
    processes.request()
    processes.spares.keep(1)
    await settled()
    assert processes.started == [name(1), name(2)]
    assert processes.given == [name(2)]


@on_virtual_time
async def test_task_process_start_that_hangs_is_given_up_and_fails_its_request() -> None:
    """Otherwise tasks would stay DEPLOYING for ever."""
    processes = Processes(0)
    processes.hang = {1}
    processes.request()
    await asyncio.sleep(START_TIMEOUT - 1)
    assert (processes.given, processes.refusals) == ([], [])
    await asyncio.sleep(2)
    assert processes.refusals == [f"{name(1)} could not be started within 60 s"]
    processes.request()
    await asyncio.sleep(RESTART_PAUSE)
    assert processes.given == [name(2)]


@on_virtual_time
async def test_starts_ahead_that_hang_fail_no_request() -> None:
    processes = Processes(1)
    processes.hang = {1, 2}
    await settled()
    processes.request()
    await asyncio.sleep(START_TIMEOUT + RESTART_PAUSE + 1)
    assert processes.refusals == []
    assert processes.given == [name(3)]
    assert processes.ahead[:3] == [True, True, False]


@on_virtual_time
async def test_as_many_task_processes_wait_as_jobs_have_taken_in_the_last_minutes() -> None:
    processes = Processes(1)
    processes.spares.keep(1, most=3)
    for number in range(1, 6):
        await asyncio.sleep(2 * REFILL_PAUSE)
        waiting = len(processes.started) - len(processes.given)
        assert waiting == min(max(number - 1, 1), 3)
        processes.request()
    await asyncio.sleep(DEMAND_TIME)
    started = len(processes.started)
    for _ in range(4):
        processes.spares.request(lambda process: None, processes.refusals.append)
    assert started == 8
    await asyncio.sleep(DEMAND_TIME + 2 * REFILL_PAUSE)
    processes.spares.keep(1, most=3)
    before = len(processes.started)
    processes.request()
    await asyncio.sleep(2 * REFILL_PAUSE)
    assert len(processes.started) == before, "three wait, and one is enough"


@on_virtual_time
async def test_processes_are_started_ahead_one_by_one_and_at_once_for_jobs_that_wait() -> None:
    processes = Processes(0)
    processes.duration = 1.0
    processes.spares.keep(3)
    await asyncio.sleep(5)
    assert processes.ahead == [True] * 3
    assert processes.most_at_once == 1
    for _ in range(5):
        processes.request()
    assert len(processes.given) == 3
    await asyncio.sleep(0.5)
    assert processes.ahead == [True] * 3 + [False] * 2
    assert processes.most_at_once == 2
