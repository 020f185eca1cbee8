"""What a stage asks of a Spark session that jobs share, and what it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.client import spark_job
from flinkray.core.errors import ConfigurationError, JobSubmissionError
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.gateway import SparkSessionAccess, SparkSessionRequest, SparkStageDescriptor
from flinkray.spark.session_requests import (
    GUEST_PROFILE,
    HeldSession,
    SparkSessionMismatchError,
    check_session,
    guest_configuration,
    hold_session,
    session_graph,
    session_held_by,
    take_request,
)
from flinkray.user_code import load_function

SLOT = ResourceProfile(1.0, 2**30)
PARTITIONS = "spark.sql.shuffle.partitions"
HOST = {"spark.host": "raydp"}


def guest(configuration: dict[str, str]) -> SparkStageDescriptor:
    return SparkStageDescriptor(
        job_id=JobID.generate(),
        job_name="job",
        vertex_id=JobVertexID.generate(),
        attempt_number=0,
        listener_address="JobMaster/job",
        job_master_id=JobMasterId.generate(),
        graph_id=ExecutionGraphID.generate(),
        worker_group=WorkerGroupId("group"),
        parallelism=1,
        slot_profile=ResourceProfile(0.0, 2**28),
        code=b"",
        configuration=configuration,
        result_location="/results",
        session=SparkSessionRequest("shared", 2, SLOT),
    )


def access(
    configuration: dict[str, str], executors: int = 2, profile: ResourceProfile = SLOT
) -> SparkSessionAccess:
    return SparkSessionAccess(1, "secret", 2, "/log", executors, profile, configuration, "tag")


def is_modifiable(key: str) -> bool:
    return key.startswith("spark.sql.")


def test_request_for_a_shared_session_is_read_and_removed_from_the_configuration() -> None:
    configuration = guest_configuration("shared", 2, SLOT, HOST)
    assert take_request(configuration) == SparkSessionRequest("shared", 2, SLOT)
    assert configuration == HOST
    assert take_request(configuration) is None


@pytest.mark.parametrize("name", ["", "a,b", "a\nb"])
def test_session_name_that_cannot_be_a_spark_tag_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be named"):
        guest_configuration(name, 1, SLOT, {})


def test_request_for_a_session_without_executors_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one executor"):
        guest_configuration("shared", 0, SLOT, {})


def test_request_for_executors_without_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must have CPUs"):
        guest_configuration("shared", 1, ResourceProfile(0.0, 2**30), {})


def test_job_of_a_shared_session_has_the_requested_number_and_size_of_executors() -> None:
    graph = session_graph(guest(HOST))
    validate(graph)
    (vertex,) = graph.vertices
    assert (vertex.parallelism, vertex.slot_profile) == (2, SLOT)
    assert session_held_by(graph) == "shared"
    code = vertex.invokable.code
    assert isinstance(code, bytes)
    assert isinstance(load_function(code)(None), HeldSession)


def test_stage_without_a_cpu_is_accepted_only_in_a_shared_session() -> None:
    graph = spark_job(hold_session, memory="1g", session="shared")
    (vertex,) = graph.vertices
    assert (vertex.parallelism, vertex.slot_profile) == (1, GUEST_PROFILE)
    alone = replace(vertex, invokable=replace(vertex.invokable, configuration={}))
    with pytest.raises(JobSubmissionError, match="must be more than 0"):
        validate(replace(graph, vertices=(alone,)))


def test_changeable_setting_of_a_shared_session_is_set_or_reset_for_each_stage() -> None:
    """A setting that the job which began the session had set for itself is reset."""
    other = "spark.sql.ansi.enabled"
    to_set = check_session(
        guest({**HOST, PARTITIONS: "7"}), access({**HOST, other: "true"}), is_modifiable
    )
    assert to_set == {PARTITIONS: "7", other: None}


@pytest.mark.parametrize(
    ("there", "difference"),
    [
        (access(HOST, executors=3), "executors: 3 instead of 2"),
        (access(HOST, profile=SLOT.times(2)), r"slots of \(2 CPU, 2g memory\) instead of"),
        (access({"spark.host": "standalone"}), "spark.host: 'standalone' instead of 'raydp'"),
        (access({**HOST, "spark.jars": "a.jar"}), "spark.jars: 'a.jar' instead of nothing"),
    ],
)
def test_session_that_differs_in_a_fixed_setting_is_refused_with_the_difference(
    there: SparkSessionAccess, difference: str
) -> None:
    with pytest.raises(SparkSessionMismatchError, match=difference):
        check_session(guest(HOST), there, is_modifiable)
