"""Savepoints of programs on a cluster: taken, started from, and jobs that are stopped with them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.job_master import stored_checkpoints
from flinkray.actors.shared import user_storage
from flinkray.checkpoint.errors import CheckpointNotFoundError, StorageHangsError
from flinkray.checkpoint.layout import find_checkpoints
from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.checkpoint.metadata_file import read_whole
from flinkray.core.errors import (
    JobError,
    JobExecutionError,
    JobNotFoundError,
    JobStateError,
    JobSubmissionError,
    RpcTimeoutError,
)
from flinkray.datastream import (
    Configuration,
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.cluster_execution import ClusterResults
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.state_reader import SavepointReader
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.half_way import wait_for_tasks
from tests.datastream.portions import Portions, portions
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.rescaled import COUNTERS, counted_and_totalled, expected_totals, restored
from tests.datastream.tallies import newest, settings

CONFIGURATION = QUICK_RESTARTS


def on(
    cluster: ThreadedCluster, checkpoints: Path, parallelism: int = 2
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(settings(checkpoints)))
    return env.set_parallelism(parallelism)


def from_savepoint(env: StreamExecutionEnvironment, path: str | None) -> StreamExecutionEnvironment:
    """None: from the beginning."""
    return env.configure(Configuration.from_dict({"execution.state-recovery.path": path or ""}))


def wait_for_checkpoint(directory: Path) -> None:
    before = newest(directory)
    wait_until(lambda: newest(directory) > before, 150, "a checkpoint")


def stop(
    cluster: ThreadedCluster,
    results: CloseableIterator | list[Any],
    directory: Path,
    *,
    drain: bool = False,
) -> tuple[str, list[Any]]:
    """The savepoint, and the results that come until the program has finished with it."""
    assert isinstance(results, ClusterResults)
    job = cluster.client.job(results.job_id)
    stopping = cluster.session.start(job.stop_with_savepoint_async(str(directory), drain=drain))
    shown = list(results)
    assert job.result(300).savepoint == stopping.result(300)
    return stopping.result(), shown


@pytest.mark.parametrize("is_stopped", [True, False])
def test_results_are_collected_once_across_a_job_and_its_savepoint_restore(
    cluster: ThreadedCluster, tmp_path: Path, is_stopped: bool
) -> None:
    """E2E-01: the first client has read some results, and others wait in the savepoint. The
    second job fails before and after its first own checkpoint."""
    first, savepoints = Portions(cluster.client, tmp_path / "first"), tmp_path / "savepoints"
    shown = []
    for portion in (0, 1):  # with the second one it says that it has read the first
        first.let_out(portion)
        shown += first.show()
    first.let_out(2)
    if is_stopped:
        stopping = cluster.session.start(first.job.stop_with_savepoint_async(str(savepoints)))
        wait_until(
            lambda: savepoints.exists() and find_checkpoints(str(savepoints)), 300, "the savepoint"
        )
        first.let_out_all()
        assert shown + list(first.results) == portions(0, 1, 2)
        path = stopping.result(300)
    else:
        path = first.job.trigger_savepoint(str(savepoints), timeout=300)
        first.let_out_all()
        assert shown + list(first.results) == portions(0, 1, 2, 3, 4, 5)

    second = Portions(cluster.client, tmp_path / "second", savepoint=path)
    second.let_out(3)
    cluster.crash_all("TaskProcess")
    second.let_out(4, attempt=1)
    shown = second.show()
    second.let_out(5, attempt=1)
    cluster.crash_all("TaskProcess")
    assert shown + list(second.results) == portions(3, 4, 5)


def test_state_is_rescaled_from_2_to_4_to_1_subtasks_by_savepoints(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-01, E2E-02: max parallelism 13 and 42 keys; each savepoint is moved to another folder."""
    count, rate = 42 * 400, 3_000.0
    path: str | None = None
    for run, parallelism in enumerate((2, 4)):
        checkpoints = tmp_path / f"checkpoints-{run}"
        env = from_savepoint(on(cluster, checkpoints, parallelism), path)
        totals = counted_and_totalled(env, count, rate, tmp_path / f"run-{run}")
        results = totals.execute_and_collect()
        wait_for_checkpoint(checkpoints)
        taken, shown = stop(cluster, results, tmp_path / "savepoints")
        assert shown == [], "timers have not fired"
        path = str(tmp_path / "elsewhere" / f"moved-{run}")
        shutil.move(taken, path)
    env = from_savepoint(on(cluster, tmp_path / "checkpoints-2", 1), path)
    results = counted_and_totalled(env, count, rate, tmp_path / "run-2").execute_and_collect()
    assert set(results) == expected_totals(count)
    for run, parallelism in ((1, 4), (2, 1)):
        savepoint = SavepointReader(str(tmp_path / "elsewhere" / f"moved-{run - 1}"))
        entries = savepoint.keyed_entries("totals", "total")
        processed = sum(entry.value[0] for entry in entries)
        assert 0 < processed < count
        subtasks = restored(tmp_path / f"run-{run}")
        assert len(subtasks) == parallelism
        assert sum(sum(each["counters"]) for each in subtasks) == processed
        sizes = [len(each["counters"]) for each in subtasks]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == 2 * COUNTERS
        assert all(sum(each["all"]) == processed for each in subtasks)
        assert all(each["table"] == {"limit": 7} for each in subtasks)


# --- what cannot be started from ------------------------------------------------------------------


def program(
    env: StreamExecutionEnvironment, uid: str = "tally", kind: TypeInformation | None = None
) -> DataStream:
    """Counts by key, for ever so long."""
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, 10_000_000, 500.0)
    numbers = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).uid("numbers")
    return numbers.key_by(lambda n: n % 7).process(Count(kind or Types.LONG())).uid(uid)


class Count(KeyedProcessFunction[int, int, int]):
    def __init__(self, kind: TypeInformation) -> None:
        self._kind = kind

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", self._kind))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        self._count.update((self._count.value() or 0) + 1)


@pytest.fixture(scope="module")
def taken(cluster: ThreadedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A savepoint with files, of a job that goes on until the end of the module's tests."""
    folder = tmp_path_factory.mktemp("taken")
    env = on(cluster, folder / "checkpoints")
    inline = {"execution.checkpointing.data-inline-threshold": "0"}
    env.configure(Configuration.from_dict(inline))
    program(env).print()
    client = env.execute_async()
    path = Path(client.trigger_savepoint(str(folder / "savepoints")).result(300))
    yield path
    assert client.get_job_status().result(300).name == "RUNNING", "it goes on"
    client.cancel().result(300)


def failure_of(
    cluster: ThreadedCluster, tmp_path: Path, path: str, **changes: Any
) -> tuple[str, int]:
    """Why a job that starts from there fails, and how often it was restarted before."""
    env = from_savepoint(on(cluster, tmp_path / "checkpoints"), path)
    if "max_parallelism" in changes:
        env.set_max_parallelism(changes.pop("max_parallelism"))
    program(env, **changes).print()
    try:
        client = env.execute_async()
    except JobSubmissionError as refusal:  # there is no savepoint at all
        return str(refusal), 0
    with pytest.raises(JobExecutionError) as error:
        client.get_job_execution_result().result(300)
    return error.value.text, cluster.client.job(client.get_job_id()).details().restarts


@pytest.mark.parametrize("harm", ["missing", "truncated", "flipped"])
def test_job_from_a_savepoint_with_a_damaged_file_fails_and_names_the_file(
    harm: str, cluster: ThreadedCluster, taken: Path, tmp_path: Path
) -> None:
    names = sorted(file.name for file in taken.iterdir())
    assert len(names) > 1
    for name in names:
        copy = tmp_path / f"copy-{name}"
        shutil.copytree(taken, copy)
        file = copy / name
        data = file.read_bytes()
        if harm == "missing":
            file.unlink()
        else:
            at = len(data) // 2
            flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            file.write_bytes(data[:-1] if harm == "truncated" else flipped)
        text, restarts = failure_of(cluster, tmp_path, str(copy))
        assert str(file) in text
        assert restarts == 0


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"uid": "another"}, "uid 'tally'"),
        ({"max_parallelism": 64}, "has max parallelism 128"),
        ({"kind": Types.STRING()}, "state 'count'"),
    ],
)
def test_program_that_does_not_fit_its_savepoint_fails_without_restart(
    changes: dict[str, Any], cause: str, cluster: ThreadedCluster, taken: Path, tmp_path: Path
) -> None:
    """JM-10, E2E-06"""
    text, restarts = failure_of(cluster, tmp_path, str(taken), **changes)
    assert cause in text
    assert restarts == 0


def test_savepoint_path_that_does_not_exist_is_refused_at_submission(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-06"""
    before = cluster.client.list_jobs()
    text, _ = failure_of(cluster, tmp_path, str(tmp_path / "nowhere"))
    assert text.endswith(
        f"the job cannot start from {tmp_path}/nowhere: there is no such directory"
    )
    assert cluster.client.list_jobs() == before, "it is refused before it is a job"
    with pytest.raises(CheckpointNotFoundError, match="nowhere"):
        cluster.client.dispose_savepoint(str(tmp_path / "nowhere"))


def test_savepoint_on_hanging_storage_is_refused_and_blocks_no_other_request(
    cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2E-06: opening a file of the savepoint blocks, as on a mount whose server is away."""
    monkeypatch.setattr(user_storage, "PATIENCE", 0.05)
    before = cluster.client.list_jobs()
    savepoints = [tmp_path / f"savepoint-{number}" for number in range(8)]
    for savepoint in savepoints:  # more than a Dispatcher has threads
        savepoint.mkdir()
        os.mkfifo(savepoint / "_metadata")
    try:
        for savepoint in savepoints:
            text, _ = failure_of(cluster, tmp_path, str(savepoint))
            assert f"the job cannot start from {savepoint}" in text
            assert "its storage has not answered" in text
            with pytest.raises(StorageHangsError, match=str(savepoint)):
                cluster.client.dispose_savepoint(str(savepoint))
        assert cluster.client.list_jobs() == before
    finally:
        for savepoint in savepoints:  # who waits for a writer finds an empty file
            os.close(os.open(savepoint / "_metadata", os.O_RDWR | os.O_NONBLOCK))


def test_savepoint_without_job_or_target_is_refused_and_a_timed_out_one_completes(
    cluster: ThreadedCluster, taken: Path, tmp_path: Path
) -> None:
    """E2E-06, JM-14: a caller whose timeout passes learns that the savepoint goes on."""
    with pytest.raises(JobNotFoundError):
        cluster.client.job("0123456789abcdef" * 2).trigger_savepoint(str(tmp_path))
    job = next(j for j in cluster.client.list_jobs() if not j.status.is_terminal)
    handle = cluster.client.job(job.job_id)
    with pytest.raises(JobError, match="it is not said where"):
        handle.trigger_savepoint()
    patient = cluster.session.start(handle.trigger_savepoint_async(str(tmp_path / "a")))
    with pytest.raises(RpcTimeoutError, match="it goes on"):
        handle.trigger_savepoint(str(tmp_path / "b"), timeout=0.001)
    path = patient.result(300)
    cluster.client.dispose_savepoint(path)
    assert not Path(path).exists()


def test_stop_with_drain_fires_timers_before_the_savepoint(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-06"""
    env = on(cluster, tmp_path / "checkpoints")
    totals = counted_and_totalled(env, 10_000_000, 1_000.0, tmp_path / "counted")
    results = totals.execute_and_collect()
    wait_for_checkpoint(tmp_path / "checkpoints")
    path, shown = stop(cluster, results, tmp_path / "savepoints", drain=True)
    entries = SavepointReader(path).keyed_entries("totals", "total")
    assert {key: total for key, *total in shown} == {e.key: list(e.value) for e in entries}
    assert shown


def test_savepoint_cannot_be_disposed_while_a_job_that_dropped_state_may_restore_it(
    cluster: ThreadedCluster, taken: Path, tmp_path: Path
) -> None:
    """E2E-06: the job has no operator for some of the state and may drop that state."""
    copy = tmp_path / "copy"
    shutil.copytree(taken, copy)
    env = from_savepoint(on(cluster, tmp_path / "checkpoints"), str(copy))
    changes = {
        "execution.state-recovery.ignore-unclaimed-state": "true",
        "execution.checkpointing.interval": "1 h",
    }
    env.configure(Configuration.from_dict(changes))
    program(env, uid="another").print()
    job = cluster.client.job(env.execute_async().get_job_id())
    wait_for_tasks(job)
    with pytest.raises(JobStateError, match=f"it would go on from {copy} after a failure"):
        cluster.client.dispose_savepoint(str(copy))
    assert copy.exists()
    job.trigger_checkpoint(timeout=300)
    cluster.client.dispose_savepoint(str(copy))
    assert not copy.exists()
    path = job.stop_with_savepoint(str(tmp_path / "savepoints"), timeout=300)
    assert "tally" in SavepointReader(str(taken)).operators
    assert "tally" not in SavepointReader(path).operators
    assert job.details().restarts == 0
    told = job.details().checkpoints
    assert told is not None
    assert told.latest_savepoint is not None
    assert told.latest_savepoint.path == str(Path(path) / "_metadata")
    assert told.restored == 1
    assert told.latest_completed is not None
    assert told.latest_completed.state_size > 0


def test_savepoint_that_a_starting_job_has_not_read_yet_cannot_be_disposed(
    cluster: ThreadedCluster, taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2E-06: the JobMaster has registered and does not know the state to start from yet."""
    copy = tmp_path / "copy"
    shutil.copytree(taken, copy)
    begun, goes_on = threading.Event(), threading.Event()

    def held(location: str) -> CheckpointMetadata:
        begun.set()
        assert goes_on.wait(300)
        return read_whole(location)

    monkeypatch.setattr(stored_checkpoints, "read_whole", held)
    env = from_savepoint(on(cluster, tmp_path / "checkpoints"), str(copy))
    program(env).print()
    job = cluster.client.job(env.execute_async().get_job_id())
    try:
        assert begun.wait(300)
        wait_until(lambda: bool(job.details().vertices), 150, "its JobMaster is known")
        with pytest.raises(JobStateError, match=f"it would go on from {copy} after a failure"):
            cluster.client.dispose_savepoint(str(copy))
    finally:
        goes_on.set()
    wait_until(lambda: job.status().name == "RUNNING", 150, "the job runs")
    job.cancel()
