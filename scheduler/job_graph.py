"""The job graph: what a user submits.  User code is in it as opaque bytes."""

from __future__ import annotations

from dataclasses import field

from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile


@message
class NoRestart:
    """The first failure of a task fails the job."""


@message
class FixedDelayRestart:
    """At most ``attempts`` restarts, each after ``delay`` seconds."""

    attempts: int
    delay: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.delay < 0:
            raise ValueError(f"attempts and delay must not be negative: {self}")


@message
class FailureRateRestart:
    """Restarts, each after ``delay`` seconds, as long as no more than so many failures fall into an
    interval of so many seconds."""

    max_failures_per_interval: int
    interval: float = 60.0
    delay: float = 1.0

    def __post_init__(self) -> None:
        if self.max_failures_per_interval < 1 or self.interval <= 0 or self.delay < 0:
            raise ValueError(
                f"at least 1 failure, an interval above 0, a delay not below 0, please: {self}"
            )


@message
class ExponentialDelayRestart:
    """Restarts after delays that grow from failure to failure; all durations in seconds."""

    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold: float = 3600.0
    """So long after the last restart without a failure, the delay is the initial one again."""
    jitter_factor: float = 0.1
    """Part of the delay by which it may be longer or shorter, at random."""
    attempts: int | None = None
    """At most so many restarts; None: without end."""

    def __post_init__(self) -> None:
        if not 0 < self.initial_backoff <= self.max_backoff:
            raise ValueError(f"0 < initial_backoff <= max_backoff must hold: {self}")
        if self.backoff_multiplier < 1 or not 0 <= self.jitter_factor <= 1:
            raise ValueError(
                f"backoff_multiplier must be 1 or more, jitter_factor from 0 to 1: {self}"
            )
        if self.reset_backoff_threshold < 0 or (self.attempts is not None and self.attempts < 0):
            raise ValueError(f"reset_backoff_threshold and attempts must not be negative: {self}")


RestartStrategy = NoRestart | FixedDelayRestart | FailureRateRestart | ExponentialDelayRestart


@message
class Invokable:
    """What the subtasks of a vertex run.

    ``kind`` says which runtime runs it (``"spark"``); ``code`` is the user's function, pickled, and
    is unpickled only by the process that runs it; ``configuration`` is the runtime's.
    """

    kind: str
    code: bytes
    configuration: dict[str, str] = field(default_factory=dict)


SPARK = "spark"
"""``Invokable.kind`` of a Spark stage."""


@message
class JobVertex:
    """An operator: ``parallelism`` subtasks, each in a slot of ``slot_profile``."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    slot_profile: ResourceProfile
    invokable: Invokable


@message
class JobGraph:
    """A job as submitted."""

    job_id: JobID
    name: str
    vertices: tuple[JobVertex, ...]
    restart_strategy: RestartStrategy | None = None
    """None: the cluster's default (``restart-strategy.type``)."""

    @property
    def needs_dedicated_workers(self) -> bool:
        """Whether the slots must come from a worker group of the job's own (Spark stages)."""
        return any(vertex.invokable.kind == SPARK for vertex in self.vertices)


def validate(job_graph: JobGraph) -> None:
    """Refuse a job that could never run.

    Raises:
        JobSubmissionError: the first thing that is wrong, and how to mend it.
    """
    problem = _problem_of(job_graph)
    if problem is not None:
        raise JobSubmissionError(job_graph.job_id, problem)


def _problem_of(job_graph: JobGraph) -> str | None:
    if not job_graph.vertices:
        return f"{job_graph.name!r} has no vertices, there is nothing to run: add at least one"
    seen: dict[JobVertexID, str] = {}
    for vertex in job_graph.vertices:
        if vertex.vertex_id in seen:
            return (
                f"the vertices {seen[vertex.vertex_id]!r} and {vertex.name!r} have the same id, "
                f"{vertex.vertex_id}: give each its own"
            )
        seen[vertex.vertex_id] = vertex.name
        problem = _problem_of_vertex(vertex)
        if problem is not None:
            return problem
    first, *others = job_graph.vertices
    for other in others:
        if (other.parallelism, other.slot_profile) != (first.parallelism, first.slot_profile):
            return (
                f"the Spark stages {first.name!r} ({first.parallelism} x {first.slot_profile}) and "
                f"{other.name!r} ({other.parallelism} x {other.slot_profile}) share the job's "
                "slots: give them the same parallelism and slot profile, or make them two jobs"
            )
    return None


def _problem_of_vertex(vertex: JobVertex) -> str | None:
    if vertex.parallelism < 1:
        return f"vertex {vertex.name!r} has parallelism {vertex.parallelism}: it must be at least 1"
    if vertex.slot_profile.cpu <= 0:
        return (
            f"vertex {vertex.name!r} asks for {vertex.slot_profile.cpu:g} CPU per slot: "
            "it must be more than 0"
        )
    if vertex.invokable.kind != SPARK:
        return (
            f"vertex {vertex.name!r} is of kind {vertex.invokable.kind!r}, which this version "
            f"cannot run: the kind it knows is {SPARK!r}"
        )
    return None
