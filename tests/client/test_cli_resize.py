"""``flinkray resize``: what it asks for, prints and refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.client.cli import execute
from flinkray.client.cluster_client import ClusterClient
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.graph.job_graph import ParallelismBounds, ParallelismRange
from flinkray.scheduler.reports.job_info import VertexInfo
from tests.client.scripted_cluster import World, job_graph

UNKNOWN = "0123456789abcdef" * 2
A, B = (JobVertexID(bytes([i]) * 16) for i in range(2))

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")


@pytest.fixture
def job_id(world: World, client: ClusterClient) -> JobID:
    """Its vertices are called ``a`` and ``b = 1``."""
    job = job_graph()
    client.submit(job)
    vertices = (VertexInfo(A, "a", 1, ()), VertexInfo(B, "b = 1", 1, ()))
    world.jobs[job.job_id] = replace(world.jobs[job.job_id], vertices=vertices)
    return job.job_id


def run(client: ClusterClient, *line: str) -> int:
    """One in a test: it closes the client."""
    return execute(["resize", *line], connect=lambda *_: client)


@pytest.mark.parametrize(
    ("wanted", "bounds", "others", "text"),
    [
        (["4"], (), ParallelismRange(1, 4), "1 to 4 subtasks of each vertex"),
        (["2..2"], (), ParallelismRange(2, 2), "2 subtasks of each vertex"),
        (
            ["b = 1=2..8", "3"],
            (ParallelismBounds(B, 2, 8),),
            ParallelismRange(1, 3),
            "2 to 8 subtasks of 'b = 1', 1 to 3 subtasks of each other vertex",
        ),
    ],
    ids=["all", "exactly", "one and the others"],
)
def test_resize_sends_the_given_parallelism_bounds_of_the_vertices(
    wanted: list[str],
    bounds: tuple[ParallelismBounds, ...],
    others: ParallelismRange | None,
    text: str,
    world: World,
    client: ClusterClient,
    job_id: JobID,
    capsys: Output,
) -> None:
    """DI-20."""
    assert run(client, str(job_id), *wanted) == 0
    assert world.resized == [(job_id, bounds, others)]
    out = capsys.readouterr().out
    assert out == f"job {job_id} goes on with {text} as soon as it has the slots\n"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([], "Missing argument"),
        (["many"], "'many' is neither a number of subtasks nor a range as 2..4"),
        (["0"], "'0': at least 1"),
        (["4..2"], "'4..2': at least 1, and the smaller number first"),
        (["=2"], "'=2' names no vertex"),
        (["2", "3"], "BOUNDS without a VERTEX can be given once"),
        (["a=2", "a=3"], "'a' is named twice"),
    ],
)
def test_resize_refuses_malformed_parallelism_bounds_with_exit_code_2(
    wanted: list[str], text: str, capsys: Output
) -> None:
    assert execute(["resize", UNKNOWN, *wanted]) == 2
    assert text in capsys.readouterr().err


def test_resize_refuses_an_unknown_vertex_and_lists_the_vertices_of_the_job(
    world: World, client: ClusterClient, job_id: JobID, capsys: Output
) -> None:
    assert run(client, str(job_id), "c=2") == 2
    assert "0 vertices named 'c'; it has 'a', 'b = 1'" in capsys.readouterr().err
    assert world.resized == []


def test_resize_of_an_unknown_job_exits_with_4(client: ClusterClient, capsys: Output) -> None:
    assert run(client, UNKNOWN, "2") == 4
    assert f"job {UNKNOWN}: not known to this cluster" in capsys.readouterr().err
