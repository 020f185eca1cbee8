"""Requests Spark sessions that jobs share, and compares a request with the existing session.

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
from flinkray.user_code import dump_function

HELD_SESSION = "flinkray.session.held"
"""Key for the session's name in the configuration of its own stage's Spark invokable."""
_EXECUTORS = "flinkray.session.executors"
_CPU = "flinkray.session.cpu"
_MEMORY = "flinkray.session.memory"

GUEST_PROFILE = ResourceProfile(0.0, 256 * 2**20)
"""Resources of the slot of a guest's Python process, which waits while Spark computes elsewhere."""


class SparkSessionMismatchError(ConfigurationError):
    """Raised if the existing session of this name differs from the request; the text names each
    difference."""


class SparkSessionEndedError(FlinkRayError):
    """Raised if the session could not be opened, or takes no more jobs."""

    retryable = True


class HeldSession:
    """Returned by a stage's function to tell the driver that it must keep its session open for
    guests."""


def hold_session(session: Any) -> HeldSession:
    """The user function of a session's own stage."""
    return HeldSession()


def guest_configuration(
    name: str, executors: int, profile: ResourceProfile, properties: Mapping[str, str]
) -> dict[str, str]:
    """Return the configuration entries of a stage that is to run in the shared session *name*.

    Args:
        executors: number of the session's executors, each of *profile*.
        properties: Spark properties.

    Raises:
        ConfigurationError: no session can have this name, or the executors are invalid.
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
    """Remove the entries of :func:`guest_configuration` from a configuration, and return them as a
    request for a session. None: there are none."""
    name = configuration.pop(SPARK_SESSION, None)
    if name is None:
        return None
    profile = ResourceProfile(float(configuration.pop(_CPU)), int(configuration.pop(_MEMORY)))
    return SparkSessionRequest(name, int(configuration.pop(_EXECUTORS)), profile)


def session_graph(guest: SparkStageDescriptor) -> JobGraph:
    """Create the job that opens the session that *guest* requests, and keeps it open. The job is
    not restarted after a failure: the next stage that needs the session starts another job."""
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
    """Return the name of the threads in a session's JVM that serve the guest with this tag."""
    return f"<{tag}>"  # with a closing bracket, as a tag may be the prefix of another


def session_held_by(graph: JobGraph) -> str | None:
    """Return the name of the session that the job keeps open. None: the job is none of
    :func:`session_graph`."""
    names = (vertex.invokable.configuration.get(HELD_SESSION) for vertex in graph.vertices)
    return next((name for name in names if name is not None), None)


def check_session(
    guest: SparkStageDescriptor, access: SparkSessionAccess, is_modifiable: Callable[[str], bool]
) -> dict[str, str | None]:
    """Compare the requested session with the existing one.

    Args:
        is_modifiable: returns whether a session can set a property for itself.

    Returns:
        Properties that the guest's own session must set, by name. A value of None: unset the
        property, so that Spark's default applies.

    Raises:
        SparkSessionMismatchError: the sessions differ otherwise; the text names each difference.
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
