"""validate: what cannot run is refused with one sentence."""

from __future__ import annotations

import pytest

from flinkray.core.errors import JobSubmissionError
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.job_graph import Invokable, JobGraph, JobVertex, validate
from tests.scheduler.builders import JOB, LARGE, SMALL, VERTEX, spark_job, spark_vertex


def refusal(job_graph: JobGraph) -> str:
    with pytest.raises(JobSubmissionError) as caught:
        validate(job_graph)
    assert caught.value.job_id == JOB
    return caught.value.text


def test_job_with_one_or_more_equal_stages_is_accepted() -> None:
    validate(spark_job())
    validate(spark_job(spark_vertex(1), spark_vertex(2)))


def test_job_without_vertices_is_refused() -> None:
    assert "'a job' has no vertices" in refusal(JobGraph(JOB, "a job", ()))


@pytest.mark.parametrize("parallelism", [0, -1])
def test_parallelism_below_one_is_refused(parallelism: int) -> None:
    text = refusal(spark_job(spark_vertex(parallelism=parallelism)))
    assert text == f"vertex 'stage' has parallelism {parallelism}: it must be at least 1"


def test_slot_without_cpu_is_refused() -> None:
    text = refusal(spark_job(spark_vertex(profile=ResourceProfile(0.0))))
    assert text == "vertex 'stage' asks for 0 CPU per slot: it must be more than 0"


def test_two_vertices_of_one_id_are_refused() -> None:
    text = refusal(spark_job(spark_vertex(1, name="one"), spark_vertex(1, name="two")))
    assert "'one' and 'two' have the same id" in text


@pytest.mark.parametrize("other", [spark_vertex(2, parallelism=3), spark_vertex(2, profile=LARGE)])
def test_spark_stages_that_cannot_share_their_slots_are_refused(other: JobVertex) -> None:
    assert "give them the same parallelism" in refusal(spark_job(spark_vertex(1), other))


def test_unknown_kind_of_vertex_is_refused() -> None:
    vertex = JobVertex(VERTEX, "v", 1, SMALL, Invokable("magic", b""))
    assert "of kind 'magic', which this version cannot run" in refusal(spark_job(vertex))
