"""From a function to a job graph."""

from __future__ import annotations

from typing import Any

import pytest

import flinkray
from flinkray.core.errors import ConfigurationError, FlinkRayError, JobSubmissionError
from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import SPARK, FixedDelayRestart
from flinkray.user_code import UserCodeError, load_function


def pipeline(spark: Any) -> Any:
    return spark


def test_job_has_one_spark_vertex_with_a_slot_profile_and_the_function() -> None:
    job = flinkray.spark_job(
        pipeline,
        parallelism=3,
        cpu=2,
        memory="1.5g",
        spark_conf={"spark.sql.shuffle.partitions": 8, "spark.ui.enabled": False},
        restart_strategy=FixedDelayRestart(2),
    )
    (vertex,) = job.vertices
    assert (job.name, vertex.name, vertex.parallelism) == ("pipeline", "pipeline", 3)
    assert vertex.slot_profile == ResourceProfile(2, 3 * 2**29)
    assert vertex.invokable.kind == SPARK
    assert vertex.invokable.configuration == {
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
    }
    code = vertex.invokable.code
    assert isinstance(code, bytes)
    assert load_function(code)("a session") == "a session"
    assert job.restart_strategy == FixedDelayRestart(2)
    assert job.has_coordinated_vertices


def test_spark_job_has_the_given_name_and_id_or_a_new_id() -> None:
    job_id = JobID(b"a job of a test.")
    job = flinkray.spark_job(pipeline, name="flights of 2013", job_id=job_id)
    assert (job.job_id, job.name) == (job_id, "flights of 2013")
    assert flinkray.spark_job(pipeline).job_id != flinkray.spark_job(pipeline).job_id


@pytest.mark.parametrize(
    ("arguments", "error_type", "text"),
    [
        ({"parallelism": 0}, JobSubmissionError, "parallelism"),
        ({"parallelism": -1}, JobSubmissionError, "parallelism"),
        ({"memory": "1 parsec"}, ConfigurationError, "1 parsec"),
        ({"memory": None}, ConfigurationError, "memory=None"),
        ({"cpu": -1}, ConfigurationError, "cpu=-1"),
        ({"cpu": float("inf")}, ConfigurationError, "cpu must be a number from 0 to 1000000"),
        ({"cpu": 0}, JobSubmissionError, "CPU"),
        ({"memory": "500m"}, ConfigurationError, "must be at least 682.7m|at least 68"),
        ({"spark_conf": {"spark.executor.cores": 2}}, ConfigurationError, "spark.executor.cores"),
        ({"spark_conf": {"executor.cores": 2}}, ConfigurationError, "is no Spark property"),
        (
            {"memory": "1g", "spark_conf": {"spark.executor.memoryOverhead": "700m"}},
            ConfigurationError,
            "too small for a Spark executor",
        ),
    ],
)
def test_spark_job_refuses_invalid_arguments_with_an_error_that_names_them(
    arguments: dict[str, Any], error_type: type[FlinkRayError], text: str
) -> None:
    with pytest.raises(error_type, match=text):
        flinkray.spark_job(pipeline, **arguments)


def test_spark_job_refuses_a_pipeline_that_is_no_function() -> None:
    with pytest.raises(UserCodeError, match="'SELECT 1'"):
        flinkray.spark_job("SELECT 1")  # type: ignore[arg-type]


def test_public_names_of_flinkray_exist_and_are_listed_by_dir() -> None:
    for name in flinkray.__all__:
        assert getattr(flinkray, name) is not None
        assert name in dir(flinkray)
    with pytest.raises(AttributeError, match="no_such_name"):
        flinkray.no_such_name  # noqa: B018
