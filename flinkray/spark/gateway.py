"""The gateways between a Spark driver and the JobMaster whose stage it runs."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.blobs import BlobKey
from flinkray.core.ids import JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.scheduler.shared.spark_reports import (
    SparkExecutorInfo,
    SparkFailure,
    SparkProgress,
    SparkResult,
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


class SparkDriverGateway(FencedRpcGateway):
    """A Spark driver: one process, one SparkSession, one attempt of one stage; fenced by the
    JobMasterId of the JobMaster that has started it."""

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
