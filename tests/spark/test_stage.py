"""Spark stages on real Ray and Spark: where executors run, what comes back, what stays behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import ray
from ray.util.placement_group import PlacementGroup

from flinkray.scheduler.job.coordinator_events import CoordinatorFailure
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.spark.environment import RAYDP, STANDALONE
from flinkray.spark.processes import end_leftovers, leftover_processes
from flinkray.spark.ray_cluster import ray_executor_actors
from flinkray.spark.result import NO_RESULT
from flinkray.spark.standalone_host import EXECUTOR_CLASS
from tests.spark.hosts import SPARK_HOST, HostedStage, Launcher, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.spark]

on_standalone = pytest.mark.skipif(SPARK_HOST != STANDALONE, reason="Ray restarts executors itself")
on_raydp = pytest.mark.skipif(SPARK_HOST != RAYDP, reason="the standalone host has no app master")

Groups = Callable[[int], PlacementGroup]

ROWS = 1000


@pytest.fixture
def launcher(ray_cluster: None, tmp_path: Path) -> Iterator[Launcher]:
    with Launcher(tmp_path) as launcher:
        yield launcher


def squares(spark: Any) -> Any:
    """A query with a shuffle and Python workers."""
    from pyspark.sql import functions

    square = functions.udf(lambda value: value * value, "long")
    numbers = spark.range(0, ROWS, 1, 4).withColumn("square", square("id"))
    return numbers.groupBy((functions.col("id") % 10).alias("digit")).agg(
        functions.sum("square").alias("total")
    )


EXPECTED_SQUARES = {
    digit: sum(value * value for value in range(ROWS) if value % 10 == digit) for digit in range(10)
}


def slow_squares(spark: Any) -> Any:
    """As :func:`squares`, but each task takes long enough to be killed in its midst."""
    import time

    from pyspark.sql import functions

    def slow(value: int) -> int:
        time.sleep(0.01)
        return value * value

    square = functions.udf(slow, "long")
    numbers = spark.range(0, ROWS, 1, 4).withColumn("square", square("id"))
    return numbers.groupBy((functions.col("id") % 10).alias("digit")).agg(
        functions.sum("square").alias("total")
    )


def read_totals(result: SparkResult) -> dict[int, int]:
    assert result.location is not None
    table = pq.read_table(result.location)
    assert table.num_rows == result.num_rows
    return dict(zip(table["digit"].to_pylist(), table["total"].to_pylist(), strict=True))


def maps(pid: int) -> str:
    """What files a process has in its memory."""
    return Path("/proc", str(pid), "maps").read_text()


@pytest.mark.slow  # test_spark_job has two jobs at once
def test_two_concurrent_stages_use_their_own_bundles_and_leave_no_process(
    launcher: Launcher, worker_group: Groups, class_data: Path
) -> None:
    """The JVMs of drivers and executors have mapped the archive of classes."""
    groups = worker_group(2), worker_group(2)
    stages = [launcher.start(group, squares) for group in groups]

    for stage, group in zip(stages, groups, strict=True):
        registered = stage.executors()
        assert [e.bundle_index for e in registered] == [0, 1]
        assert [e.subtask_index for e in registered] == [0, 1]
        assert stage.group_id == group.id.hex()
        assert {(e.bundle_index, e.pid) for e in registered} == stage.executors_seen_from_outside()
        assert all("java" in psutil.Process(e.pid).name() for e in registered)
        jvms = [p.pid for p in leftover_processes(stage.job_id) if p.name() == "java"]
        assert {e.pid for e in registered} < set(jvms)
        assert [pid for pid in jvms if str(class_data) not in maps(pid)] == []

    for stage in stages:
        result = stage.outcome()
        assert isinstance(result, SparkResult), result
        assert read_totals(result) == EXPECTED_SQUARES
        progress = stage.progresses()[-1]
        assert progress.completed_tasks >= 4
        assert progress.failed_tasks == 0

    for stage in stages:
        stage.stop()
        assert leftover_processes(stage.job_id) == []
        assert stage.are_executors_gone()
    assert stages[0].files_left() == stages[1].files_left() == []


def raises_in_worker(spark: Any) -> Any:
    from pyspark.sql import functions

    def broken(value: int) -> int:
        raise ValueError(f"cannot digest {value}")

    return spark.range(7, 8).select(functions.udf(broken, "long")("id").alias("x"))


def leaves(spark: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "error_type", "text"),
    [
        (raises_in_worker, "ValueError", "ValueError: cannot digest 7"),
        (leaves, "SystemExit", "SystemExit: 3"),
    ],
)
def test_error_of_the_function_of_a_spark_stage_has_its_own_traceback(
    launcher: Launcher,
    worker_group: Groups,
    function: Callable[[Any], Any],
    error_type: str,
    text: str,
) -> None:
    failure = launcher.start(worker_group(1), function).outcome()

    assert isinstance(failure, CoordinatorFailure)
    assert failure.is_user_error
    assert not failure.suppress_restarts
    assert failure.error_type == error_type
    assert text in failure.text
    assert "\n" not in failure.text
    frames = [line for line in failure.traceback.splitlines() if line.startswith("  File")]
    if function is not raises_in_worker:
        assert frames[0].endswith(f"in {function.__name__}")
    assert "flinkray/spark/stage.py" not in failure.traceback


def stops_its_session(spark: Any) -> None:
    spark.range(0, ROWS, 1, 4).count()
    spark.stop()


def test_stage_whose_function_stops_its_spark_session_finishes_and_leaves_no_process(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), stops_its_session)

    assert stage.outcome() == NO_RESULT
    assert stage.progresses()[-1].completed_tasks >= 4

    stage.stop()
    assert leftover_processes(stage.job_id) == []
    assert stage.files_left() == []


def test_killed_executor_restarts_in_its_bundle_and_the_result_is_complete(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(2), slow_squares)
    before = stage.executors()
    stage.wait_for_active_tasks()

    os.kill(before[1].pid, signal.SIGKILL)
    lost_and_back = stage.history(complete=2)
    result = stage.outcome()

    assert isinstance(result, SparkResult), result
    assert read_totals(result) == EXPECTED_SQUARES
    assert [e.bundle_index for e in lost_and_back[-2]] == [0]
    after = lost_and_back[-1]
    assert [e.bundle_index for e in after] == [0, 1]
    assert after[0] == before[0]
    assert after[1].actor_id == before[1].actor_id
    assert after[1].pid != before[1].pid
    assert after[1].executor_id != before[1].executor_id


@on_raydp
def test_stage_fails_and_names_the_executor_that_was_killed_before_it_had_started(
    launcher: Launcher, worker_group: Groups
) -> None:
    """Ray restarts the executor, but RayDP's app master wants no more executors than have come."""
    stage = launcher.start(worker_group(1), slow_squares)
    os.kill(stage.pid_of_starting_executor(), signal.SIGKILL)
    failure = stage.outcome(timeout=300)

    assert isinstance(failure, CoordinatorFailure)
    assert not failure.is_user_error
    assert failure.error_type == "SparkExecutorLost"
    assert failure.text.startswith("the executor of slot 0 (pid ")
    assert "Ray says:" in failure.text
    assert "restarted, but getActor failed" in failure.text


@pytest.mark.slow
def test_stage_fails_at_once_with_an_error_that_names_its_killed_driver_jvm(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), slow_squares)
    stage.wait_for_active_tasks()

    os.kill(stage.jvm_pid(), signal.SIGKILL)
    failure = stage.outcome(timeout=5)

    assert isinstance(failure, CoordinatorFailure)
    assert not failure.is_user_error
    assert "killed by SIGKILL" in failure.text
    assert "JVM" in failure.text


@pytest.mark.slow
@on_raydp
def test_stage_fails_with_an_error_that_names_its_killed_app_master(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), slow_squares)
    stage.wait_for_active_tasks()

    os.kill(stage.app_master_pid(), signal.SIGKILL)
    failure = stage.outcome(timeout=15)

    assert isinstance(failure, CoordinatorFailure)
    assert not failure.is_user_error
    assert "app master" in failure.text


@pytest.mark.slow
@on_raydp
def test_app_master_killed_before_spark_connects_to_it_fails_the_stage(
    launcher: Launcher, worker_group: Groups
) -> None:
    """Spark itself waits for ever."""
    stage = launcher.start(worker_group(1), squares)
    stage.wait_for_step("app_master")

    os.kill(stage.app_master_pid(), signal.SIGKILL)
    failure = stage.outcome(timeout=300)

    assert isinstance(failure, CoordinatorFailure)
    assert not failure.is_user_error
    assert "RayDP's app master was lost" in failure.text


@on_raydp
def test_start_of_spark_that_hangs_fails_the_stage_and_names_the_steps_done(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), squares, executor_timeout=20.0)
    stage.wait_for_step("app_master")

    app_master = stage.app_master_pid()
    os.kill(app_master, signal.SIGSTOP)
    try:
        failure = stage.outcome(timeout=300)
    finally:
        os.kill(app_master, signal.SIGCONT)

    assert isinstance(failure, CoordinatorFailure)
    assert not failure.is_user_error
    assert "for 20 s no step has ended; done: jvm, ray, app_master" in failure.text


@on_standalone
def test_executor_ends_when_the_process_that_has_its_slot_is_killed(
    launcher: Launcher, worker_group: Groups
) -> None:
    """The stage finishes with an executor that is started in the slot again."""
    stage = launcher.start(worker_group(2), slow_squares)
    before = stage.executors()
    stage.wait_for_active_tasks()

    stage.kill_holder(1)
    wait_until(lambda: not psutil.pid_exists(before[1].pid))
    stage.hold_slot(1)
    result = stage.outcome()

    assert isinstance(result, SparkResult), result
    assert read_totals(result) == EXPECTED_SQUARES


@on_standalone
def test_executor_that_cannot_start_fails_the_stage_with_its_last_output(
    launcher: Launcher, worker_group: Groups
) -> None:
    options = {
        "spark.executor.extraJavaOptions": "-XX:NoSuchOption -XX:-IgnoreUnrecognizedVMOptions"
    }
    failure = launcher.start(worker_group(1), squares, options).outcome()

    assert isinstance(failure, CoordinatorFailure)
    assert not failure.is_user_error
    assert "the executor of slot 0 ended before it registered, twice: exit status 1" in failure.text
    assert "NoSuchOption" in failure.text


def command_lines(stage: HostedStage) -> list[str]:
    return [" ".join(process.cmdline()) for process in leftover_processes(stage.job_id)]


@pytest.mark.slow
def test_processes_left_by_a_killed_driver_are_found_by_marker_and_ended(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(2), slow_squares)
    executors = stage.executors()
    stage.wait_for_active_tasks()
    wait_until(lambda: any("pyspark.daemon" in line for line in command_lines(stage)))
    marked = leftover_processes(stage.job_id)
    assert {e.pid for e in executors} <= {process.pid for process in marked}
    assert any("PythonGatewayServer" in line for line in command_lines(stage))

    os.kill(stage.host_pid(), signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(stage.host_pid_known))
    end_leftovers(stage.job_id, grace=0.5)

    assert leftover_processes(stage.job_id) == []
    # whose parent died may wait for another one to take note
    assert psutil.wait_procs(marked, timeout=10)[1] == []
    wait_until(stage.are_executors_gone)
    assert leftover_processes(stage.job_id) == []


def test_stop_of_a_stage_while_its_jvm_starts_leaves_no_process_and_no_file(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), squares)
    wait_until(lambda: leftover_processes(stage.job_id) != [])

    stage.stop()

    assert leftover_processes(stage.job_id) == []
    assert stage.files_left() == []
    assert ray.get(stage.actor.outcomes_so_far.remote()) == []


def is_executor_starting(stage: HostedStage) -> bool:
    if stage.holders:
        return any(EXECUTOR_CLASS in line for line in command_lines(stage))
    return len(ray_executor_actors(stage.namespace)) == 1


@pytest.mark.slow
def test_stop_of_a_stage_while_executors_start_leaves_no_process_and_no_file(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), squares)
    wait_until(lambda: is_executor_starting(stage))

    stage.stop()

    wait_until(lambda: not any(a.is_alive for a in ray_executor_actors(stage.namespace).values()))
    stage.free_slots()
    assert stage.files_left() == []
    assert ray.get(stage.actor.outcomes_so_far.remote()) == []


def stubborn(spark: Any) -> None:
    """Goes on whatever happens to its queries."""
    while True:
        with suppress(Exception):
            spark.range(0, 10**12, 1, 2).selectExpr("sum(hash(id))").collect()


@pytest.mark.slow
def test_stop_of_a_stage_ends_spark_although_its_function_ignores_the_stop(
    launcher: Launcher, worker_group: Groups
) -> None:
    stage = launcher.start(worker_group(1), stubborn)
    stage.wait_for_active_tasks()

    stage.stop()

    assert leftover_processes(stage.job_id) == []
    assert ray.get(stage.actor.outcomes_so_far.remote()) == []
