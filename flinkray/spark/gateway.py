"""Messages and gateways between a Spark driver and the JobMaster whose stage it runs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import field

from flinkray.core.blobs import BlobKey
from flinkray.core.ids import JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    RpcGateway,
    ask_timeout,
    oneway,
    runs_to_completion,
)


@message
class SparkStageDescriptor:
    """All a Spark driver needs to run one attempt of one Spark stage (a job vertex)."""

    job_id: JobID
    job_name: str
    vertex_id: JobVertexID
    attempt_number: int
    listener_address: str
    """Address of the JobMaster (a :class:`SparkStageListenerGateway`)."""
    job_master_id: JobMasterId
    worker_group: WorkerGroupId
    """The placement group of the job's slots; bundle i is the slot of executor i."""
    parallelism: int
    """Number of executors = number of bundles."""
    slot_profile: ResourceProfile
    code: bytes | BlobKey
    """The user's function, pickled, or the key of a blob with that; the blob's owner is the job."""
    configuration: dict[str, str]
    """The user's Spark properties."""
    result_location: str
    """Directory (URI or path) for the Parquet files of a returned DataFrame."""
    blob_server: str | None = None
    """Address; needed where ``code`` is a key."""


@message
class SparkExecutorInfo:
    """One executor of a stage, as Ray and Spark see it."""

    subtask_index: int
    executor_id: str
    """Spark's id."""
    actor_id: str
    """Ray's id of the executor's actor, hex."""
    node_id: str
    pid: int
    bundle_index: int


@message
class SparkStageProgress:
    """Spark's own count of one Spark stage (of a Spark job that the user's function runs)."""

    stage_id: int
    name: str
    num_tasks: int
    active_tasks: int
    completed_tasks: int
    failed_tasks: int


@message
class SparkProgress:
    """What Spark is doing: running stages, and totals since the session began."""

    active_stages: tuple[SparkStageProgress, ...] = ()
    completed_stages: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0


@message
class SparkResult:
    """What the user's function returned: nothing, or a DataFrame that now lies as Parquet."""

    location: str | None
    num_rows: int | None
    schema_json: str | None
    """Spark's own JSON form of the schema."""


@message
class SparkFailure:
    """Why a stage attempt failed."""

    error_type: str
    text: str
    """One line for people."""
    traceback: str
    is_user_error: bool
    """True: the user's function raised or returned the wrong thing; a restart would not help if the
    same function fails again, but it counts as any failure for the restart strategy."""
    suppress_restarts: bool = False
    """True: the same would happen again whatever the restart strategy (the function returned the
    wrong type, cannot be rebuilt on the cluster); the job fails at once."""
    metadata: dict[str, str] = field(default_factory=dict)


class SparkDriverGateway(RpcGateway):
    """A Spark driver: one process, one SparkSession, one attempt of one stage."""

    @abstractmethod
    async def request_heartbeat(self) -> None:
        """Answer, whatever Spark does at the moment."""

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def stop(self) -> None:
        """Cancel what runs, end the session, JVM and Python workers; then the process ends."""


class SparkStageListenerGateway(FencedRpcGateway):
    """The side of the JobMaster that Spark drivers report to; fenced by its JobMasterId.

    All but the two ends are tells; order is that of the driver's events.
    """

    @abstractmethod
    @oneway
    async def spark_executors_changed(
        self,
        vertex_id: JobVertexID,
        attempt_number: int,
        registered: tuple[SparkExecutorInfo, ...],
    ) -> None:
        """The executors that are registered with Spark now (the whole list)."""

    @abstractmethod
    @oneway
    async def spark_progress(
        self, vertex_id: JobVertexID, attempt_number: int, progress: SparkProgress
    ) -> None:
        """A few times a second at the most, when something changed."""

    @abstractmethod
    async def spark_stage_finished(
        self, vertex_id: JobVertexID, attempt_number: int, result: SparkResult
    ) -> None:
        """The user's function has returned and its result is complete."""

    @abstractmethod
    async def spark_stage_failed(
        self, vertex_id: JobVertexID, attempt_number: int, failure: SparkFailure
    ) -> None:
        """The attempt has failed; the driver ends itself afterwards."""
