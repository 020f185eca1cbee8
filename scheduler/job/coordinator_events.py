"""Defines the messages between a JobMaster and its operator coordinators. Scheduler, JobMaster and
the coordinators' processes identify a coordinator by its :class:`CoordinatorID`. Each message from
a coordinator has one of the types in this module;
:mod:`flinkray.scheduler.job.operator_coordinators` decides what it leads to.
"""

from __future__ import annotations

from enum import Enum

from flinkray.core.error_text import sendable
from flinkray.core.ids import (
    ExecutionGraphID,
    IntermediateDataSetID,
    JobVertexID,
    ResultPartitionID,
)
from flinkray.core.message import message, register
from flinkray.core.recurring_errors import ProgramError
from flinkray.scheduler.graph.job_graph import DistributionPattern
from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkProgress,
    SparkResult,
)
from flinkray.scheduler.shared.tasks import PartitionLocations


@register
class CoordinatorKind(Enum):
    """Kinds of operator coordinators."""

    SPARK_DRIVER = "spark-driver"
    """Runs one attempt of a Spark vertex; belongs to the region of this vertex."""
    SOURCE_ENUMERATORS = "source-enumerators"
    """Divides the input of the job's sources into splits, and prepares and finishes the outputs of
    output formats; belongs to the job."""


@message
class CoordinatorID:
    """Identifies an attempt of an operator coordinator. Attempt numbers start at 0, or go on from
    the number in an earlier JobMaster's notes."""

    kind: CoordinatorKind
    vertex_id: JobVertexID | None
    """Vertex of the coordinator; None if the coordinator belongs to the job."""
    attempt_number: int

    def __str__(self) -> str:
        of = "" if self.vertex_id is None else f" of {self.vertex_id.short()}"
        return f"{self.kind.value}{of} #{self.attempt_number}"


@message
class CoordinatorInput:
    """A finished result that a coordinated vertex (a Spark stage) reads. *locations* says where
    each partition is and which attempt has produced it. If a Spark stage has written the result as
    Parquet files, ``locations.coordinator_attempt`` identifies the result."""

    data_set_id: IntermediateDataSetID
    producer_vertex_id: JobVertexID
    producer_kind: str
    """``Invokable.kind`` of the producer."""
    pattern: DistributionPattern
    locations: PartitionLocations


@message
class CoordinatorResult:
    """Identifies a result of a vertex that the vertex's coordinator, not its subtasks, writes."""

    graph_id: ExecutionGraphID
    data_set_id: IntermediateDataSetID


# --- any coordinator ------------------------------------------------------------------------------


@message
class CoordinatorFailure:
    """Reports that a coordinator, or the user's code in it, has failed. Its process may still be
    alive."""

    error_type: str
    text: str
    """One line for users."""
    traceback: str = ""
    is_user_error: bool = False
    """Whether the user's code raised an error or returned a wrong value.
    A restart does not help if the same code fails again, but the failure counts like any other for
    the restart strategy."""
    suppress_restarts: bool = False
    """Whether the job fails at once, whatever the restart strategy.
    Set if a restart would fail in the same way (for example, the function returned the wrong type,
    or cannot be rebuilt on the cluster)."""
    missing_partitions: tuple[ResultPartitionID, ...] = ()
    """Partitions that the coordinator was to read and that do not exist (any more)."""
    program_error: ProgramError | None = None
    """Identifies the error, to find out whether the next attempt ends with the same error."""

    def __post_init__(self) -> None:
        """Make the texts sendable, because texts from user code may be too long or unencodable."""
        for name in ("error_type", "text", "traceback"):
            object.__setattr__(self, name, sendable(getattr(self, name)))


# --- Spark drivers --------------------------------------------------------------------------------


@message
class SparkExecutors:
    """Reports all executors that are registered with Spark now."""

    registered: tuple[SparkExecutorInfo, ...]
    missing: tuple[int, ...] = ()
    """Subtasks whose executors were registered before and are not registered now."""


# --- the StreamCoordinator ------------------------------------------------------------------------


@message
class GlobalFormatsCall:
    """Asks the StreamCoordinator to prepare or to finish the outputs of all output formats."""

    is_end: bool
    """Whether to finish the outputs, because all tasks are finished. False: to prepare them."""
    restarts: int
    """Number of restarts of the job. A repeated call with the same number does nothing."""
    parallelism: tuple[tuple[JobVertexID, int], ...]
    """(vertex, its parallelism) for each vertex with such formats."""


@message
class GlobalFormatsCalled:
    """Reports that the StreamCoordinator has carried out a GlobalFormatsCall."""

    call: GlobalFormatsCall


CoordinatorEvent = (
    CoordinatorFailure | SparkExecutors | SparkProgress | SparkResult | GlobalFormatsCalled
)
