"""What operator coordinators are called, are asked for, and tell their JobMaster.

Scheduler, JobMaster and the coordinators' processes speak of a coordinator by its
:class:`CoordinatorID`.  Each message that a coordinator tells is one of the types here; what it
means is decided by :mod:`flinkray.scheduler.job.operator_coordinators`.
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
from flinkray.scheduler.graph.job_graph import DistributionPattern, MasterFormat
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkProgress,
    SparkResult,
)
from flinkray.scheduler.shared.tasks import PartitionLocations


@register
class CoordinatorKind(Enum):
    """What a coordinator does, and for what it does it."""

    SPARK_DRIVER = "spark-driver"
    """Runs one attempt of a Spark vertex; belongs to the region of that vertex."""
    SOURCE_ENUMERATORS = "source-enumerators"
    """Divides what the job's sources read; belongs to the job."""
    MASTER_FORMATS = "master-formats"
    """Prepares and commits for input and output formats; belongs to the job."""


@message
class CoordinatorID:
    """One attempt of one coordinator.  Attempts are counted from 0, on from those that an earlier
    JobMaster has noted."""

    kind: CoordinatorKind
    vertex_id: JobVertexID | None
    """None: the coordinator belongs to the job."""
    attempt_number: int

    def __str__(self) -> str:
        of = "" if self.vertex_id is None else f" of {self.vertex_id.short()}"
        return f"{self.kind.value}{of} #{self.attempt_number}"


@message
class CoordinatorInput:
    """A finished result that a coordinated vertex reads.

    *locations* says where each partition is and which attempt has produced it.  A result that the
    producer's coordinator has written (a Spark stage's Parquet files) is known by
    ``locations.coordinator_attempt``.
    """

    data_set_id: IntermediateDataSetID
    producer_vertex_id: JobVertexID
    producer_kind: str
    """``Invokable.kind`` of the producer."""
    pattern: DistributionPattern
    locations: PartitionLocations


@message
class CoordinatorResult:
    """A result that the coordinator of a vertex writes as a whole."""

    graph_id: ExecutionGraphID
    data_set_id: IntermediateDataSetID


# --- any coordinator ------------------------------------------------------------------------------


@message
class CoordinatorFailure:
    """The user's code in it, or the coordinator itself, has failed; its process may still live."""

    error_type: str
    text: str
    """One line for people."""
    traceback: str = ""
    is_user_error: bool = False
    """True: the user's code raised or returned the wrong thing.  A restart would not help if the
    same code fails again, but it counts as any failure for the restart strategy."""
    suppress_restarts: bool = False
    """True: the same would happen again whatever the restart strategy (the function returned the
    wrong type, cannot be rebuilt on the cluster); the job fails at once."""
    missing_partitions: tuple[ResultPartitionID, ...] = ()
    """What was to be read and is not there (any more)."""

    def __post_init__(self) -> None:
        """User code's texts may be of any length, or none that can be sent."""
        for name in ("error_type", "text", "traceback"):
            object.__setattr__(self, name, sendable(getattr(self, name)))


# --- Spark drivers --------------------------------------------------------------------------------


@message
class SparkExecutors:
    """The executors that are registered with Spark now (the whole list)."""

    registered: tuple[SparkExecutorInfo, ...]
    missing: tuple[int, ...] = ()
    """Subtasks whose executors were registered once, and are not now."""


# --- master formats -------------------------------------------------------------------------------


@message
class InitializeFormat:
    """Asked of the coordinator: have a vertex's format prepare and make its splits."""

    vertex_id: JobVertexID
    master_format: MasterFormat
    parallelism: int


@message
class FinalizeFormat:
    """Asked of the coordinator: all tasks are finished, have a vertex's format commit."""

    vertex_id: JobVertexID
    master_format: MasterFormat
    parallelism: int
    generation: int
    """To be told with the answer: what was asked before a restart is not waited for any more."""


FormatRequest = InitializeFormat | FinalizeFormat


@message
class FormatInitialized:
    """An InitializeFormat is carried out."""

    vertex_id: JobVertexID
    splits: tuple[InputSplit, ...]


@message
class FormatFinalized:
    """A FinalizeFormat is carried out."""

    vertex_id: JobVertexID
    generation: int


@message
class FormatFailed:
    """What the user's format raised; *generation* is 0 for an InitializeFormat."""

    vertex_id: JobVertexID
    generation: int
    text: str
    traceback: str | None = None


CoordinatorEvent = (
    CoordinatorFailure
    | SparkExecutors
    | SparkProgress
    | SparkResult
    | FormatInitialized
    | FormatFinalized
    | FormatFailed
)
