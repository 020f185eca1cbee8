"""Checkpoints of programs on a cluster: whatever dies, they go on from the last one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.layout import find_checkpoints
from flinkray.checkpoint.metadata_file import read_metadata
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    CheckpointingMode,
    Configuration,
    EmbeddedRocksDBStateBackend,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.half_way import HalfWay
from tests.datastream.tallies import KEYS, expected, first_numbers, newest, settings, tallies

# An interrupt that ends the thread of a crashed process may come between the opening of a file and
# its being kept; of a real process nothing would be left.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}
WITH_TIMEOUT = {**UNALIGNED, "execution.checkpointing.aligned-checkpoint-timeout": "10 ms"}
MODES = {"aligned": {}, "unaligned": UNALIGNED, "aligned with time-out": WITH_TIMEOUT}


def on(
    cluster: ThreadedCluster, checkpoints: Path, parallelism: int = 2, mode: str = "aligned"
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict({**settings(checkpoints), **MODES[mode]}))
    return env.set_parallelism(parallelism)


def wait_for_another(directory: Path) -> None:
    before = newest(directory)
    wait_until(lambda: newest(directory) > before, 150, "a checkpoint")


@pytest.mark.smoke
def test_checkpoints_are_replaced_by_newer_ones_and_removed_when_the_job_ends(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    results = tallies(
        on(own_cluster, checkpoints), 40_000, 10_000.0, tmp_path / "witness"
    ).execute_and_collect()
    wait_for_another(checkpoints)
    wait_for_another(checkpoints)
    assert set(results) == expected(40_000)
    assert find_checkpoints(str(checkpoints)) == []


@pytest.mark.parametrize(
    "kind", ["TaskProcess", "TaskExecutor", "StreamCoordinator", "JobMaster", "Dispatcher"]
)
@pytest.mark.parametrize(("parallelism", "mode"), [(1, "aligned"), (2, "unaligned")])
def test_program_resumes_from_its_last_checkpoint_when_a_process_dies(
    kind: str, parallelism: int, mode: str, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: nothing is lost, doubled or out of order."""
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    env = on(own_cluster, checkpoints, parallelism, mode)
    results = tallies(env, 40_000, 10_000.0, witness).execute_and_collect()
    wait_for_another(checkpoints)  # its pointer is stored when the next one is
    for _ in range(2):
        wait_for_another(checkpoints)
        own_cluster.crash(kind)
    assert set(results) == expected(40_000)
    begun = first_numbers(witness)
    if kind in ("JobMaster", "Dispatcher", "StreamCoordinator"):  # its tasks run on
        assert [len(of_subtask) for of_subtask in begun] == [1] * parallelism
    else:
        assert any(len(of_subtask) > 1 for of_subtask in begun)
    assert all(n > of_subtask[0] for of_subtask in begun for n in of_subtask[1:])


@pytest.mark.parametrize("unaligned", [False, True])
def test_program_with_state_on_disk_resumes_from_a_checkpoint_when_processes_die(
    unaligned: bool, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04, also with unaligned checkpoints."""
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    disk = tmp_path / "disk"
    env = on(own_cluster, checkpoints)
    env.get_checkpoint_config().enable_unaligned_checkpoints(unaligned)
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths(str(disk))
    env.set_state_backend(backend)
    results = tallies(env, 40_000, 10_000.0, witness).execute_and_collect()
    wait_for_another(checkpoints)
    for _ in range(2):
        wait_for_another(checkpoints)  # its tasks may be starting again by now
        wait_until(lambda: any(disk.iterdir()), 300, "state on the disk")
        own_cluster.crash("TaskProcess")
    assert set(results) == expected(40_000)
    begun = first_numbers(witness)
    assert any(len(of_subtask) > 1 for of_subtask in begun)
    assert all(n > of_subtask[0] for of_subtask in begun for n in of_subtask[1:])


def test_job_warns_of_state_that_is_stored_as_pickle(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    class Local:
        """Nothing but pickle covers it."""

    class Keep(KeyedProcessFunction[int, int, int]):
        def open(self, runtime_context: RuntimeContext) -> None:
            self._kept = runtime_context.get_state(ValueStateDescriptor("kept"))

        def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
            self._kept.update(Local())

    env = on(own_cluster, tmp_path / "checkpoints")
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, 1_000_000, 1_000.0)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    kept = numbers.key_by(lambda n: n % 3).process(Keep()).name("keep").uid("keep")
    kept.sink_to(DiscardingSink())
    job = own_cluster.client.job(env.execute_async("pickling").get_job_id())
    try:
        wait_until(lambda: bool(job.details().warnings), 150, "a warning")
        (warning,) = job.details().warnings
        assert warning.startswith("state 'kept' of operator 'keep' (uid 'keep') has values of ")
        assert "<locals>.Local" in warning
    finally:
        job.cancel()
        job.wait()


def has_data_in_flight(checkpoints: Path) -> bool:
    with suppress(CheckpointStorageError):  # one that was deleted meanwhile
        for path in find_checkpoints(str(checkpoints)):
            for operator in read_metadata(path).operators:
                for subtask in operator.subtasks:
                    if subtask.state.input_channels or subtask.state.result_subpartitions:
                        return True
    return False


@pytest.mark.parametrize("mode", ["unaligned", "aligned with time-out"])
def test_checkpoints_complete_after_the_sources_have_ended(
    mode: str, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: all records are in flight. No task declines a checkpoint, and failed tasks resume
    from it."""
    checkpoints = tmp_path / "checkpoints"
    env = on(own_cluster, checkpoints, 2, mode)
    program = tallies(env, 2_000, None, tmp_path / "witness", pause=0.004).execute_and_collect()
    for _ in range(3):
        wait_for_another(checkpoints)
    (job,) = own_cluster.client.list_jobs()
    found = own_cluster.client.job(job.job_id).details().checkpoints
    assert found is not None
    assert found.latest_failed is None or "ended or is ending" not in str(found.latest_failed)
    assert has_data_in_flight(checkpoints)
    own_cluster.crash("TaskProcess")
    wait_for_another(checkpoints)
    assert set(program) == expected(2_000)


@pytest.mark.parametrize("is_stored", [True, False])
def test_finished_program_is_not_run_again_when_its_job_master_dies(
    is_stored: bool,
    own_cluster: ThreadedCluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The end is not stored yet. A living Dispatcher stores the end and removes the
    checkpoints. Otherwise the next JobMaster takes the ended job over or resumes from the last
    checkpoint."""
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    program = tallies(on(own_cluster, checkpoints), 20_000, 10_000.0, witness).execute_and_collect()
    with ThreadPoolExecutor() as threads:
        results = threads.submit(set, program)
        wait_for_another(checkpoints)
        wait_for_another(checkpoints)
        (results_of_jobs,) = (tmp_path / "cluster").rglob("job-results")
        kept = results_of_jobs.rename(results_of_jobs.with_name("kept"))
        (tmp_path / "file").touch()
        results_of_jobs.symlink_to(tmp_path / "file")  # where a directory would have to be
        (job,) = own_cluster.client.list_jobs()
        wait_until(lambda: own_cluster.client.job(job.job_id).status().is_terminal, 150, "the end")
        wait_until(lambda: "cannot store how it ended yet" in caplog.text, 150, "the Dispatcher")
        if not is_stored:
            own_cluster.crash("Dispatcher")
        own_cluster.crash("JobMaster")
        results_of_jobs.with_name("again").symlink_to(kept)
        results_of_jobs.with_name("again").replace(results_of_jobs)
        assert results.result(timeout=300) == expected(20_000)
    begun = first_numbers(witness)
    assert all(n > of_subtask[0] for of_subtask in begun for n in of_subtask[1:])
    if is_stored:
        assert all(len(of_subtask) == 1 for of_subtask in begun)
    assert find_checkpoints(str(checkpoints)) == []
    assert not list((tmp_path / "cluster").rglob("checkpoint-pointers/*/*"))


def test_checkpoints_are_not_deleted_when_the_job_cannot_read_the_checkpoint_counter(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The used checkpoint ids are unknown, so the job fails; the user can start a new job from
    there."""
    program = HalfWay(own_cluster.client, tmp_path / "program")
    program.take_checkpoints()
    counts = list((tmp_path / "cluster").rglob("checkpoint-pointers/*/*.count"))
    assert counts
    for count in counts:
        count.write_bytes(
            b"not of flinkray"
        )  # no other checkpoint is triggered, which would mend it
    own_cluster.crash("JobMaster")
    for wait in (lambda: list(program.results), lambda: program.job.result(300)):
        with pytest.raises(JobExecutionError, match="count cannot be read"):
            wait()
    assert find_checkpoints(str(program.checkpoints))
    program.go_on()


def test_at_least_once_mode_loses_no_record_when_all_task_processes_die(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    env = on(own_cluster, checkpoints)
    env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    results = tallies(env, 40_000, 10_000.0, tmp_path / "witness").execute_and_collect()
    wait_for_another(checkpoints)
    own_cluster.crash_all("TaskProcess")
    counts = {key: count for key, count, _, _ in results}
    assert len(counts) == KEYS
    for key, count, _, _ in expected(40_000):
        assert counts[key] >= count
