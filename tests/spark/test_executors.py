"""Executors of Spark: how they are listed, started and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flinkray.core.errors import FlinkRayError
from flinkray.spark.environment import JavaInstallation, SparkEnvironment
from flinkray.spark.executors import (
    ExecutorDesk,
    StageEndedError,
    ending_with_parent,
    executor_command,
    executor_variables,
    run_executor,
)
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot
from flinkray.spark.progress import join_executors, lost_for_good
from flinkray.spark.ray_cluster import ActorInfo, bundle_index
from flinkray.testing.waiting import eventually


def actor(
    number: int, bundle: int, pid: int = 100, is_alive: bool = True, is_dead: bool = False
) -> ActorInfo:
    return ActorInfo(
        name=f"raydp-executor-{number}",
        actor_id=f"actor{number}",
        node_id="node",
        pid=pid + number,
        placement_group="group",
        bundle_index=bundle,
        is_alive=is_alive,
        is_dead=is_dead,
    )


def by_name(*actors: ActorInfo) -> dict[str, ActorInfo]:
    return {actor.name: actor for actor in actors}


def test_executors_are_listed_in_the_order_of_their_bundles() -> None:
    found = join_executors(["0", "1"], {}, by_name(actor(0, 1), actor(1, 0)))

    assert [(e.executor_id, e.bundle_index, e.subtask_index, e.pid) for e in found] == [
        ("1", 0, 0, 101),
        ("0", 1, 1, 100),
    ]


def test_executor_restarted_several_times_is_matched_with_its_first_actor() -> None:
    found = join_executors(["0", "5"], {"3": "1", "5": "3"}, by_name(actor(0, 0), actor(1, 1, 200)))

    assert [(e.executor_id, e.actor_id, e.pid) for e in found] == [
        ("0", "actor0", 100),
        ("5", "actor1", 201),
    ]


def test_executor_whose_ray_actor_is_not_alive_is_not_listed() -> None:
    found = join_executors(["0", "1"], {}, by_name(actor(0, 0), actor(1, 1, is_alive=False)))

    assert [e.executor_id for e in found] == ["0"]


def test_bundle_has_lost_its_executor_when_all_its_actors_are_dead_for_good() -> None:
    alive, starting = actor(0, 0), actor(1, 1, is_alive=False)
    dead = actor(2, 1, is_alive=False, is_dead=True)

    assert lost_for_good([alive, starting]) is None
    assert lost_for_good([alive, starting, dead]) is None, "another one comes in its place"
    assert lost_for_good([alive, dead]) == dead
    assert lost_for_good([]) is None


@pytest.mark.parametrize(
    ("resources", "bundle"),
    [
        (["CPU_group_0ab3", "CPU_group_12_0ab3"], 12),
        (["memory_group_0_0ab3"], 0),
        (["CPU", "memory"], -1),
        (["CPU_group_0ab3"], -1),
        ([], -1),
    ],
)
def test_bundle_index_is_read_from_the_resource_names_of_an_actor(
    resources: list[str], bundle: int
) -> None:
    assert bundle_index(resources) == bundle


def slot(index: int) -> ExecutorSlot:
    return ExecutorSlot(index, index, f"actor-{index}", "node", "127.0.0.1")


def launch_of(executor_id: str, slot: ExecutorSlot) -> ExecutorLaunch:
    return ExecutorLaunch(executor_id, "stage", None, (), (), (str(slot.subtask_index),), {})


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def desk(failures: list[str]) -> ExecutorDesk:
    desk = ExecutorDesk(failures.append)
    desk.open(launch_of)
    return desk


def start(desk: ExecutorDesk, index: int, pid: int) -> str:
    executor_id = desk.launch(slot(index)).executor_id
    desk.started(executor_id, pid)
    return executor_id


def test_registered_executors_are_listed_with_slot_and_pid_in_bundle_order(
    desk: ExecutorDesk,
) -> None:
    second, first = start(desk, 1, 101), start(desk, 0, 100)

    found = desk.executors([second, first])

    assert [(e.subtask_index, e.bundle_index, e.executor_id, e.pid) for e in found] == [
        (0, 0, first, 100),
        (1, 1, second, 101),
    ]
    assert [e.actor_id for e in found] == ["actor-0", "actor-1"]


def test_unregistered_executor_and_executor_without_a_process_are_not_listed(
    desk: ExecutorDesk,
) -> None:
    start(desk, 0, 100)
    unknown = desk.launch(slot(1)).executor_id

    assert desk.executors([unknown, "driver", "99"]) == ()


def test_executor_that_has_ended_is_not_listed_although_spark_did_not_notice_its_end(
    desk: ExecutorDesk,
) -> None:
    lost, other = start(desk, 0, 100), start(desk, 1, 101)
    desk.executors([lost, other])

    assert not desk.ended(lost, -9, "killed by SIGKILL"), "the JobMaster has another task deployed"

    assert [e.executor_id for e in desk.executors([lost, other])] == [other]


def test_each_start_of_an_executor_gets_a_new_id(desk: ExecutorDesk, failures: list[str]) -> None:
    ids = []
    for pid in range(5):
        ids.append(start(desk, 0, pid))
        desk.executors([ids[-1]])
        desk.ended(ids[-1], 1, "exit status 1")

    assert len(set(ids)) == 5
    assert failures == []


def test_spark_executor_that_ends_twice_before_it_registers_fails_its_stage(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    assert desk.ended(start(desk, 0, 100), 1, "exit status 1")
    assert failures == []
    assert not desk.ended(start(desk, 0, 101), 1, "exit status 1; log: x")

    assert failures == [
        "the executor of slot 0 ended before it registered, twice: exit status 1; log: x"
    ]


def test_early_executor_ends_are_counted_per_slot_until_an_executor_registers(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    assert desk.ended(start(desk, 0, 100), 1, "")
    assert desk.ended(start(desk, 1, 101), 1, "")
    registered = start(desk, 0, 102)
    desk.executors([registered])
    desk.ended(registered, -9, "")

    assert desk.ended(start(desk, 0, 103), 1, "")
    assert failures == []


def test_executor_that_ends_with_status_0_does_not_count_as_lost(
    desk: ExecutorDesk, failures: list[str]
) -> None:
    executor = start(desk, 0, 100)
    desk.executors([executor])

    assert not desk.ended(executor, 0, "exit status 0")

    assert len(desk.executors([executor])) == 1
    assert failures == []


def test_launch_of_an_executor_is_refused_when_a_stage_ended_before_its_session() -> None:
    desk = ExecutorDesk(lambda why: None)
    desk.close()
    desk.open(launch_of)

    with pytest.raises(StageEndedError):
        desk.launch(slot(0))


def test_launch_of_an_executor_is_answered_when_a_stage_with_a_session_has_ended(
    desk: ExecutorDesk,
) -> None:
    desk.close()

    assert desk.launch(slot(0)).arguments == ("0",)


SLOT = ExecutorSlot(0, 0, "actor", "node", "127.0.0.1")
ENVIRONMENT = SparkEnvironment(
    JavaInstallation(Path("/java"), "17.0.9", "PATH"),
    Path("/spark"),
    (Path("/spark/jars/core.jar"),),
    raydp=None,
)


def launch(executor_id: str = "0", *arguments: str) -> ExecutorLaunch:
    return ExecutorLaunch(
        executor_id, "stage", None, ("-Xmx64m",), ("/mine.jar",), arguments, {"MINE": "1"}
    )


class Driver:
    """Has executors started that end at once."""

    def __init__(self, starts: int) -> None:
        self._starts = starts
        self.pids: list[int] = []
        self.ends: list[tuple[str, int, str]] = []

    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        return launch(str(len(self.pids)), "no.such.Class")

    async def executor_started(self, executor_id: str, pid: int) -> None:
        self.pids.append(pid)

    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        self.ends.append((executor_id, exit_code, how))
        return len(self.ends) < self._starts


async def test_end_of_an_executor_is_reported_and_a_wanted_executor_is_started_again(
    tmp_path: Path,
) -> None:
    driver = Driver(starts=2)

    await run_executor(driver, SLOT, str(tmp_path), str(tmp_path / "logs"))

    assert [(executor_id, code) for executor_id, code, _ in driver.ends] == [("0", 1), ("1", 1)]
    assert "no.such.Class" in driver.ends[0][2]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        "flinkray-stage-executor-0.log",
        "flinkray-stage-executor-1.log",
    }


class LostDriver(Driver):
    """Is gone when it is told of a start."""

    async def executor_started(self, executor_id: str, pid: int) -> None:
        await super().executor_started(executor_id, pid)
        raise FlinkRayError("gone")


async def test_executor_is_killed_when_its_driver_is_gone(tmp_path: Path) -> None:
    driver = LostDriver(starts=1)

    with pytest.raises(FlinkRayError):
        await run_executor(driver, SLOT, str(tmp_path), str(tmp_path / "logs"))

    (pid,) = driver.pids
    await eventually(lambda: not psutil.pid_exists(pid), 50, "the end of the executor")


def test_class_path_of_an_executor_has_the_launch_classes_after_those_of_spark() -> None:
    command = " ".join(executor_command(launch("7", "Main", "--executor-id", "7"), ENVIRONMENT))

    assert command.endswith(
        f"/java/bin/java {ENVIRONMENT.class_data_option} -Xmx64m "
        "-cp /spark/jars/core.jar:/mine.jar Main --executor-id 7"
    )


def test_executor_keeps_its_files_in_its_own_folder(tmp_path: Path) -> None:
    variables = executor_variables(launch(), ENVIRONMENT, tmp_path)

    assert variables["SPARK_EXECUTOR_DIRS"] == str(tmp_path)
    assert (variables["SPARK_HOME"], variables["JAVA_HOME"]) == ("/spark", "/java")
    assert variables["MINE"] == "1"
    assert variables["PATH"] == os.environ["PATH"]


_PARENT = """
import subprocess, sys
from flinkray.spark.executors import ending_with_parent
child = subprocess.Popen(ending_with_parent(("/bin/sleep", "1000")))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_executor_ends_when_its_parent_process_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()

    child.wait(timeout=150)


def test_process_bound_to_its_parent_does_not_start_when_the_parent_is_gone() -> None:
    command = list(ending_with_parent((sys.executable, "-c", "print('started')")))
    command[command.index(str(os.getpid()))] = "1"  # a parent that was there a moment ago

    assert subprocess.run(command, capture_output=True, check=False).stdout == b""
