"""A streaming job on Ray goes on, whatever of it is killed: from its last checkpoint, or without a
break."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import expected, first_numbers, newest, settings, tallies
from tests.system.observer import kill, live_actors

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "exactly-once"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "4 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "100 ms",
}
COUNT, PER_SECOND = 36_000, 4_000.0


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def of_kind(kind: str) -> list[int]:
    victims = [a for a in live_actors() if (a.kind, a.namespace) == (kind, NAMESPACE)]
    assert victims, kind
    return [victim.pid for victim in victims]


@pytest.mark.parametrize("kind", ["TaskProcess", "TaskExecutor", "StreamCoordinator", "JobMaster"])
def test_no_record_is_lost_doubled_or_out_of_order_after_a_kill(
    kind: str, streams: ClusterClient, tmp_path: Path
) -> None:
    """E2E-04."""
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    env.configure(Configuration.from_dict(settings(checkpoints, "300 ms")))
    results = tallies(env.set_parallelism(2), COUNT, PER_SECOND, witness).execute_and_collect()
    # the first one has its pointer when the second is stored
    wait_until(lambda: newest(checkpoints) > 1, 300, "two checkpoints")
    for pid in of_kind(kind):
        kill(pid)
    assert set(results) == expected(COUNT)
    begun = first_numbers(witness)
    if kind in ("JobMaster", "StreamCoordinator"):  # the next one takes over
        assert [len(of_subtask) for of_subtask in begun] == [1, 1]
    else:
        assert any(len(of_subtask) > 1 for of_subtask in begun), "it did not notice"
    assert all(n > of_subtask[0] for of_subtask in begun for n in of_subtask[1:])


def test_stopped_task_processes_are_replaced_and_each_record_counts_once(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """E2E-04: the processes are stopped by SIGSTOP and not resumed."""
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    env.configure(Configuration.from_dict(settings(checkpoints, "300 ms")))
    results = tallies(env.set_parallelism(2), 48_000, PER_SECOND, witness).execute_and_collect()
    wait_until(lambda: newest(checkpoints) > 1, 300, "two checkpoints")
    stopped = of_kind("TaskProcess")
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        assert set(results) == expected(48_000)
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    begun = first_numbers(witness)
    assert any(len(of_subtask) > 1 for of_subtask in begun), "it did not notice"
    assert not any(psutil.pid_exists(pid) for pid in stopped)
