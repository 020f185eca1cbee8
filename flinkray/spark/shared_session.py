"""A Spark session that jobs share: what a stage asks of one, and what it must find there.

See docs/design/0069-shared-spark-sessions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    SPARK,
    SPARK_SESSION,
    Invokable,
    JobGraph,
    JobVertex,
    NoRestart,
)
from flinkray.spark.gateway import SparkSessionAccess, SparkSessionRequest, SparkStageDescriptor
from flinkray.spark.user_code import dump_function

HELD_SESSION = "flinkray.session.held"
"""In the configuration of the Spark invokable of a session's own stage: its name."""
_EXECUTORS = "flinkray.session.executors"
_CPU = "flinkray.session.cpu"
_MEMORY = "flinkray.session.memory"

GUEST_PROFILE = ResourceProfile(0.0, 256 * 2**20)
"""Of the slot of a guest's Python process.  It waits for Spark, which computes elsewhere."""


class SparkSessionMismatchError(ConfigurationError):
    """The session of that name is another one than the stage asks for: ask for the same, or give
    the session another name."""


class SparkSessionEndedError(FlinkRayError):
    """The session could not be opened, or takes no job any more."""

    retryable = True


class HeldSession:
    """What the function of a session's own stage returns: keep the session open for guests."""


def hold_session(session: Any) -> HeldSession:
    """The function of a session's own stage."""
    return HeldSession()


def guest_configuration(
    name: str, executors: int, profile: ResourceProfile, properties: Mapping[str, str]
) -> dict[str, str]:
    """Of the invokable of a stage that is to run in a session.

    Args:
        executors: of the session, each of *profile*.
        properties: Spark's.

    Raises:
        ConfigurationError: nothing can have this name.
    """
    if not name or not name.isprintable() or "," in name:
        raise ConfigurationError(
            f"a Spark session cannot be named {name!r}: take printable characters without commas"
        )
    if executors < 1:
        raise ConfigurationError(f"a Spark session has at least one executor, not {executors!r}")
    if profile.cpu <= 0:
        raise ConfigurationError(f"executors of a Spark session must have CPUs, not {profile}")
    if profile.extended:
        raise ConfigurationError(
            f"executors of a Spark session have CPUs and memory, not {profile}"
        )
    return {
        **properties,
        SPARK_SESSION: name,
        _EXECUTORS: str(executors),
        _CPU: repr(profile.cpu),
        _MEMORY: str(profile.memory),
    }


def take_request(configuration: dict[str, str]) -> SparkSessionRequest | None:
    """Removes from the configuration of an invokable what says that it runs in a session."""
    name = configuration.pop(SPARK_SESSION, None)
    if name is None:
        return None
    profile = ResourceProfile(float(configuration.pop(_CPU)), int(configuration.pop(_MEMORY)))
    return SparkSessionRequest(name, int(configuration.pop(_EXECUTORS)), profile)


def session_graph(guest: SparkStageDescriptor) -> JobGraph:
    """A job that is the session which a stage asks for.  One that fails is not restarted: whoever
    needs it next starts another one."""
    request = guest.session
    assert request is not None
    name = f"Spark session {request.name}"
    invokable = Invokable(
        SPARK, dump_function(hold_session), {**guest.configuration, HELD_SESSION: request.name}
    )
    vertex = JobVertex(
        JobVertexID.generate(), name, request.executors, request.slot_profile, invokable
    )
    return JobGraph(JobID.generate(), name, (vertex,), NoRestart())


def thread_name(tag: str) -> str:
    """Of the threads of a session's JVM that do what a guest has asked for."""
    return f"<{tag}>"  # with an end, as one tag may begin like another


def session_held_by(graph: JobGraph) -> str | None:
    """The name of the session that a job is; None: it is another job."""
    names = (vertex.invokable.configuration.get(HELD_SESSION) for vertex in graph.vertices)
    return next((name for name in names if name is not None), None)


def check_session(
    guest: SparkStageDescriptor, access: SparkSessionAccess, is_modifiable: Callable[[str], bool]
) -> dict[str, str | None]:
    """Compare what a stage asks for with the session that there is.

    Args:
        is_modifiable: whether a session can set a property for itself.

    Returns:
        The properties that the guest's own session must set; None: to Spark's default.

    Raises:
        SparkSessionMismatchError: names each difference.
    """
    request = guest.session
    assert request is not None
    differences = [
        f"{what} {there} instead of {wanted}"
        for what, wanted, there in (
            ("executors:", request.executors, access.executors),
            ("slots of", f"({request.slot_profile})", f"({access.slot_profile})"),
        )
        if wanted != there
    ]
    to_set: dict[str, str | None] = {}
    for key in sorted(guest.configuration.keys() | access.configuration.keys()):
        asked, there = guest.configuration.get(key), access.configuration.get(key)
        if asked == there:
            continue
        if is_modifiable(key):
            to_set[key] = asked
        else:
            differences.append(f"{key}: {_shown(there)} instead of {_shown(asked)}")
    if differences:
        raise SparkSessionMismatchError(
            f"the Spark session {request.name!r} has {'; '.join(differences)}: ask for what it "
            "has, or give the session another name"
        )
    return to_set


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)
