"""Task processes that live and do not answer: those that compute are waited for."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flinkray.actors.gateways.task_process import TaskProcessGateway, TaskProcessHost
from flinkray.actors.task_executor.task_process_heartbeats import TaskProcessHeartbeats
from flinkray.rpc import HeartbeatSettings, LocalNetwork, LocalRpcService, RpcEndpoint
from flinkray.testing import TestingGateway
from flinkray.testing.waiting import eventually

SETTINGS = HeartbeatSettings(0.25, 1.0)
COMPUTES = "print('ready', flush=True)\nwhile True: pass"
SLEEPS = "import time; print('ready', flush=True); time.sleep(3600)"


@contextmanager
def process(code: str) -> Iterator[int]:
    """Its id."""
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.stdout.close()
        yield running.pid
    finally:
        running.kill()
        running.wait()


class Monitoring:
    """Of a task process that answers once."""

    def __init__(self) -> None:
        network = LocalNetwork()
        self.endpoint = RpcEndpoint(LocalRpcService("executor", network), "endpoint")
        self.endpoint.start()
        self.heartbeats = TaskProcessHeartbeats(self.endpoint, SETTINGS)
        self.silences: list[str] = []
        self.never = asyncio.get_running_loop().create_future()
        answers = iter([None])
        self.process = TestingGateway(TaskProcessGateway)
        self.process.on(TaskProcessGateway.request_heartbeat).calling(
            lambda: next(answers, self.never)
        )
        self._there = self.process.create_endpoint(LocalRpcService("process", network), "it")
        self._there.start()

    async def begin(self, pid: int | None) -> Monitoring:
        gateway = await self.endpoint.connect(self._there.address, TaskProcessGateway)
        host = None if pid is None else TaskProcessHost(pid, 0, 0)
        self.heartbeats.monitor("TaskProcess-1", gateway, host, self.silences.append)
        return self

    @property
    def asked(self) -> int:
        return len(self.process.calls_of(TaskProcessGateway.request_heartbeat))


@pytest.mark.parametrize("is_pretended", [True, False])
async def test_silent_idle_process_is_reported(is_pretended: bool) -> None:
    with process(SLEEPS) as pid:
        monitoring = await Monitoring().begin(None if is_pretended else pid)
        await eventually(lambda: monitoring.silences, 150, "the silence")
    (silence,) = monitoring.silences
    assert re.match(r"no heartbeat from it for [1-9]\d* s", silence)  # more on a busy machine
    assert ("of a processor" in silence) is not is_pretended


async def test_silent_process_that_computes_is_reported_only_once_it_stops_computing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with process(COMPUTES) as pid:
        monitoring = await Monitoring().begin(pid)
        computes = " s, but it computes ("
        await eventually(lambda: caplog.text.count(computes) == 2, 150, "two time-outs")
        assert monitoring.silences == []
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: monitoring.silences, 150, "the silence")


async def test_unmonitored_process_and_process_that_answers_are_not_reported_as_silent() -> None:
    monitoring = await Monitoring().begin(None)
    monitoring.process.on(TaskProcessGateway.request_heartbeat).returning(None)
    await eventually(lambda: monitoring.asked >= 10, 300, "heartbeats for two time-outs")
    assert monitoring.silences == []
    monitoring.process.on(TaskProcessGateway.request_heartbeat).calling(lambda: monitoring.never)
    monitoring.heartbeats.unmonitor("TaskProcess-1")
    other = await Monitoring().begin(None)
    await eventually(lambda: other.silences, 150, "a silence that began later")
    assert monitoring.silences == []
