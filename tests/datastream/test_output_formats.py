"""Output formats: in one process, and on a cluster whose processes fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import flinkray
from flinkray.client.job_handle import JobHandle
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    Configuration,
    DataStream,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.common.io import (
    CleanupWhenUnsuccessful,
    FinalizeOnMaster,
    InitializeOnMaster,
    OutputFormat,
)
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.streaming.operator_errors import OperatorError
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import MASTERS_MAY_DIE, RESTARTS
from tests.datastream.test_cluster_takeover import kill_job_master

CONFIGURATION = MASTERS_MAY_DIE


def on(cluster: ThreadedCluster, options: Mapping[str, str] = {}) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(dict(options)))
    return env.set_parallelism(2)


class Story(OutputFormat[int], InitializeOnMaster, FinalizeOnMaster, CleanupWhenUnsuccessful):
    """Notes each call as a line of a file.

    A line that is named in *waits* ends only when the file ``go`` exists; in *fails*, it raises an
    error the first time, and for each *line* in *always* each time.
    """

    def __init__(
        self, folder: Path, waits: str = "", fails: str = "", always: str = "", value: int = -1
    ) -> None:
        self.folder = str(folder)
        self.waits, self.fails, self.always, self.value = waits, fails, always, value

    def note(self, line: str) -> None:
        story = Path(self.folder) / "story"
        is_first = not story.exists() or line not in story.read_text()
        with open(story, "a") as file:
            file.write(line + "\n")
        if line == self.waits and is_first:
            wait_until((Path(self.folder) / "go").exists, 300, "the test")
        if line == self.always or (line == self.fails and is_first):
            raise OSError(f"cannot {line}")

    def initialize_global(self, parallelism: int) -> None:
        self.note(f"prepare {parallelism}")

    def open(self, task_number: int, num_tasks: int) -> None:
        self.me = task_number
        self.note(f"open {task_number} of {num_tasks}")

    def write_record(self, record: int) -> None:
        if record == self.value:
            raise ValueError("cannot write it")
        self.note(f"write {record}")

    def close(self) -> None:
        self.note(f"close {self.me}")

    def try_cleanup_on_error(self) -> None:
        self.note(f"clean up {self.me}")

    def finalize_global(self, parallelism: int) -> None:
        self.note(f"finish {parallelism}")


def story_in(folder: Path) -> list[str]:
    story = folder / "story"
    return story.read_text().splitlines() if story.exists() else []


def written(env: StreamExecutionEnvironment, story: OutputFormat[int]) -> None:
    env.set_parallelism(2)
    env.from_collection([1, 2, 3]).write_using_output_format(story)


def in_one_process() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def in_one_thread() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(clock=ManualClock())


def in_batch_mode() -> StreamExecutionEnvironment:
    env = in_one_process()
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    return env


WITHOUT_A_CLUSTER = [in_one_process, in_one_thread, in_batch_mode]


def assert_is_whole(story: list[str]) -> None:
    assert story[0] == "prepare 2"
    assert sorted(story[1:-1]) == sorted(
        ["open 0 of 2", "open 1 of 2", "write 1", "write 2", "write 3", "close 0", "close 1"]
    )
    assert story[-1] == "finish 2"


# --- without a failure


@pytest.mark.parametrize("environment", WITHOUT_A_CLUSTER)
def test_output_is_prepared_before_the_tasks_and_finished_after_them_in_one_process(
    environment: Callable[[], StreamExecutionEnvironment], tmp_path: Path
) -> None:
    env = environment()
    written(env, Story(tmp_path))
    env.execute()
    assert_is_whole(story_in(tmp_path))


def test_output_is_prepared_before_the_tasks_and_finished_after_them_on_a_cluster(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """EG-11."""
    env = on(own_cluster)
    written(env, Story(tmp_path))
    env.execute()
    assert_is_whole(story_in(tmp_path))


def test_every_copy_of_a_format_is_configured_with_the_parameters_of_the_job(
    tmp_path: Path,
) -> None:
    class Configured(Story):
        def configure(self, parameters: Mapping[str, str]) -> None:
            self.prefix = parameters["prefix"]

        def note(self, line: str) -> None:
            super().note(f"{self.prefix} {line}")

    env = StreamExecutionEnvironment(clock=ManualClock())
    env.get_config().set_global_job_parameters({"prefix": "x"})
    written(env, Configured(tmp_path))
    env.execute()
    assert_is_whole([line.removeprefix("x ") for line in story_in(tmp_path)])


def test_stream_that_reads_a_finished_stage_has_its_output_prepared_and_finished(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The job has no source, and so a coordinator for its output format alone."""

    def numbers() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [1, 2, 3]})

    def write(env: StreamExecutionEnvironment, rows: DataStream) -> None:
        written_rows = rows.map(lambda row: row["n"])
        written_rows.write_using_output_format(Story(tmp_path)).set_parallelism(2)

    job = flinkray.BatchJob("no source")
    job.stream(write, inputs=[job.python(numbers)])
    own_cluster.client.submit(job.build()).result(timeout=300)
    assert_is_whole(story_in(tmp_path))


def test_object_that_is_no_output_format_is_refused() -> None:
    stream = in_one_process().from_collection([1])
    with pytest.raises(TypeError, match="write_using_output_format takes an OutputFormat"):
        stream.write_using_output_format(print)  # type: ignore[arg-type]


def test_output_of_a_job_that_is_stopped_with_a_savepoint_is_closed_and_finished(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    env = on(own_cluster)
    env.enable_checkpointing(3_600_000)
    slow: DataGeneratorSource[int] = DataGeneratorSource(lambda n: n, 1_000_000, 20)
    numbers = env.from_source(slow, WatermarkStrategy.no_watermarks(), "slow")
    numbers.write_using_output_format(Story(tmp_path))
    program = env.execute_async()
    wait_until(lambda: "write 1" in story_in(tmp_path), 150, "a record")
    program.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    own_cluster.client.job(program.get_job_id()).result(timeout=300)
    story = story_in(tmp_path)
    assert sorted(story[-3:-1]) == ["close 0", "close 1"]
    assert story[-1] == "finish 2"
    assert not any(line.startswith("clean up") for line in story)


# --- formats that fail


@pytest.mark.parametrize("environment", WITHOUT_A_CLUSTER)
def test_failed_write_is_cleaned_up_and_the_output_is_not_finished_in_one_process(
    environment: Callable[[], StreamExecutionEnvironment], tmp_path: Path
) -> None:
    env = environment()
    written(env, Story(tmp_path, value=2))
    with pytest.raises(OperatorError) as caught:
        env.execute()
    assert "ValueError: cannot write it" in str(caught.value)
    assert "on record 2" in str(caught.value)
    story = story_in(tmp_path)
    (cleaned,) = (line for line in story if line.startswith("clean up"))
    assert story.index(f"close {cleaned[-1]}") < story.index(cleaned)
    assert "finish 2" not in story


def test_failed_job_cleans_up_and_does_not_finish_its_output(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """EG-11."""
    env = on(own_cluster)
    written(env, Story(tmp_path, value=2))
    with pytest.raises(JobExecutionError, match="cannot write it"):
        env.execute()
    story = story_in(tmp_path)
    assert len([line for line in story if line.startswith("clean up")]) == 1
    assert "finish 2" not in story


def test_error_of_close_hides_no_error_of_an_earlier_operator_on_a_cluster(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    env = on(own_cluster).set_parallelism(1)
    story = Story(tmp_path, always="close 0")
    env.from_collection([0]).map(lambda n: 1 // n).write_using_output_format(story)
    with pytest.raises(JobExecutionError) as caught:
        env.execute()
    assert "ZeroDivisionError" in str(caught.value)
    assert "in operator 'Map'" in str(caught.value)
    assert "cannot close" not in str(caught.value)


def test_error_of_close_hides_no_error_of_write_record(tmp_path: Path) -> None:
    env = in_one_thread().set_parallelism(1)
    story = Story(tmp_path, value=2, always="close 0")
    env.from_collection([1, 2]).write_using_output_format(story)
    with pytest.raises(OperatorError, match="cannot write it"):
        env.execute()
    assert story_in(tmp_path)[-2:] == ["close 0", "clean up 0"]


def test_failed_close_at_the_end_fails_the_task_and_is_cleaned_up(tmp_path: Path) -> None:
    env = in_one_thread().set_parallelism(1)
    env.from_collection([1]).write_using_output_format(Story(tmp_path, always="close 0"))
    with pytest.raises(OperatorError, match="cannot close 0"):
        env.execute()
    assert story_in(tmp_path) == [
        "prepare 1",
        "open 0 of 1",
        "write 1",
        "close 0",
        "clean up 0",
    ]


def test_cancelled_task_closes_its_format_and_cleans_nothing_up(tmp_path: Path) -> None:
    env = in_one_thread().set_parallelism(1)
    results = env.from_collection([1, 2, 3])
    results.write_using_output_format(Story(tmp_path))
    with results.execute_and_collect() as collected:
        assert next(collected) == 1
    story = story_in(tmp_path)
    assert story[-1] == "close 0"
    assert "clean up 0" not in story


@pytest.mark.parametrize("environment", WITHOUT_A_CLUSTER)
@pytest.mark.parametrize("line", ["prepare 2", "finish 2"])
def test_failure_to_prepare_or_finish_the_output_fails_the_program_in_one_process(
    environment: Callable[[], StreamExecutionEnvironment], line: str, tmp_path: Path
) -> None:
    env = environment()
    written(env, Story(tmp_path, always=line))
    with pytest.raises(OperatorError) as caught:
        env.execute()
    assert f"OSError: cannot {line}" in str(caught.value)
    assert "output format of Sink: Unnamed" in str(caught.value)
    assert ("open 0 of 2" in story_in(tmp_path)) == (line == "finish 2")


def test_failed_preparation_fails_the_job_before_any_task_and_without_a_restart(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """DI-07."""
    env = on(own_cluster, RESTARTS)
    written(env, Story(tmp_path, always="prepare 2"))
    with pytest.raises(JobExecutionError, match="cannot prepare 2"):
        env.execute()
    assert story_in(tmp_path) == ["prepare 2"]


def test_job_writes_its_output_again_if_the_output_could_not_be_finished(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """EG-11."""
    env = on(own_cluster, RESTARTS)
    written(env, Story(tmp_path, fails="finish 2"))
    env.execute()
    story = story_in(tmp_path)
    assert story.count("prepare 2") == 1
    assert story.count("finish 2") == story.count("write 3") == 2
    assert story[-1] == "finish 2"


# --- processes that die


def started(
    cluster: ThreadedCluster, story: Story, folder: Path, options: Mapping[str, str] = {}
) -> JobHandle:
    """A job whose format waits where it is told to."""
    env = on(cluster, options)
    written(env, story)
    job = cluster.client.job(env.execute_async().get_job_id())
    wait_until(lambda: story.waits in story_in(folder), 150, "the format to wait")
    return job


def finished(job: JobHandle, folder: Path) -> list[str]:
    (folder / "go").touch()
    job.result(timeout=300)
    return story_in(folder)


@pytest.mark.parametrize("line", ["prepare 2", "finish 2"])
def test_job_does_not_restart_if_coordinator_dies_preparing_or_finishing_its_output(
    own_cluster: ThreadedCluster, line: str, tmp_path: Path
) -> None:
    """The job does not fail, although it may not restart."""
    job = started(own_cluster, Story(tmp_path, waits=line), tmp_path)
    own_cluster.crash("StreamCoordinator")
    wait_until(lambda: story_in(tmp_path).count(line) == 2, 150, "the next coordinator")
    story = finished(job, tmp_path)
    assert story.count("write 3") == 1
    assert (story[0], story[-1]) == ("prepare 2", "finish 2")


@pytest.mark.parametrize("line", ["prepare 2", "finish 2"])
def test_output_is_prepared_and_finished_once_although_the_job_master_dies_meanwhile(
    own_cluster: ThreadedCluster, line: str, tmp_path: Path
) -> None:
    """EG-11: the coordinator goes on, and the next JobMaster repeats the order."""
    job = started(own_cluster, Story(tmp_path, waits=line), tmp_path)
    kill_job_master(own_cluster, job)
    assert_is_whole(finished(job, tmp_path))


def test_output_is_prepared_again_if_job_master_coordinator_and_slot_pool_die(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    job = started(own_cluster, Story(tmp_path, waits="prepare 2"), tmp_path)
    kill_job_master(own_cluster, job, "StreamCoordinator", "SlotPool")
    story = finished(job, tmp_path)
    assert story[:2] == ["prepare 2"] * 2
    assert story.count("write 3") == story.count("finish 2") == 1


def test_job_can_be_cancelled_while_its_output_format_is_still_preparing(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    job = started(own_cluster, Story(tmp_path, waits="prepare 2"), tmp_path)
    job.cancel()
    assert job.wait(timeout=20) is flinkray.JobStatus.CANCELED
    (tmp_path / "go").touch()
    assert story_in(tmp_path) == ["prepare 2"]
