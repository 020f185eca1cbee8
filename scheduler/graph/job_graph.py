"""The job graph: what a user submits.  User code is in it as opaque bytes."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Any

from flinkray.core.blobs import BlobKey
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.key_groups import default_max_parallelism
from flinkray.core.message import message, register
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import stored, with_defaults
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.vertex_operator import VertexOperator


@stored("NoRestart")
@message
class NoRestart:
    """The first failure of a task fails the job."""


@stored("FixedDelayRestart")
@message
class FixedDelayRestart:
    """At most ``attempts`` restarts, each after ``delay`` seconds."""

    attempts: int
    delay: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.delay < 0:
            raise ValueError(f"attempts and delay must not be negative: {self}")


@stored("FailureRateRestart")
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


@stored("ExponentialDelayRestart")
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


@stored("Invokable")
@message
class Invokable:
    """What the subtasks of a vertex run.

    ``kind`` says which runtime runs it (``"spark"``); ``code`` is the user's function, pickled, and
    is unpickled only by the process that runs it, or the key of a blob with that function;
    ``configuration`` is the runtime's.
    """

    kind: str
    code: bytes | BlobKey
    configuration: dict[str, str] = field(default_factory=dict)


SPARK = "spark"
"""``Invokable.kind`` of a Spark stage."""

SPARK_SESSION = "flinkray.session"
"""In the configuration of a Spark invokable: the name of the session whose guest the stage is.  Its
executors are the session's, and its one slot need not have a CPU."""

EPOCHS_OF = "epochs-of"
"""In the configuration of a stream invokable with committers of epochs: the Spark vertices that
take those, by their ids between spaces."""

BATCHES_OF = "batches-of"
"""In the configuration of a stream invokable with a source of micro-batches: the Spark vertex that
publishes those."""

PYTHON = "python"
"""``Invokable.kind`` of tasks that run a Python function in their slot's task process."""

STREAM = "stream"
"""``Invokable.kind`` of tasks that run a chain of stream operators there."""

TASK_PROCESS_KINDS = frozenset({PYTHON, STREAM})
"""Kinds that task processes run."""

COORDINATED_KINDS = frozenset({SPARK})
"""Kinds whose subtasks a coordinator of the vertex starts and ends, in slots that are the bundles
of one worker group."""

DEFAULT_SLOT_SHARING_GROUP = "default"


@stored("JobType")
@register
class JobType(Enum):
    """STREAMING: all tasks run at the same time.  BATCH: a region of pipelined tasks runs when the
    blocking results that it reads are finished."""

    STREAMING = "STREAMING"
    BATCH = "BATCH"


@stored("SchedulerMode")
@register
class SchedulerMode(Enum):
    """DEFAULT: the job runs with its vertices' parallelism or not at all.  ADAPTIVE: with what the
    slots allow between each vertex's ``min_parallelism`` and ``parallelism``."""

    DEFAULT = "DEFAULT"
    ADAPTIVE = "ADAPTIVE"


@stored("ResultPartitionType")
@register
class ResultPartitionType(Enum):
    """How a result is handed on: while it is produced (PIPELINED; PIPELINED_BOUNDED with bounded
    buffers), or when it is finished (BLOCKING, which can be read more than once).  What a finished
    job leaves BLOCKING_PERSISTENT outlives it, until the cluster is told to release it."""

    PIPELINED = "PIPELINED"
    PIPELINED_BOUNDED = "PIPELINED_BOUNDED"
    BLOCKING = "BLOCKING"
    BLOCKING_PERSISTENT = "BLOCKING_PERSISTENT"

    @property
    def is_pipelined(self) -> bool:
        """Whether producer and consumer must run at the same time."""
        return self in (ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED)

    @property
    def is_persistent(self) -> bool:
        """Whether it is the cluster's when the job has finished."""
        return self is ResultPartitionType.BLOCKING_PERSISTENT


@stored("ResultMedium")
@register
class ResultMedium(Enum):
    """Where a result is.  CHANNELS: in the processes that produce it, which hand it on.  FILES:
    Parquet files in the cluster's storage; they outlive the processes, and Spark can read and write
    them."""

    CHANNELS = "CHANNELS"
    FILES = "FILES"


@stored("DistributionPattern")
@register
class DistributionPattern(Enum):
    """Which producers a consumer reads; see flinkray.scheduler.graph.distribution."""

    ALL_TO_ALL = "ALL_TO_ALL"
    POINTWISE = "POINTWISE"


def _in_channels(values: dict[str, Any]) -> dict[str, Any]:
    """Version 1 knew no other medium."""
    return {**values, "medium": ResultMedium.CHANNELS}


@stored("IntermediateDataSet", version=2, migrations={1: _in_channels})
@message
class IntermediateDataSet:
    """A result of a vertex; subtask i produces its partition i."""

    data_set_id: IntermediateDataSetID
    result_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED
    medium: ResultMedium = ResultMedium.CHANNELS


@stored("JobEdge", version=2, migrations={1: with_defaults})
@message
class JobEdge:
    """A vertex reads a data set of another one."""

    source: IntermediateDataSetID
    pattern: DistributionPattern
    ship_strategy: str = ""
    """For people (``HASH``, ``REBALANCE``, ...); empty: the pattern's name."""
    operator_id: str = ""
    """Of the chained operator whose output it is; empty: it is not known."""
    output_tag: str | None = None
    """Of a side output."""
    input_index: int = 0
    """Which input of the reading operator it feeds."""


@stored("MasterFormat")
@message
class MasterFormat:
    """Work for a vertex that is done once per job, outside its tasks.

    Before the job is scheduled the code is asked to prepare and to divide the input into splits
    (an input format), and after all tasks are finished to commit (an output format).  It is user
    code: the JobMaster has it run in a process of its own.
    """

    code: bytes
    makes_splits: bool = False
    finalizes: bool = False


@stored("JobVertex", version=4, migrations=dict.fromkeys((1, 2, 3), with_defaults))
@message
class JobVertex:
    """Chained operators: ``parallelism`` subtasks, each in a slot of ``slot_profile``."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    slot_profile: ResourceProfile
    """Of the slots of its slot-sharing group: the same for all vertices of the group."""
    invokable: Invokable
    max_parallelism: int | None = None
    """Number of key groups, as somebody has set it; None: it is derived, and may become that of
    the state which the job is restored from."""
    min_parallelism: int = 1
    """With fewer subtasks an adaptive job does not run; ``parallelism`` is the upper bound."""
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP
    co_location_group: str | None = None
    """Subtask i of each vertex of the group runs in one and the same slot."""
    results: tuple[IntermediateDataSet, ...] = ()
    inputs: tuple[JobEdge, ...] = ()
    master_format: MasterFormat | None = None
    operators: tuple[VertexOperator, ...] = ()
    """Of a chain of stream operators, the head first: whose state checkpoints have."""
    non_parallel: bool = False
    """It can have one subtask only, whatever parallelism others have."""
    derived_max_parallelism: int | None = None
    """Of an elastic job that was resized: where none is set, and the parallelism would give another
    one by now; so that state stays where it is."""

    @property
    def key_groups(self) -> int:
        """As far as the graph says: the state that the job is restored from may have others, unless
        the max parallelism is set."""
        return (
            self.max_parallelism
            or self.derived_max_parallelism
            or default_max_parallelism(self.parallelism)
        )


@stored("ParallelismBounds")
@message
class ParallelismBounds:
    """With how few, and with how many subtasks an elastic job's vertex runs."""

    vertex_id: JobVertexID
    lower: int
    upper: int


@message
class ParallelismRange:
    """The same, whatever the vertex."""

    lower: int
    upper: int


def _same_use(name: str) -> str:
    """Version 1 knew no archives."""
    return name


@stored("JobFileUse", version=2, migrations={1: _same_use})
@register
class JobFileUse(Enum):
    """What a file is for that travels with a job."""

    IMPORT = "import"
    """User code imports from it."""
    CACHE = "cache"
    """User code asks for it by its name."""
    ARCHIVE = "archive"
    """The same, and it is unpacked, under its name, in the working directory of tasks."""


@stored("JobFile")
@message
class JobFile:
    """A file or directory of the client that the job's tasks have a copy of."""

    name: str
    """Under which it is asked for; of what is imported, the file's own; of an archive, a relative
    path."""
    use: JobFileUse
    content: bytes | BlobKey
    """Of a directory: a zip archive of what is in it."""
    is_directory: bool = False
    is_executable: bool = False


@stored("AttachedClient")
@message
class AttachedClient:
    """A client that its job ends with: the job is cancelled when nothing is heard of it."""

    name: str
    """For people: which process, and where."""
    heartbeat_timeout: float
    """Seconds of silence after which it is lost."""
    reason: str
    """Why the job ends with it, for people."""

    def __post_init__(self) -> None:
        if not self.heartbeat_timeout > 0:
            raise ValueError(f"a client must have time to be heard of: {self}")


def _without_configuration(values: dict[str, Any]) -> dict[str, Any]:
    """Version 1: the cluster's options held for all jobs."""
    return {**values, "configuration": {}}


@stored("JobGraph", version=3, migrations={1: _without_configuration, 2: with_defaults})
@message
class JobGraph:
    """A job as submitted."""

    job_id: JobID
    name: str
    vertices: tuple[JobVertex, ...]
    restart_strategy: RestartStrategy | None = None
    """None: what the configuration says (``restart-strategy.type``)."""
    job_type: JobType = JobType.STREAMING
    scheduler_mode: SchedulerMode = SchedulerMode.DEFAULT
    restart_all: bool = False
    """True: any failure restarts the whole job, not only the regions that it concerns."""
    files: tuple[JobFile, ...] = ()
    client: AttachedClient | None = None
    """None: the job goes on without any."""
    configuration: dict[str, str] = field(default_factory=dict)
    """Options of :mod:`flinkray.core.job_options`, over those of the cluster."""
    checkpoints: CheckpointConfiguration | None = None
    """None: no checkpoints are taken, and no savepoints."""

    @property
    def blobs(self) -> tuple[BlobKey, ...]:
        """What the graph refers to; the blobs' owner is the job."""
        codes = [vertex.invokable.code for vertex in self.vertices]
        codes += [file.content for file in self.files]
        return tuple(dict.fromkeys(code for code in codes if isinstance(code, BlobKey)))

    @property
    def has_coordinated_vertices(self) -> bool:
        """Whether any of its vertices is run by a coordinator (Spark stages)."""
        return any(vertex.invokable.kind in COORDINATED_KINDS for vertex in self.vertices)

    @property
    def has_stream_sources(self) -> bool:
        """Whether any of its vertices is a source of streams, which has an enumerator."""
        return any(v.invokable.kind == STREAM and not v.inputs for v in self.vertices)
