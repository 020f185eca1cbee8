"""Master hooks of sources: in one process, and on a cluster whose processes die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flinkray.client import JobHandle
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors import DiscardingSink, MasterTriggerRestoreHook
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.hooked import Diary, HookedNumbers, diary, wait_for_line
from tests.datastream.tallies import newest, settings

LONG = 1_000_000
SAVEPOINT = "execution.state-recovery.path"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which hooks write their diaries."""
    (tmp_path / "hooks").mkdir()
    return tmp_path / "hooks"


def environment(
    cluster: ThreadedCluster, checkpoints: Path, interval: str = "100 ms", **options: str
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    given = {name.replace("_", "."): value for name, value in options.items()}
    env.configure(Configuration.from_dict({**settings(checkpoints, interval), **given}))
    return env.set_parallelism(1)


def add(env: StreamExecutionEnvironment, name: str, source: HookedNumbers) -> None:
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), name, Types.LONG())
    numbers.uid(name).sink_to(DiscardingSink())


def execute(env: StreamExecutionEnvironment, cluster: ThreadedCluster) -> JobHandle:
    return cluster.client.job(env.execute_async("hooked").get_job_id())


def run(
    cluster: ThreadedCluster, folder: Path, checkpoints: Path, *names: str, **options: str
) -> JobHandle:
    """A job with a source for each name, which is its hook's id, too."""
    env = environment(cluster, checkpoints, **options)
    for name in names:
        add(env, name, HookedNumbers(name, folder, LONG, 100.0, has_state=name != "stateless"))
    return execute(env, cluster)


def wait_for_another(directory: Path) -> None:
    before = newest(directory)
    wait_until(lambda: newest(directory) > before, 150, "a checkpoint")


class NamelessDiary(Diary):
    def get_identifier(self) -> str:
        return ""


class Nameless(HookedNumbers):
    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[dict[str, int]]:
        return NamelessDiary("a", self.folder, has_state=False)


def restored(line: str) -> tuple[int, Any]:
    _, checkpoint_id, data = line.split(maxsplit=2)
    return int(checkpoint_id), data


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
    job.cancel()
    job.wait(timeout=300)
    for name in ("a", "stateless"):
        triggers = diary(folder, name, "trigger")
        assert len(set(triggers)) == len(triggers)
        assert len(diary(folder, name, "create")) == 2
        assert wait_for_line(folder, name, "close") == ["close"]
        assert diary(folder, name, "reset") == ["reset"], "at the first start"
        (line,) = diary(folder, name, "restore")
        checkpoint_id, data = restored(line)
        assert checkpoint_id >= 2
        assert data == ("None" if name == "stateless" else f"{{'checkpoint': {checkpoint_id}}}")


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

    other = HookedNumbers("b", folder, LONG, 100.0)
    numbers = env.from_source(other, WatermarkStrategy.no_watermarks(), "b", Types.LONG())
    numbers.uid("b").map(fail_once).sink_to(DiscardingSink())
    job = execute(env, own_cluster)
    wait_for_another(checkpoints)
    fault.touch()
    for name in ("a", "b"):
        (line,) = wait_for_line(folder, name, "restore")
        checkpoint_id, data = restored(line)
        assert data == f"{{'checkpoint': {checkpoint_id}}}"
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "restore")) == len(diary(folder, "a", "create")) == 1
    job.cancel()
    job.wait(timeout=300)


def test_master_hook_is_not_restored_when_only_the_job_master_dies(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    job = run(own_cluster, folder, checkpoints, "a")
    wait_for_another(checkpoints)
    own_cluster.crash("JobMaster")
    wait_for_another(checkpoints)
    wait_for_another(checkpoints)
    job.cancel()
    job.wait(timeout=300)
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
    (line,) = wait_for_line(folder, "a", "restore")
    checkpoint_id, data = restored(line)
    assert data == f"{{'checkpoint': {checkpoint_id}}}"
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "restore")) == 1
    job.cancel()
    job.wait(timeout=300)


@pytest.mark.parametrize(
    "dead", [("StreamCoordinator",), ("JobMaster", "StreamCoordinator")], ids=" and ".join
)
def test_hook_is_reset_whenever_the_job_begins_without_a_checkpoint(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path, dead: tuple[str, ...]
) -> None:
    """CP-30."""
    job = run(own_cluster, folder, tmp_path, "a", execution_checkpointing_interval="1 h")
    wait_until(lambda: job.status().name == "RUNNING", 150, "the job")
    wait_for_line(folder, "a", "reset")
    own_cluster.crash_together(*dead)
    wait_for_line(folder, "a", "reset", 2)
    assert diary(folder, "a") == ["create", "reset"] * 2
    job.cancel()
    job.wait(timeout=300)


def test_savepoint_restores_hooks_by_id_and_refuses_state_of_a_missing_hook(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-30: also with another parallelism, and of another source."""
    first = run(own_cluster, folder, tmp_path / "1", "a", "b")
    path = first.stop_with_savepoint(str(tmp_path / "savepoints"), timeout=300)

    env = environment(own_cluster, tmp_path / "2").set_parallelism(2)
    env.configure(Configuration.from_dict({SAVEPOINT: path}))
    add(env, "a", HookedNumbers("b", folder, LONG, 100.0))
    add(env, "b", HookedNumbers("a", folder, LONG, 100.0))
    second = execute(env, own_cluster)
    for name in ("a", "b"):
        (line,) = wait_for_line(folder, name, "restore")
        checkpoint_id, data = restored(line)
        assert data == f"{{'checkpoint': {checkpoint_id}}}"
    second.cancel()
    second.wait(timeout=300)

    for is_allowed in (False, True):
        env = environment(own_cluster, tmp_path / "3")
        options = {SAVEPOINT: path}
        if is_allowed:
            options["execution.state-recovery.ignore-unclaimed-state"] = "true"
        env.configure(Configuration.from_dict(options))
        add(env, "a", HookedNumbers("a", folder, LONG, 100.0))
        numbers = HookedNumbers("c", folder, LONG, 100.0)
        add(env, "b", numbers)
        third = execute(env, own_cluster)
        if is_allowed:
            assert restored(wait_for_line(folder, "c", "restore")[-1])[1] == "None"
            third.cancel()
            third.wait(timeout=300)
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
    job.cancel()
    job.wait(timeout=300)


def test_hanging_hook_lets_its_checkpoint_expire_and_the_next_one_complete(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """CP-15."""
    checkpoints = tmp_path / "checkpoints"
    (folder / "hang").touch()
    job = run(
        own_cluster,
        folder,
        checkpoints,
        "a",
        execution_checkpointing_timeout="1 s",
        **{"execution_checkpointing_tolerable-failed-checkpoints": "1000"},
    )
    wait_for_line(folder, "a", "trigger", 2)
    assert newest(checkpoints) == 0
    (folder / "hang").unlink()
    wait_for_another(checkpoints)
    assert len(diary(folder, "a", "create")) == 1
    job.cancel()
    job.wait(timeout=300)


def test_no_record_is_read_before_the_hook_is_restored(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    first = run(own_cluster, folder, tmp_path / "1", "a")
    path = first.stop_with_savepoint(str(tmp_path / "savepoints"), timeout=300)

    (folder / "wait").touch()
    env = environment(own_cluster, tmp_path / "2")
    env.configure(Configuration.from_dict({SAVEPOINT: path}))
    read = folder / "read"

    def note(number: int) -> int:
        read.touch()
        return number

    source = HookedNumbers("a", folder, LONG, 100.0)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "a", Types.LONG())
    numbers.uid("a").map(note).sink_to(DiscardingSink())
    second = execute(env, own_cluster)
    wait_for_line(folder, "a", "restore")
    wait_until(lambda: second.status().name == "RUNNING", 150, "the job")
    assert not read.exists()
    (folder / "wait").unlink()
    wait_until(read.exists, 150, "a record")
    second.cancel()
    second.wait(timeout=300)


def test_hook_that_cannot_be_restored_fails_the_job_by_its_restart_strategy(
    own_cluster: ThreadedCluster, folder: Path, tmp_path: Path
) -> None:
    """EX-16."""
    first = run(own_cluster, folder, tmp_path / "1", "a")
    path = first.stop_with_savepoint(str(tmp_path / "savepoints"), timeout=300)
    (folder / "fail to restore").touch()
    env = environment(own_cluster, tmp_path / "2")
    options = {SAVEPOINT: path, "restart-strategy.fixed-delay.attempts": "1"}
    env.configure(Configuration.from_dict({"restart-strategy.type": "fixed-delay", **options}))
    add(env, "a", HookedNumbers("a", folder, LONG, 100.0))
    with pytest.raises(JobExecutionError, match=r"(?s)no such bookmark.*master hook 'a' of"):
        execute(env, own_cluster).result(300)
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
