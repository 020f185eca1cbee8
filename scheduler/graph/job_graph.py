"""Defines the job graph that a user submits. It contains user code as opaque bytes."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Any

from flinkray.core.blobs import BlobKey
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.key_group_ranges import default_max_parallelism
from flinkray.core.message import message, register
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import retired, stored, with_defaults
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration


@stored("NoRestart")
@message
class NoRestart:
    """Restart strategy that never restarts: the first failure of a task fails the job."""


@stored("FixedDelayRestart")
@message
class FixedDelayRestart:
    """Restart strategy with at most ``attempts`` restarts, each after ``delay`` seconds."""

    attempts: int
    delay: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.delay < 0:
            raise ValueError(f"attempts and delay must not be negative: {self}")


@stored("FailureRateRestart")
@message
class FailureRateRestart:
    """Restart strategy that restarts after ``delay`` seconds, unless failures become too frequent:
    the job fails after more than ``max_failures_per_interval`` failures within ``interval``
    seconds."""

    max_failures_per_interval: int
    interval: float = 60.0
    delay: float = 1.0

    def __post_init__(self) -> None:
        if self.max_failures_per_interval < 1 or self.interval <= 0 or self.delay < 0:
            raise ValueError(
                f"at least 1 failure, an interval above 0, a delay not below 0, please: {self}"
            )


@stored("ExponentialDelayRestart")
@message
class ExponentialDelayRestart:
    """Restart strategy whose delays grow from failure to failure. All durations are in seconds."""

    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold: float = 3600.0
    """Time without failures after which the initial delay applies again."""
    jitter_factor: float = 0.1
    """Part of the delay by which the delay is randomly longer or shorter."""
    attempts: int | None = None
    """Largest number of restarts; None means no limit."""

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


@stored("Invokable")
@message
class Invokable:
    """The code that the subtasks of a vertex run. ``kind`` names the runtime that runs the code,
    for example ``"spark"``. ``code`` is the user's pickled function, or the key of its blob; only
    the process that runs the function unpickles it. ``configuration`` is for the runtime."""

    kind: str
    code: bytes | BlobKey
    configuration: dict[str, str] = field(default_factory=dict)


SPARK = "spark"
"""``Invokable.kind`` of a Spark stage."""

SPARK_SESSION = "flinkray.session"
"""Configuration key of a Spark invokable: the name of the session that runs the stage as a guest.
The executors belong to the session, and the stage's single slot need not have a CPU."""

EPOCHS_OF = "epochs-of"
"""Configuration key of a stream invokable that commits epochs.
Its value lists the ids of the Spark vertices that take the epochs, separated by spaces."""

MASTER_HOOK = "master-hook"
"""Configuration key of a source's invokable: set if the source has a master hook.
The source is not read until the hook is restored."""
BATCHES_OF = "batches-of"
"""Configuration key of a stream invokable with a source of micro-batches.
Its value is the id of the Spark vertex that publishes the micro-batches."""

PYTHON = "python"
"""``Invokable.kind`` of tasks that only the task processes of ``flinkray.testing`` run."""

STREAM = "stream"
"""``Invokable.kind`` of tasks that run a chain of stream operators in a task process."""

MODEL = "model"
"""``Invokable.kind`` of the replicas of a model, which answer requests of other jobs' tasks. Such a
vertex runs as many subtasks as the load needs, from ``min_parallelism`` to ``parallelism``."""

HELD_MODEL = "flinkray.model.held"
"""Configuration key of a model's invokable. Its value tells the models of a cluster apart."""

TASK_PROCESS_KINDS = frozenset({PYTHON, STREAM, MODEL})
"""Kinds that run in task processes."""

COORDINATED_KINDS = frozenset({SPARK})
"""Kinds whose subtasks are started and ended by a coordinator of the vertex.
Their slots are the bundles of one worker group."""

DEFAULT_SLOT_SHARING_GROUP = "default"


@stored("JobType")
@register
class JobType(Enum):
    """Determines when the tasks of a job run. STREAMING: all tasks run at the same time.  BATCH: a
    region of pipelined tasks runs when the blocking results that it reads are finished."""

    STREAMING = "STREAMING"
    BATCH = "BATCH"


@stored("SchedulerMode")
@register
class SchedulerMode(Enum):
    """How the scheduler treats the parallelism of the job's vertices.
    DEFAULT: the job runs with exactly the vertices' parallelism.  ADAPTIVE: the job runs with the
    parallelism that the slots allow, between each vertex's ``min_parallelism`` and ``parallelism``.
    """

    DEFAULT = "DEFAULT"
    ADAPTIVE = "ADAPTIVE"


def _without_persistent(name: str) -> str:
    """Convert a stored ResultPartitionType of version 1, which had BLOCKING_PERSISTENT: a result
    that was kept after the end of its job."""
    return "BLOCKING" if name == "BLOCKING_PERSISTENT" else name


@stored("ResultPartitionType", version=2, migrations={1: _without_persistent})
@register
class ResultPartitionType(Enum):
    """Determines when and how often consumers can read a result. PIPELINED: while the result is
    produced; PIPELINED_BOUNDED: as PIPELINED, with bounded buffers.  BLOCKING: when the result is
    finished; it can be read more than once."""

    PIPELINED = "PIPELINED"
    PIPELINED_BOUNDED = "PIPELINED_BOUNDED"
    BLOCKING = "BLOCKING"

    @property
    def is_pipelined(self) -> bool:
        """Whether producer and consumer must run at the same time."""
        return self in (ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED)


@stored("ResultMedium")
@register
class ResultMedium(Enum):
    """Determines where a result is stored. CHANNELS: in the producing processes, which send the
    result.  FILES: in Parquet files in the cluster's storage, which outlive the processes and which
    Spark can read and write."""

    CHANNELS = "CHANNELS"
    FILES = "FILES"


@stored("DistributionPattern")
@register
class DistributionPattern(Enum):
    """Determines which producers a consumer reads: all of them, or only the few that
    :mod:`flinkray.scheduler.graph.distribution` computes (POINTWISE)."""

    ALL_TO_ALL = "ALL_TO_ALL"
    POINTWISE = "POINTWISE"


def _in_channels(values: dict[str, Any]) -> dict[str, Any]:
    """Convert a stored IntermediateDataSet of version 1, when CHANNELS was the only medium."""
    return {**values, "medium": ResultMedium.CHANNELS}


@stored("IntermediateDataSet", version=2, migrations={1: _in_channels})
@message
class IntermediateDataSet:
    """A result of a vertex; subtask i produces partition i."""

    data_set_id: IntermediateDataSetID
    result_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED
    medium: ResultMedium = ResultMedium.CHANNELS


@stored("JobEdge", version=2, migrations={1: with_defaults})
@message
class JobEdge:
    """An edge: a vertex reads a data set of another vertex."""

    source: IntermediateDataSetID
    pattern: DistributionPattern
    ship_strategy: str = ""
    """Shown to users (``HASH``, ``REBALANCE``, ...); if empty, the pattern's name is shown."""
    operator_id: str = ""
    """Id of the chained operator that produces the data; empty if unknown."""
    output_tag: str | None = None
    """Tag of a side output; None for the main output."""
    input_index: int = 0
    """Index of the reading operator's input that the edge feeds."""


retired("MasterFormat")


def _without_master_format(values: dict[str, Any]) -> dict[str, Any]:
    """Drop the field ``master_format`` of a stored JobVertex of version 4."""
    return {name: value for name, value in values.items() if name != "master_format"}


@stored(
    "JobVertex",
    version=5,
    migrations={**dict.fromkeys((1, 2, 3), with_defaults), 4: _without_master_format},
)
@message
class JobVertex:
    """A chain of operators that runs as ``parallelism`` subtasks, each in a slot of
    ``slot_profile``."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    slot_profile: ResourceProfile
    """Profile of the slots of the slot-sharing group; equal for all vertices of the group."""
    invokable: Invokable
    max_parallelism: int | None = None
    """Configured number of key groups.
    None: the number is derived from the parallelism, or taken from the restored state."""
    min_parallelism: int = 1
    """Lower bound of the parallelism in an adaptive job; ``parallelism`` is the upper bound."""
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP
    co_location_group: str | None = None
    """Subtasks of the group's vertices with the same index share a slot; None: no group."""
    results: tuple[IntermediateDataSet, ...] = ()
    inputs: tuple[JobEdge, ...] = ()
    operators: tuple[VertexOperator, ...] = ()
    """Operators of a chain of stream operators, head first; checkpoints contain their state."""
    non_parallel: bool = False
    """Whether the vertex can have only one subtask, whatever the parallelism of other vertices."""
    derived_max_parallelism: int | None = None
    """Max parallelism of a rescaled elastic job that has none configured.
    Set if the new parallelism would derive another number, so that state keeps its key groups;
    otherwise None."""
    has_global_formats: bool = False
    """Whether the vertex has output formats with work to do once for all subtasks: before the
    job's first task begins, or when all tasks are finished."""

    @property
    def key_groups(self) -> int:
        """Number of key groups according to the graph. A restored state may have another number,
        which then counts, unless the program configures the max parallelism."""
        return (
            self.max_parallelism
            or self.derived_max_parallelism
            or default_max_parallelism(self.parallelism)
        )


@stored("ParallelismBounds")
@message
class ParallelismBounds:
    """Lower and upper bound of the parallelism of one vertex in an elastic job."""

    vertex_id: JobVertexID
    lower: int
    upper: int


@message
class ParallelismRange:
    """Lower and upper bound of the parallelism, not tied to a vertex."""

    lower: int
    upper: int


def _same_use(name: str) -> str:
    """Return the stored name of a JobFileUse of version 1 unchanged; version 2 only added
    archives."""
    return name


@stored("JobFileUse", version=2, migrations={1: _same_use})
@register
class JobFileUse(Enum):
    """Purpose of a file that is shipped with a job."""

    IMPORT = "import"
    """User code imports from the file."""
    CACHE = "cache"
    """User code gets the file by its name."""
    ARCHIVE = "archive"
    """User code gets the archive by its name.
    The archive is also unpacked in the tasks' working directory, under its name."""


@stored("JobFile")
@message
class JobFile:
    """A file or directory of the client that each task of the job can access as a copy."""

    name: str
    """Name under which user code gets the file.
    For imports the file's own name; for an archive a relative path."""
    use: JobFileUse
    content: bytes | BlobKey
    """Content of the file; for a directory a zip archive of its content."""
    is_directory: bool = False
    is_executable: bool = False


@stored("AttachedClient")
@message
class AttachedClient:
    """A client that the job depends on: the job is canceled when the client's heartbeats stop."""

    name: str
    """Process and host of the client, for users."""
    heartbeat_timeout: float
    """Seconds without a heartbeat after which the client counts as lost."""
    reason: str
    """Why the job ends with the client, for users."""

    def __post_init__(self) -> None:
        if not self.heartbeat_timeout > 0:
            raise ValueError(f"a client must have time to be heard of: {self}")


def _without_configuration(values: dict[str, Any]) -> dict[str, Any]:
    """Convert a stored JobGraph of version 1, when the cluster's options applied to all jobs."""
    return {**values, "configuration": {}}


@stored("JobGraph", version=3, migrations={1: _without_configuration, 2: with_defaults})
@message
class JobGraph:
    """A job as its client submits it: vertices, files, and settings for the whole job."""

    job_id: JobID
    name: str
    vertices: tuple[JobVertex, ...]
    restart_strategy: RestartStrategy | None = None
    """Restart strategy of the job; None: the option ``restart-strategy.type`` decides."""
    job_type: JobType = JobType.STREAMING
    scheduler_mode: SchedulerMode = SchedulerMode.DEFAULT
    restart_all: bool = False
    """Whether any failure restarts the whole job, not only the regions concerned."""
    files: tuple[JobFile, ...] = ()
    client: AttachedClient | None = None
    """Client that the job ends with; None: the job does not depend on a client."""
    configuration: dict[str, str] = field(default_factory=dict)
    """Options of :mod:`flinkray.core.job_options`, which override those of the cluster."""
    checkpoints: CheckpointConfiguration | None = None
    """Configuration of checkpoints; None: neither checkpoints nor savepoints are taken."""

    @property
    def text(self) -> str:
        """``job <id> (<name>)``, for log lines and errors."""
        return f"job {self.job_id} ({self.name})"

    @property
    def blobs(self) -> tuple[BlobKey, ...]:
        """Keys of the blobs that the graph refers to; the job owns these blobs."""
        codes = [vertex.invokable.code for vertex in self.vertices]
        codes += [file.content for file in self.files]
        return tuple(dict.fromkeys(code for code in codes if isinstance(code, BlobKey)))

    @property
    def has_coordinated_vertices(self) -> bool:
        """Whether the job has a Spark stage, whose subtasks are run by a coordinator (the Spark
        driver)."""
        return any(vertex.invokable.kind in COORDINATED_KINDS for vertex in self.vertices)

    @property
    def has_stream_sources(self) -> bool:
        """Whether any of the vertices is a streaming source, which has an enumerator."""
        return any(v.invokable.kind == STREAM and not v.inputs for v in self.vertices)

    @property
    def has_master_hook(self) -> bool:
        """Whether a source has a master hook. False if the job takes no checkpoints."""
        hooked = any(MASTER_HOOK in v.invokable.configuration for v in self.vertices)
        return hooked and self.checkpoints is not None

    @property
    def has_stream_coordinator(self) -> bool:
        """Whether the job needs a StreamCoordinator, for its sources or its output formats."""
        return self.has_stream_sources or any(v.has_global_formats for v in self.vertices)


@stored("VertexOperator")
@message
class VertexOperator:
    """An operator that is chained into a vertex."""

    operator_id: str
    """Id derived from the uid.  Without a uid: derived from the operator's position in the program.
    """
    name: str
    uid: str | None = None
    """The uid that the program's author has set; None if not set."""
    uid_hash: str | None = None
    """Id that the author has set, or None; a restore looks for state under this id first."""

    def __str__(self) -> str:
        return operator_text(self.name, self.uid)


def operator_text(name: str, uid: str | None) -> str:
    """Return the name and uid of an operator as text for users."""
    return f"{name!r} (uid {uid!r})" if uid is not None else f"{name!r} (without a uid)"
