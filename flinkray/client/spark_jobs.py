"""Builds job graphs of one Spark stage from a user's function, and checks Spark stages.

Without the checks a stage's driver would find the errors, only when the job has its slots.
"""

from __future__ import annotations

from collections.abc import Mapping

from flinkray.core.config import WrittenConfiguration, values_of
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.resources import ResourceProfile, parse_memory_size, slot_resources
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    Invokable,
    JobGraph,
    JobVertex,
    RestartStrategy,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.environment import JAVA_HOME_OPTION
from flinkray.spark.executor_memory import split_memory
from flinkray.spark.session_requests import GUEST_PROFILE, guest_configuration
from flinkray.spark.stage_code import SparkFunction
from flinkray.spark.stage_properties import refuse_owned
from flinkray.user_code import dump_function


def spark_job(
    function: SparkFunction,
    *,
    name: str | None = None,
    parallelism: int = 1,
    cpu: float = 1,
    memory: int | str = "1g",
    spark_conf: Mapping[str, object] | None = None,
    session: str | None = None,
    restart_strategy: RestartStrategy | None = None,
    configuration: WrittenConfiguration | Mapping[str, str] | None = None,
    job_id: JobID | None = None,
) -> JobGraph:
    """Make a job of one Spark stage.

    Args:
        function: is given a SparkSession in which the job's slots are the executors; returns a
            DataFrame (the job's result) or None. It is pickled here, with everything that it refers
            to.
        name: name of the job; None: the function's own.
        parallelism: number of slots = number of Spark executors.
        cpu: cores of each slot.
        memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
        spark_conf: Spark properties; properties that flinkray sets itself are refused.
        session: name of a Spark session that all jobs of the cluster with this name share. Its
            executors are as many and as large as given here, and stay when the job ends. None: the
            job has executors of its own.
        restart_strategy: None: the configuration's.
        configuration: options of the job, over those of the cluster: ``restart-strategy.*``,
            ``task.cancellation.*``.
        job_id: None: a new one.

    Raises:
        ConfigurationError, JobSubmissionError: an argument is not acceptable; the text names it.
        UserCodeError: the function cannot be sent to the cluster.
    """
    code = dump_function(function)
    label = name or getattr(function, "__name__", None) or type(function).__name__
    profile, conf = slot_profile(cpu, memory), spark_properties(spark_conf)
    check_spark_stage(profile, conf)
    if session is not None:
        conf = guest_configuration(session, parallelism, profile, conf)
        parallelism, profile = 1, GUEST_PROFILE
    vertex = JobVertex(
        JobVertexID.generate(), label, parallelism, profile, Invokable(SPARK, code, conf)
    )
    graph = JobGraph(
        job_id or JobID.generate(),
        label,
        (vertex,),
        restart_strategy,
        configuration=values_of(configuration),
    )
    validate(graph)
    return graph


def slot_profile(cpu: float, memory: int | str) -> ResourceProfile:
    """Return the resources of a slot. Raises ConfigurationError if no slot can have them."""
    try:
        return slot_resources(cpu, parse_memory_size(memory))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"a slot of cpu={cpu!r}, memory={memory!r}: {error}") from error


def spark_properties(conf: Mapping[str, object] | None) -> dict[str, str]:
    """Return Spark properties with their values as texts in Spark's form."""
    return {key: _text(value) for key, value in (conf or {}).items()}


def _text(value: object) -> str:
    """Return the text of a property's value in Spark's form: booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_spark_stage(profile: ResourceProfile, properties: Mapping[str, str]) -> None:
    """Check the slots and properties of a Spark stage.

    Raises:
        ConfigurationError: a property cannot be set for a stage, or no executor fits into a slot of
            *profile*.
    """
    refuse_owned({key: value for key, value in properties.items() if key != JAVA_HOME_OPTION})
    split_memory(profile, properties.get("spark.executor.memoryOverhead"))
