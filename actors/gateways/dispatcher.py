"""What a Dispatcher answers: to clients and to JobMasters."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.messages import (
    JobMasterToDispatcherRegistrationSuccess,
)
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.core.ids import (
    IntermediateDataSetID,
    JobID,
    JobMasterId,
)
from flinkray.core.kv_states import KvStateLocation
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    ask_timeout,
    oneway,
    runs_to_completion,
)
from flinkray.rpc.liveness.registration import RegistrationFailure, RegistrationRejection
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds, ParallelismRange
from flinkray.scheduler.reports.job_info import (
    ClusterNumbers,
    ClusterOverview,
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
    JobResult,
)
from flinkray.scheduler.reports.job_settings import JobSettings
from flinkray.scheduler.resources.cluster_partitions import ClusterDataSet
from flinkray.scheduler.shared.states import JobStatus


class DispatcherGateway(FencedRpcGateway):
    """Takes jobs, starts a JobMaster for each, answers clients; fenced by DispatcherId."""

    @abstractmethod
    @runs_to_completion
    async def submit_job(self, job_graph: JobGraph) -> None:
        """Accept a job; returns when it is stored and will run whatever dies next.

        Raises:
            DuplicateJobSubmissionError, JobSubmissionError.
        """

    @abstractmethod
    @runs_to_completion
    async def ensure_spark_session(self, job_graph: JobGraph) -> JobID:
        """The job that is the Spark session of that name, which is begun if there is none.

        Args:
            job_graph: of the session, if it must be begun.

        Raises:
            JobSubmissionError: it cannot be.
        """

    @abstractmethod
    async def list_jobs(self) -> tuple[JobOverview, ...]:
        """Running and ended jobs, oldest first, each with the numbers of its tasks only."""

    @abstractmethod
    async def request_job_status(self, job_id: JobID) -> JobStatus: ...

    @abstractmethod
    async def request_job_progress(self, job_id: JobID) -> JobProgress: ...

    @abstractmethod
    async def request_job_exceptions(self, job_id: JobID) -> tuple[ExceptionEntry, ...]: ...

    @abstractmethod
    async def request_job_details(self, job_id: JobID) -> JobDetails:
        """All about it, up to megabytes; who wants less asks for that."""

    @abstractmethod
    async def request_job_settings(self, job_id: JobID) -> JobSettings:
        """How the job is run, or was; the Dispatcher asks nobody else for it.

        Raises:
            JobNotFoundError: there is no such job, or it has ended in a version that did not keep
                this.
        """

    @abstractmethod
    @ask_timeout(None)
    async def request_job_result(self, job_id: JobID) -> JobResult:
        """Answers when the job has ended and its resources are back."""

    @abstractmethod
    @runs_to_completion
    async def cancel_job(self, job_id: JobID) -> None:
        """Begin cancelling (a second time is fine).  Raises JobNotFoundError, JobStateError."""

    @abstractmethod
    async def heartbeat_from_client(self, job_ids: tuple[JobID, ...]) -> None:
        """The client that these jobs end with lives.  Jobs that are not known, and those that go on
        without a client, are left out."""

    @abstractmethod
    @runs_to_completion
    async def resize_job(
        self,
        job_id: JobID,
        bounds: tuple[ParallelismBounds, ...],
        others: ParallelismRange | None = None,
    ) -> None:
        """Run some vertices of an elastic job within other bounds; returns when that is stored.

        *others*: for all that are not named in *bounds* and can have more than one subtask.

        Raises:
            JobNotFoundError.
            JobStateError: it is not possible, or another change of the job is under way; nothing
                has changed.
        """

    @abstractmethod
    @ask_timeout(None)
    async def take_snapshot(self, job_id: JobID, request: SnapshotRequest) -> SnapshotTaken:
        """Have a savepoint or a checkpoint taken, once for each trigger id, whichever JobMasters
        and Dispatchers die meanwhile; answered when it is complete, and, if it is to end the job,
        when it is stored that it has finished.

        Raises:
            JobNotFoundError.
            JobStateError: the job has ended otherwise.
            CheckpointError: it is not taken.
            StopWithSavepointError: it is complete, but the job did not finish.
            JobError, CheckpointStorageError: the directory cannot be used.
        """

    @abstractmethod
    @ask_timeout(None)
    @runs_to_completion
    async def dispose_savepoint(self, path: str) -> None:
        """Delete a savepoint, by its directory or its metadata.

        Raises:
            CheckpointStorageError: there is none, or it cannot be deleted.
            JobStateError: a job that runs needs it.
        """

    @abstractmethod
    async def list_cluster_data_sets(self) -> tuple[ClusterDataSet, ...]:
        """What finished jobs have left, as the TaskExecutors have told by their heartbeats."""

    @abstractmethod
    async def release_cluster_data_set(self, data_set_id: IntermediateDataSetID) -> None:
        """Have all TaskExecutors release what they have of it.  Idempotent."""

    @abstractmethod
    async def request_cluster_numbers(self) -> ClusterNumbers:
        """How many TaskExecutors and slots there are."""

    @abstractmethod
    async def request_cluster_overview(self) -> ClusterOverview: ...

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def shut_down_cluster(self) -> None:
        """Cancel all jobs and end every process and placement group of the cluster."""

    @abstractmethod
    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        """Where a queryable state of a job is, as its JobMaster knows it.

        Raises:
            KvStateJobNotFoundError: the job is not known, or has ended.
            UnknownKvStateLocationError: nobody holds a state of that name at present.
        """

    @abstractmethod
    async def request_source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        """The JobMaster that has started the coordinator of the job's sources, whose process bears
        its id; None: that is not known at present.

        Raises:
            JobNotFoundError: there is no such job, or it has ended.
        """

    # from the ResourceManager

    @abstractmethod
    async def request_job_leader(self, job_id: JobID) -> JobMasterId | None:
        """The JobMaster that runs the job; None: none does at present, or none is known yet.

        Raises:
            JobNotFoundError: the job is not to be run (any more).
        """

    # from JobMasters

    @abstractmethod
    async def register_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, job_master_address: str
    ) -> JobMasterToDispatcherRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        """A JobMaster presents itself, at its start and to every new Dispatcher.

        Rejected when another attempt leads the job by now; the rejected one ends itself.
        """

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, overview_number: int
    ) -> None:
        """*overview_number*: overviews of the job with a smaller one hold no more."""

    @abstractmethod
    @oneway
    async def job_overview_changed(
        self, job_id: JobID, job_master_id: JobMasterId, overview_number: int
    ) -> None:
        """The same, at once.  Who wants to know what has changed asks for it."""

    @abstractmethod
    async def job_reached_terminal_state(
        self, job_id: JobID, job_master_id: JobMasterId, result: JobResult, details: JobDetails
    ) -> None:
        """A JobMaster is done, its tasks have ended.  Answered when the result is stored; when the
        JobMaster has then ended itself, what the job had is taken back."""
