"""Metrics, watermarks and back-pressure (RE-40 to RE-42, RE-44)."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flinkray.core.ids import JobID, JobVertexID
from flinkray.datastream import Configuration, StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.common import TimestampAssigner
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.rest import metrics_json
from flinkray.rest.back_pressure_json import back_pressure, level_of
from flinkray.rest.cluster import ClusterView
from flinkray.rest.io_rates import WINDOW, JobLook, Measured, Measurements
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import newest, settings
from tests.rest.http import Asker

UNKNOWN = JobID(bytes(16)).hex()
VERTEX = JobVertexID(b"v" * 16)
OF_A_RUNNING_VERTEX = frozenset(
    {"numRecordsIn", "numBytesIn", "numRecordsInPerSecond", "numBytesInPerSecond"}
    | {"numRecordsOut", "numBytesOut", "numRecordsOutPerSecond", "numBytesOutPerSecond"}
    | {"accumulateBusyTimeMs", "accumulateIdleTimeMs", "accumulateBackPressuredTimeMs"}
    | {"busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond"}
    | {"currentInputWatermark"}
)


class Number(TimestampAssigner):
    """A number is its own time."""

    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


BY_NUMBER = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Number())


@pytest.fixture(scope="module")
def job(cluster: ThreadedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A stream that runs in two subtasks and has watermarks and checkpoints."""
    folder = tmp_path_factory.mktemp("job")
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(settings(folder / "checkpoints")))
    source = DataGeneratorSource(lambda n: n, 10**9, 10_000.0)
    numbers = env.set_parallelism(2).from_source(source, BY_NUMBER, "numbers")
    numbers.rebalance().map(lambda n: n + 1).sink_to(DiscardingSink())
    client = env.execute_async("numbers")
    wait_until(lambda: newest(folder / "checkpoints") > 1, 150, "two checkpoints")
    yield client.get_job_id().hex()
    client.cancel().result(timeout=300)
    cluster.client.job(client.get_job_id().hex()).wait(300)


@pytest.fixture
def source(ask: Asker, job: str) -> str:
    return f"/jobs/{job}/vertices/{ask.get(f'/jobs/{job}')['vertices'][0]['id']}"


@pytest.fixture
def vertex(ask: Asker, job: str) -> str:
    """One that reads from the source."""
    return f"/jobs/{job}/vertices/{ask.get(f'/jobs/{job}')['vertices'][-1]['id']}"


def names(listed: list[dict[str, str]]) -> set[str]:
    return {one["id"] for one in listed}


def test_back_pressure_of_a_vertex_is_unknown_until_its_second_measurement(
    ask: Asker, vertex: str
) -> None:
    """RE-44."""
    assert ask.get(f"{vertex}/backpressure") == {"status": "deprecated"}

    def told() -> dict[str, Any] | None:
        found: dict[str, Any] = ask.get(f"{vertex}/backpressure")
        return found if found["status"] == "ok" and len(found["subtasks"]) == 2 else None

    found = wait_until(told, 150, "the next look")
    assert found["backpressureLevel"] == found["backpressure-level"]
    assert [one["subtask"] for one in found["subtasks"]] == [0, 1]
    for one in found["subtasks"]:
        shares = one["ratio"] + one["idleRatio"] + one["busyRatio"]
        assert shares == pytest.approx(1, abs=0.01)


def test_metrics_of_a_vertex_and_its_subtasks_are_listed_and_returned_by_name(
    ask: Asker, vertex: str, source: str
) -> None:
    """RE-40, RE-41."""
    wait_until(
        lambda: len(ask.get(f"{vertex}/metrics")) > len(OF_A_RUNNING_VERTEX), 150, "the next look"
    )
    known = names(ask.get(f"{vertex}/metrics"))
    of_subtask = {name.partition(".")[2] for name in known if name.startswith("0.")}
    assert of_subtask <= OF_A_RUNNING_VERTEX
    (told,) = ask.get(f"{vertex}/metrics?get=0.numRecordsIn,0.nothing,0.numRecordsIn")
    assert told["id"] == "0.numRecordsIn"
    assert int(told["value"]) > 0
    assert "0.numRecordsIn" not in names(ask.get(f"{source}/metrics"))
    assert names(ask.get(f"{vertex}/subtasks/0/metrics")) <= OF_A_RUNNING_VERTEX
    (one,) = ask.get(f"{vertex}/subtasks/1/metrics?get=accumulateBusyTimeMs")
    assert int(one["value"]) >= 0
    assert ask("GET", f"{vertex}/subtasks/9/metrics").status == 404


def test_metrics_of_subtasks_are_aggregated_as_requested(ask: Asker, vertex: str) -> None:
    """RE-41."""
    assert "numRecordsIn" in names(ask.get(f"{vertex}/subtasks/metrics"))
    (told,) = ask.get(f"{vertex}/subtasks/metrics?get=numRecordsIn,nothing")
    assert told.keys() == {"id", "min", "max", "avg", "sum", "skew"}
    assert told["min"] <= told["avg"] <= told["max"] <= told["sum"]
    (told,) = ask.get(f"{vertex}/subtasks/metrics?get=numRecordsIn&agg=max,min&subtasks=1-7")
    assert told.keys() == {"id", "min", "max"}
    assert told["min"] == told["max"], "of subtask 1 alone"
    assert ask.get(f"{vertex}/subtasks/metrics?get=numRecordsIn&subtasks=7") == []
    for query in ("agg=median", "subtasks=x", "subtasks=-1", "subtasks=1-x"):
        assert ask("GET", f"{vertex}/subtasks/metrics?{query}").status == 400, query


def test_watermarks_are_listed_only_for_subtasks_that_have_one(
    ask: Asker, vertex: str, source: str
) -> None:
    """RE-42."""
    found = wait_until(lambda: ask.get(f"{vertex}/watermarks"), 150, "a watermark")
    assert names(found) <= {"0.currentInputWatermark", "1.currentInputWatermark"}
    assert all(int(one["value"]) >= 0 for one in found)
    assert ask.get(f"{source}/watermarks") == []


def test_metrics_of_one_job_and_sums_over_jobs_are_returned(
    ask: Asker, job: str, cluster: ThreadedCluster
) -> None:
    told = ask.get(f"/jobs/{job}/metrics?get=numberOfCompletedCheckpoints,uptime,numRestarts")
    completed, uptime, restarts = (int(one["value"]) for one in told)
    assert (completed > 0, uptime > 0, restarts) == (True, True, 0)
    assert "lastCheckpointExternalPath" in names(ask.get(f"/jobs/{job}/metrics"))
    asked = f"/jobs/metrics?get=numberOfCompletedCheckpoints&agg=sum&jobs={job},{UNKNOWN}"
    (total,) = ask.get(asked)
    assert total["sum"] >= completed
    assert "lastCheckpointExternalPath" not in names(ask.get("/jobs/metrics")), "it is no number"
    assert ask.get(f"/jobs/metrics?get=uptime&jobs={UNKNOWN}") == []
    assert ask("GET", "/jobs/metrics?jobs=x").status == 400

    ended = cluster.client.submit(scripted_job(["register", "finish"]))
    ended.result()
    (told,) = ask.get(f"/jobs/{ended.job_id.hex()}/metrics?get=uptime,lastCheckpointSize")
    assert told == {"id": "uptime", "value": "0"}


def test_metrics_of_the_cluster_and_of_task_executors_are_returned(ask: Asker, job: str) -> None:
    (told,) = ask.get("/jobmanager/metrics?get=taskSlotsTotal")
    assert int(told["value"]) == ask.get("/overview")["slots-total"]
    assert ask.get("/taskmanagers/metrics?get=Status.JVM.CPU.Load") == []
    executor = ask.get("/taskmanagers")["taskmanagers"][0]["id"]
    assert ask.get(f"/taskmanagers/{executor}/metrics") == []
    assert ask("GET", "/taskmanagers/nobody/metrics").status == 404


@pytest.mark.parametrize("kind", ["metrics", "watermarks", "backpressure", "subtasks/metrics"])
def test_metrics_of_an_unknown_vertex_are_answered_with_404(
    kind: str, ask: Asker, job: str
) -> None:
    """RE-05."""
    assert ask("GET", f"/jobs/{job}/vertices/{UNKNOWN}/{kind}").status == 404
    assert ask("GET", f"/jobs/{UNKNOWN}/vertices/{UNKNOWN}/{kind}").status == 404
    assert ask("GET", f"/jobs/{job}/vertices/x/{kind}").status == 400


# --- without a cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "level"), [(0.0, "ok"), (0.1, "ok"), (0.101, "low"), (0.5, "low"), (0.501, "high")]
)
def test_back_pressure_level_changes_at_10_and_50_percent(share: float, level: str) -> None:
    """RE-44."""
    assert level_of(share) == level


def test_skew_of_a_metric_is_its_mean_deviation_in_percent_of_the_mean() -> None:
    """RE-41."""
    assert metrics_json.skew([1, 3]) == 50
    assert metrics_json.skew([0, 0]) == 0


def test_metrics_of_a_subtask_show_whether_its_source_is_paused_for_spark() -> None:
    details = job_of(execution(replace(after(1, 2, 3), held=1)), execution(after(1, 2, 3)))
    held, other = JobLook(details, {}, 1.0).subtasks(details.vertices[0])
    assert metrics_json.of_subtask(held)["isHeld"] == 1
    assert "isHeld" not in metrics_json.of_subtask(other)


def job_of(*executions: ExecutionInfo) -> JobDetails:
    vertex = VertexInfo(VERTEX, "map", len(executions), executions)
    return JobDetails(JobID(bytes(16)), "job", JobStatus.RUNNING, 0.0, None, {}, 0, (vertex,))


def execution(
    metrics: IOMetrics | None,
    *,
    subtask: int = 0,
    attempt: int = 0,
    state: ExecutionState = ExecutionState.RUNNING,
) -> ExecutionInfo:
    return ExecutionInfo(subtask, attempt, state, None, io_metrics=metrics)


def after(busy: int, back_pressured: int, idle: int, records: int | None = None) -> IOMetrics:
    return IOMetrics(records, None, None, None, busy, back_pressured, idle)


def pressure(before: JobDetails, now: JobDetails) -> dict[str, Any]:
    look = JobLook(now, JobLook(before, {}, 1.0).totals, 7.0)
    return back_pressure(look, now.vertices[0])


def test_a_vertex_is_as_back_pressured_as_its_worst_subtask() -> None:
    """RE-44."""
    none, now = after(0, 0, 0), after(600, 300, 100)
    before = job_of(execution(none), execution(none, subtask=1))
    worse = after(10, 70, 20)
    found = pressure(before, job_of(execution(now), execution(worse, subtask=1)))
    assert found == {
        "status": "ok",
        "backpressureLevel": "high",
        "end-timestamp": 7000,
        "subtasks": [
            {
                "subtask": subtask,
                "backpressureLevel": level,
                "ratio": ratio,
                "idleRatio": idle,
                "busyRatio": busy,
                "backpressure-level": level,
            }
            for subtask, level, ratio, idle, busy in (
                (0, "low", 0.3, 0.1, 0.6),
                (1, "high", 0.7, 0.2, 0.1),
            )
        ],
        "backpressure-level": "high",
    }
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (execution(None), execution(after(1, 2, 3))),
        (execution(after(1, 2, 3)), execution(None)),
        (execution(after(1, 2, 3)), execution(after(1, 2, 3))),
        (execution(after(1, 2, 3)), execution(after(2, 3, 4), attempt=1)),
        (execution(after(1, 2, 3)), execution(after(2, 3, 4), state=ExecutionState.FINISHED)),
    ],
)
def test_back_pressure_is_unknown_without_two_measurements_of_a_running_attempt(
    before: ExecutionInfo, now: ExecutionInfo
) -> None:
    assert pressure(job_of(before), job_of(now)) == {"status": "deprecated"}


def test_rates_are_computed_from_the_elapsed_time_that_the_task_has_measured() -> None:
    measured = Measured(0, 0, True, after(0, 0, 2500, records=60), after(0, 0, 500, records=20))
    assert measured.per_second(lambda it: it.records_in) == 20.0
    assert measured.per_second(lambda it: it.records_out) is None


def test_rate_is_unknown_if_the_record_count_of_a_task_has_decreased() -> None:
    """A JobMaster that knows nothing of its predecessor uses the same attempt numbers again."""
    measured = Measured(0, 0, True, after(0, 0, 2500, records=5), after(0, 0, 500, records=20))
    assert measured.per_second(lambda it: it.records_in) is None


class Looks:
    """A cluster whose job is another one at each look."""

    def __init__(self, *jobs: JobDetails) -> None:
        self._jobs = list(jobs)

    async def ask(self, question: str, call: object, timeout: float | None) -> Any:
        return self._jobs.pop(0)


@on_virtual_time
async def test_earlier_measurement_is_used_for_rates_only_for_a_limited_time() -> None:
    """Requests that share a measurement count as one."""
    jobs = [job_of(execution(after(n, 0, 0))) for n in range(4)]
    measurements = Measurements(ClusterView(Looks(*jobs), 3.0, 10.0), lambda: 0.0)

    async def before() -> IOMetrics | None:
        look = await measurements.look(JobID(bytes(16)))
        (subtask,) = look.subtasks(look.job.vertices[0])
        return subtask.before

    assert await before() is None
    await asyncio.sleep(3.1)
    assert await before() == after(0, 0, 0)
    assert await before() == after(0, 0, 0)
    await asyncio.sleep(WINDOW - 1)
    assert await before() == after(1, 0, 0)
    await asyncio.sleep(WINDOW + 1)
    assert await before() is None


@on_virtual_time
async def test_only_the_last_measurement_of_a_job_is_kept_in_memory() -> None:
    """For a job of many tasks a measurement has hundreds of megabytes."""
    jobs = [job_of(execution(after(n, 0, 0))) for n in range(3)]
    measurements = Measurements(ClusterView(Looks(*jobs), 3.0, 10.0), lambda: 0.0)
    kept = []
    for _ in range(3):
        kept.append(weakref.ref(await measurements.look(JobID(bytes(16)))))
        await asyncio.sleep(3.1)
    assert [look() is None for look in kept] == [True, True, False]
    await asyncio.sleep(WINDOW)
    assert kept[-1]() is None
