"""The job graph: what a user submits.  User code is in it as opaque bytes."""

from __future__ import annotations

from dataclasses import field

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


RestartStrategy = NoRestart | FixedDelayRestart


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
