"""``flinkray top``: what it makes of two looks, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flinkray.client.cli import execute
from flinkray.client.cli_top import Look, as_table, rates
from flinkray.client.cluster_client import ClusterClient
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import JobStatus
from tests.client.scripted_cluster import World, job_graph


def _look(at: float, metrics: IOMetrics | None) -> Look:
    vertex = VertexInfo(JobVertexID(bytes(16)), "sums", 2, (), io_metrics=metrics, measured=1)
    vertex = replace(vertex, tasks={"RUNNING": 2})
    job = JobDetails(JobID(bytes(16)), "flights", JobStatus.RUNNING, 10.0, None, {}, 0, (vertex,))
    return Look(at, (job,))


def test_top_computes_rates_from_the_difference_of_two_samples() -> None:
    before = _look(5.0, IOMetrics(100, 40, 0, 0, 1000, 2000, 3000))
    (one,) = rates(before, _look(7.0, IOMetrics(300, 50, 0, 0, 1500, 2250, 3250)))
    assert (one.records_in, one.records_out) == (100.0, 5.0)
    assert (one.busy, one.back_pressured) == (0.5, 0.25)
    assert (one.running, one.parallelism) == (2, 2)


@pytest.mark.parametrize("before", [None, _look(5.0, None), _look(5.0, IOMetrics(*[900] * 7))])
def test_top_shows_no_rates_in_its_first_sample_and_after_a_task_restart(
    before: Look | None,
) -> None:
    (one,) = rates(before, _look(7.0, IOMetrics(300, 50, 0, 0, 100, 100, 100)))
    assert one.records_in is one.records_out is one.busy is one.back_pressured is None


def test_top_cuts_a_long_vertex_name_to_the_terminal_width() -> None:
    before, now = IOMetrics(0, None, 0, None, 0, 0, 0), IOMetrics(5000, None, 0, None, 10, 0, 30)
    (one,) = rates(_look(0.0, before), _look(2.0, now))
    heads, row = as_table([replace(one, vertex="long name " * 20)], 80).splitlines()
    assert len(row) <= 80
    assert "…" in row
    assert row.split()[-5:] == ["2/2", "2,500", "-", "25%", "0%"]
    assert heads.split() == ["JOB", "VERTEX", "RUNNING", "IN/S", "OUT/S", "BUSY", "BACK-PRESSURED"]


def test_top_shows_how_many_subtasks_of_a_source_are_paused_because_spark_is_behind() -> None:
    before = IOMetrics(0, None, 0, None, 0, 0, 0)
    now = IOMetrics(5000, None, 0, None, 10, 0, 30, held=2)
    (one,) = rates(_look(0.0, before), _look(2.0, now))
    assert one.held == 2
    assert as_table([one], 120).splitlines()[1].endswith("0%, 2 held")


def test_top_with_json_prints_a_line_for_each_sample(
    world: World,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    job = job_graph("flights")
    client.submit(job)
    vertex = VertexInfo(JobVertexID(bytes(16)), "sums", 2, ())
    world.jobs[job.job_id] = replace(world.jobs[job.job_id], vertices=(vertex,))
    line = ["top", "--json", "--count", "2", "--interval", "0.1"]
    assert execute(line, connect=lambda *_: client) == 0
    looks = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [[one["vertex"] for one in look] for look in looks] == [["sums"], ["sums"]]


def test_top_of_a_job_ends_when_the_job_has_ended(
    world: World,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    job = job_graph("flights")
    client.submit(job)
    ended = replace(world.jobs[job.job_id], status=JobStatus.FINISHED, end_time=2.0)
    world.jobs[job.job_id] = ended
    assert execute(["top", job.job_id.hex()], connect=lambda *_: client) == 0
    assert f"job {job.job_id} has ended: FINISHED" in capsys.readouterr().err


def test_top_says_when_no_job_is_running(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    line = ["top", "--count", "1", "--interval", "0.1"]
    assert execute(line, connect=lambda *_: client) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["no job is running"]
