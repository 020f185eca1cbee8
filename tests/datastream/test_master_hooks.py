"""Master hooks of sources: in one process, and on a cluster whose processes die."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from flinkray.client import JobHandle
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    Configuration,
    DataStream,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DiscardingSink, MasterTriggerRestoreHook
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.hooked import (
    Diary,
    HookedNumbers,
    diary,
    restored_from,
    wait_for_line,
)
from tests.datastream.tallies import newest, settings

LONG = 1_000_000
SAVEPOINT = "execution.state-recovery.path"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which hooks write their diaries."""
    (tmp_path / "hooks").mkdir()
    return tmp_path / "hooks"


def environment(
    cluster: ThreadedCluster, checkpoints: Path, options: Mapping[str, str] | None = None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict({**settings(checkpoints), **(options or {})}))
    return env.set_parallelism(1)


def read(env: StreamExecutionEnvironment, name: str, source: HookedNumbers) -> DataStream[int]:
    return env.from_source(source, WatermarkStrategy.no_watermarks(), name, Types.LONG()).uid(name)


def add(env: StreamExecutionEnvironment, name: str, source: HookedNumbers) -> None:
    read(env, name, source).sink_to(DiscardingSink())


def execute(env: StreamExecutionEnvironment, cluster: ThreadedCluster) -> JobHandle:
    return cluster.client.job(env.execute_async("hooked").get_job_id())


def end(job: JobHandle) -> None:
    job.cancel()
    job.wait(timeout=300)


def run(
    cluster: ThreadedCluster,
    folder: Path,
    checkpoints: Path,
    *names: str,
    options: Mapping[str, str] | None = None,
) -> JobHandle:
    """A job with a source for each name, which is its hook's id, too."""
    env = environment(cluster, checkpoints, options)
    for name in names:
        add(env, name, HookedNumbers(name, folder, LONG, 100.0, has_state=name != "stateless"))
    return execute(env, cluster)


def savepoint_of(cluster: ThreadedCluster, folder: Path, tmp_path: Path, *names: str) -> str:
    """The savepoint with which such a job was stopped."""
    job = run(cluster, folder, tmp_path / "first", *names)
    return job.stop_with_savepoint(str(tmp_path / "savepoints"), timeout=300)


def wait_for_another(directory: Path) -> None:
    before = newest(directory)
    wait_until(lambda: newest(directory) > before, 150, "a checkpoint")


class NamelessDiary(Diary):
    def get_identifier(self) -> str:
        return ""


class Nameless(HookedNumbers):
    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[dict[str, int]]:
        return NamelessDiary("a", self.folder, has_state=False)


def test_hooks_are_called_once_per_checkpoint_and_restored_once_after_a_failure(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-30, EX-16: the coordinator dies, and its successor has new hooks."""
    checkpoints = tmp_path / "checkpoints"
    job = run(own_cluster, folder, checkpoints, "a", "stateless")
    wait_for_another(checkpoints)
    wait_for_another(checkpoints)
    own_cluster.crash("StreamCoordinator")
    wait_for_line(folder, "stateless", "restore")
    wait_for_another(checkpoints)
    end(job)
    for name in ("a", "stateless"):
        triggers = diary(folder, name, "trigger")
        assert len(set(triggers)) == len(triggers)
        assert len(diary(folder, name, "create")) == 2
        assert wait_for_line(folder, name, "close") == ["close"]
        assert diary(folder, name, "reset") == ["reset"], "at the first start"
    assert restored_from(folder, "a") >= 2
    (line,) = diary(folder, "stateless", "restore")
    assert line.endswith(" None")


def test_hooks_of_all_sources_are_restored_when_a_task_of_one_pipeline_fails(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-30, EX-16: in Flink, too, a hook learns about every restart of tasks."""
    checkpoints = tmp_path / "checkpoints"
    env = environment(own_cluster, checkpoints)
    add(env, "a", HookedNumbers("a", folder, LONG, 100.0))
    fault = folder / "fault"

    def fail_once(number: int) -> int:
        if fault.exists():
            fault.unlink()
            raise ValueError("a fault")
        return number

    numbers = read(env, "b", HookedNumbers("b", folder, LONG, 100.0))
    numbers.map(fail_once).sink_to(DiscardingSink())
    job = execute(env, own_cluster)
    wait_for_another(checkpoints)
    fault.touch()
    assert restored_from(folder, "a") == restored_from(folder, "b")
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "restore")) == len(diary(folder, "a", "create")) == 1
    end(job)


def test_master_hook_is_not_restored_when_only_the_job_master_dies(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    job = run(own_cluster, folder, checkpoints, "a")
    wait_for_another(checkpoints)
    own_cluster.crash("JobMaster")
    wait_for_another(checkpoints)
    wait_for_another(checkpoints)
    end(job)
    assert len(diary(folder, "a", "create")) == len(diary(folder, "a", "reset")) == 1
    assert diary(folder, "a", "restore") == []


def test_hooks_are_restored_if_job_master_and_coordinator_die_together(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    job = run(own_cluster, folder, checkpoints, "a")
    wait_for_another(checkpoints)
    wait_for_another(checkpoints)
    own_cluster.crash_together("JobMaster", "StreamCoordinator")
    restored_from(folder, "a")
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "restore")) == 1
    end(job)


@pytest.mark.parametrize(
    "dead", [("StreamCoordinator",), ("JobMaster", "StreamCoordinator")], ids=" and ".join
)
def test_hook_is_reset_whenever_the_job_begins_without_a_checkpoint(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path, dead: tuple[str, ...]
) -> None:
    """CP-30."""
    job = run(
        own_cluster, folder, tmp_path, "a", options={"execution.checkpointing.interval": "1 h"}
    )
    wait_until(lambda: job.status().name == "RUNNING", 150, "the job")
    wait_for_line(folder, "a", "reset")
    own_cluster.crash_together(*dead)
    wait_for_line(folder, "a", "reset", 2)
    assert diary(folder, "a") == ["create", "reset"] * 2
    end(job)


def test_savepoint_restores_hooks_by_id_and_refuses_state_of_a_missing_hook(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-30: also with another parallelism, and of another source."""
    path = savepoint_of(own_cluster, folder, tmp_path, "a", "b")
    env = environment(own_cluster, tmp_path / "2", {SAVEPOINT: path}).set_parallelism(2)
    add(env, "a", HookedNumbers("b", folder, LONG, 100.0))
    add(env, "b", HookedNumbers("a", folder, LONG, 100.0))
    second = execute(env, own_cluster)
    assert restored_from(folder, "a") == restored_from(folder, "b")
    end(second)

    for is_allowed in (False, True):
        allow = {"execution.state-recovery.ignore-unclaimed-state": str(is_allowed).lower()}
        env = environment(own_cluster, tmp_path / "3", {SAVEPOINT: path, **allow})
        add(env, "a", HookedNumbers("a", folder, LONG, 100.0))
        add(env, "b", HookedNumbers("c", folder, LONG, 100.0))
        third = execute(env, own_cluster)
        if is_allowed:
            assert wait_for_line(folder, "c", "restore")[-1].endswith(" None")
            end(third)
        else:
            with pytest.raises(JobExecutionError, match="state of the master hook 'b'"):
                third.result(300)


def test_failing_hook_fails_the_savepoint_and_the_job_runs_on(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-31."""
    checkpoints = tmp_path / "checkpoints"
    job = run(own_cluster, folder, checkpoints, "a")
    wait_for_another(checkpoints)
    (folder / "fail").touch()
    with pytest.raises(CheckpointError, match=r"(?s)no room for a bookmark.*master hook 'a' of"):
        job.trigger_savepoint(str(tmp_path / "savepoints"), timeout=300)
    (folder / "fail").unlink()
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "create")) == 1
    end(job)


def test_hanging_hook_lets_its_checkpoint_expire_and_the_next_one_complete(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-15."""
    checkpoints = tmp_path / "checkpoints"
    (folder / "hang").touch()
    options = {
        "execution.checkpointing.timeout": "1 s",
        "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    }
    job = run(own_cluster, folder, checkpoints, "a", options=options)
    wait_for_line(folder, "a", "trigger", 2)
    assert newest(checkpoints) == 0
    (folder / "hang").unlink()
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "create")) == 1
    end(job)


def test_no_record_is_read_before_the_hook_is_restored(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    path = savepoint_of(own_cluster, folder, tmp_path, "a")
    (folder / "wait").touch()
    env = environment(own_cluster, tmp_path / "2", {SAVEPOINT: path})
    is_read = folder / "read"

    def note(number: int) -> int:
        is_read.touch()
        return number

    numbers = read(env, "a", HookedNumbers("a", folder, LONG, 100.0))
    numbers.map(note).sink_to(DiscardingSink())
    second = execute(env, own_cluster)
    wait_for_line(folder, "a", "restore")
    wait_until(lambda: second.status().name == "RUNNING", 150, "the job")
    assert not is_read.exists()
    (folder / "wait").unlink()
    wait_until(is_read.exists, 150, "a record")
    end(second)


def test_hook_that_cannot_be_restored_fails_the_job_by_its_restart_strategy(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """EX-16."""
    path = savepoint_of(own_cluster, folder, tmp_path, "a")
    (folder / "fail to restore").touch()
    once = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1"}
    job = run(own_cluster, folder, tmp_path / "2", "a", options={SAVEPOINT: path, **once})
    with pytest.raises(JobExecutionError, match=r"(?s)no such bookmark.*master hook 'a' of"):
        job.result(300)
    assert len(diary(folder, "a", "restore")) == 2


def test_two_hooks_with_the_same_identifier_are_refused(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-30."""
    env = environment(own_cluster, tmp_path / "checkpoints")
    for name in ("first", "second"):
        add(env, name, HookedNumbers("a", folder, LONG, 100.0))
    with pytest.raises(JobExecutionError, match=r"first.* and .*second.* one identifier, 'a'"):
        execute(env, own_cluster).result(300)


def test_hook_without_an_identifier_is_refused(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-30."""
    env = environment(own_cluster, tmp_path / "checkpoints")
    add(env, "numbers", Nameless("a", folder, LONG, 100.0))
    with pytest.raises(JobExecutionError, match="get_identifier of a master hook returned ''"):
        execute(env, own_cluster).result(300)


def test_master_hook_is_called_for_the_checkpoints_of_a_program_in_one_process(
    folder: Path, tmp_path: Path
) -> None:
    env = StreamExecutionEnvironment().set_parallelism(1)
    env.configure(Configuration.from_dict(settings(tmp_path / "checkpoints")))
    add(env, "a", HookedNumbers("a", folder, 50, 100.0))
    env.execute()
    wait_for_line(folder, "a", "close")
    lines = diary(folder, "a")
    assert (lines[:2], lines[-1]) == (["create", "reset"], "close")
    assert all(line.startswith("trigger") for line in lines[2:-1])
    assert len(lines) > 3


def test_job_without_checkpoints_creates_no_hook(folder: Path) -> None:
    env = StreamExecutionEnvironment().set_parallelism(1)
    add(env, "a", HookedNumbers("a", folder, 5, 100.0))
    env.execute()
    assert diary(folder, "a") == []
