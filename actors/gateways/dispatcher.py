"""The gateway of the Dispatcher, which clients and JobMasters call."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.messages import (
    JobMasterToDispatcherRegistrationSuccess,
)
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.core.ids import (
    JobID,
    JobMasterId,
)
from flinkray.core.kv_states import KvStateLocation, KvStatePlace
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
    JobSettings,
    ModelInfo,
)
from flinkray.scheduler.shared.states import JobStatus


class DispatcherGateway(FencedRpcGateway):
    """Accepts jobs, starts a JobMaster for each, and answers clients. Fenced by DispatcherId."""

    @abstractmethod
    @runs_to_completion
    async def submit_job(self, job_graph: JobGraph) -> None:
        """Accept a job. Returns when the job is stored. From then on the job runs even if this
        Dispatcher dies.

        Raises DuplicateJobSubmissionError or JobSubmissionError if the job is not accepted.
        """

    @abstractmethod
    @runs_to_completion
    async def ensure_spark_session(self, job_graph: JobGraph) -> JobID:
        """Return the id of the job that is the Spark session named in *job_graph*.
        Starts the session if there is none.

        Args:
            job_graph: the graph of the session, used if the session must be started.

        Raises:
            JobSubmissionError: the session cannot be started.
        """

    @abstractmethod
    @runs_to_completion
    async def ensure_model(self, user: JobID, job_graph: JobGraph) -> JobID:
        """Return the id of the job that runs the model's replicas. If no job runs the same model,
        the graph is submitted. The job ends when all jobs that have asked for it have ended.
        *user*: the job that asks.

        Raises:
            JobNotFoundError: the job *user* has ended.
            JobSubmissionError: the graph cannot run.
        """

    @abstractmethod
    async def find_replicas(self, user: JobID, model: JobID) -> tuple[KvStatePlace, ...]:
        """Return where the replicas of the job *model* are now, for the job *user*.

        Raises:
            JobNotFoundError: one of the jobs has ended, or is about to.
        """

    @abstractmethod
    async def list_jobs(self) -> tuple[JobOverview, ...]:
        """Return an overview of each running or ended job, oldest first. An overview has the
        numbers of tasks in each state, but no single tasks."""

    @abstractmethod
    async def list_models(self) -> tuple[ModelInfo, ...]:
        """Return the models whose replicas run or start, oldest first."""

    @abstractmethod
    async def request_job_status(self, job_id: JobID) -> JobStatus: ...

    @abstractmethod
    async def request_job_progress(self, job_id: JobID) -> JobProgress: ...

    @abstractmethod
    async def request_job_exceptions(self, job_id: JobID) -> tuple[ExceptionEntry, ...]: ...

    @abstractmethod
    async def request_job_details(self, job_id: JobID) -> JobDetails:
        """Return all details of the job: up to megabytes. Prefer the other requests."""

    @abstractmethod
    async def request_job_settings(self, job_id: JobID) -> JobSettings:
        """Return the settings with which the job runs or ran. The Dispatcher asks no other process.

        Raises:
            JobNotFoundError: there is no such job, or the job has ended under a flinkray version
                that did not keep the settings.
        """

    @abstractmethod
    @ask_timeout(None)
    async def request_job_result(self, job_id: JobID) -> JobResult:
        """Wait until the job has ended and its resources are released, and return its result. If
        the release takes too long, the result is returned before it is done."""

    @abstractmethod
    @runs_to_completion
    async def cancel_job(self, job_id: JobID) -> None:
        """Begin to cancel the job. May be repeated. Raises JobNotFoundError, and JobStateError if
        the job has ended without being cancelled."""

    @abstractmethod
    async def heartbeat_from_client(self, job_ids: tuple[JobID, ...]) -> None:
        """Receive a heartbeat of the client of these jobs. A job that is to end with its client is
        cancelled if these heartbeats stop. Other jobs, and unknown jobs, are ignored."""

    @abstractmethod
    @runs_to_completion
    async def resize_job(
        self,
        job_id: JobID,
        bounds: tuple[ParallelismBounds, ...],
        others: ParallelismRange | None = None,
    ) -> None:
        """Change the parallelism bounds of vertices of an elastic job.
        Returns when the bounds are stored. *others*: the bounds of all vertices that are not named
        in *bounds* and can have more than one subtask.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: the change is not possible, or another change of the job is under way.
                Nothing has changed.
        """

    @abstractmethod
    @ask_timeout(None)
    async def take_snapshot(self, job_id: JobID, request: SnapshotRequest) -> SnapshotTaken:
        """Take a savepoint or a checkpoint, once for each trigger id.
        Returns when the snapshot is complete. If the snapshot is to stop the job, returns when the
        job is stored as finished. The client may repeat the call, also at another Dispatcher, and
        gets the same snapshot.

        Raises:
            JobNotFoundError: there is no such job.
            JobStateError: the job has ended in another way.
            CheckpointError: the snapshot is not taken.
            StopWithSavepointError: the savepoint is complete, but the job did not finish.
            JobError, CheckpointStorageError: the directory cannot be used.
        """

    @abstractmethod
    @ask_timeout(None)
    @runs_to_completion
    async def dispose_savepoint(self, path: str) -> None:
        """Delete a savepoint, given its directory or its metadata file.

        Raises CheckpointStorageError, and JobStateError if a running job needs the savepoint.
        """

    @abstractmethod
    async def request_savepoint_directories(self) -> tuple[str, ...]:
        """Return the directories in which savepoints may be.
        These are the cluster's storage directory, and the directories for checkpoints and
        savepoints that the cluster and its jobs that have not ended are configured with.
        """

    @abstractmethod
    async def request_cluster_numbers(self) -> ClusterNumbers:
        """Return how many TaskExecutors the cluster has, and how many slots in all and free."""

    @abstractmethod
    async def request_cluster_overview(self) -> ClusterOverview: ...

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def shut_down_cluster(self) -> None:
        """Cancel all jobs, kill those that do not end in time, and end every process and placement
        group of the cluster."""

    @abstractmethod
    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        """Return the location of a queryable state of a job, as the job's JobMaster knows it.

        Raises:
            KvStateJobNotFoundError: the job is not known, or has ended.
            UnknownKvStateLocationError: no task holds a state of that name at present.
        """

    @abstractmethod
    async def request_source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        """Return the id of the JobMaster that has started the coordinator of the job's sources.
        The id is part of the coordinator's process name.

        None if no JobMaster knows it at present. Raises JobNotFoundError, also if the job has
        ended.
        """

    # called by JobMasters

    @abstractmethod
    async def register_job_master(
        self, job_id: JobID, job_master_id: JobMasterId, job_master_address: str
    ) -> JobMasterToDispatcherRegistrationSuccess | RegistrationFailure | RegistrationRejection:
        """Register a JobMaster. Called at its start and whenever a new Dispatcher leads. A
        JobMaster is rejected, and ends itself, if another JobMaster leads the job by now."""

    @abstractmethod
    @oneway
    async def heartbeat_from_job_master(
        self,
        job_id: JobID,
        job_master_id: JobMasterId,
        overview_number: int,
        has_deployed: bool = False,
    ) -> None:
        """Receive a JobMaster's heartbeat.
        *overview_number*: overviews of the job with a smaller number are outdated.
        *has_deployed*: whether the JobMaster has deployed tasks, or taken over running tasks.
        """

    @abstractmethod
    @oneway
    async def job_overview_changed(
        self, job_id: JobID, job_master_id: JobMasterId, overview_number: int
    ) -> None:
        """Tell the Dispatcher at once, before the next heartbeat, that overviews are outdated.
        The Dispatcher requests the new overview only when it needs one. *overview_number*:
        overviews of the job with a smaller number are outdated.
        """

    @abstractmethod
    async def job_reached_terminal_state(
        self, job_id: JobID, job_master_id: JobMasterId, result: JobResult, details: JobDetails
    ) -> None:
        """Store the result of a job that has ended together with all its tasks.
        Returns when the result is stored. Then the JobMaster ends itself, and the Dispatcher
        releases the job's resources.
        """
