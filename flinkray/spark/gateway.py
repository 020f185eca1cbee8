"""Defines the messages and gateways between a Spark driver and the JobMaster whose stage it
runs."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.blobs import BlobKey
from flinkray.core.ids import (
    ExecutionGraphID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResultPartitionID,
    WorkerGroupId,
)
from flinkray.core.message import message
from flinkray.core.options import STORAGE_PERMISSIONS
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    RpcGateway,
    ask_timeout,
    runs_to_completion,
)
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorID,
    CoordinatorKind,
)


@message
class SparkStageInput:
    """A result of another vertex that the stage reads, as Parquet files."""

    name: str
    """Name of the vertex that has produced the input."""
    directories: tuple[str, ...]
    """Locations of the input's files; see :mod:`flinkray.file_results`."""
    partitions: tuple[ResultPartitionID, ...]
    """One partition for each directory of the input; the partition is in this directory."""


RESULT_KIND = "flinkray.result"
"""Key in a Spark invokable's configuration: PARTITIONS, PUBLISHED, EPOCHS, THROUGH, or not set."""
PARTITIONS = "partitions"
"""A stream reads the partitions of the stage's result while the stage runs."""
PUBLISHED = "published"
"""A stream reads the micro-batches of the stage's query while the stage runs."""
EPOCHS = "epochs"
"""The stage has no result: its function is given the epochs of a stream."""
THROUGH = "through"
"""The stage's function is given the epochs of a stream, and another stream reads its results."""


def attempt_name(vertex_id: JobVertexID, graph_id: ExecutionGraphID, attempt_number: int) -> str:
    """Return the name of an attempt of a Spark stage: ``<vertex>-<execution graph>-<number>``.

    Attempts are counted from 0 in each execution graph of a job.
    """
    return f"{vertex_id.short()}-{graph_id.short()}-{attempt_number}"


def spark_driver_process(
    job_id: JobID, vertex_id: JobVertexID, graph_id: ExecutionGraphID, attempt_number: int
) -> str:
    """Return the name of the process of a stage attempt's driver."""
    return f"{spark_drivers_of_job(job_id)}{attempt_name(vertex_id, graph_id, attempt_number)}"


def spark_drivers_of_job(job_id: JobID) -> str:
    """Return the prefix with which the names of all driver processes of a job begin."""
    return f"SparkDriver-{job_id}-"


SPARK_DRIVER_ENDPOINT = "sparkdriver"
SPARK_SESSION_ENDPOINT = "sparksession"


@message
class SparkSessionRequest:
    """Describes the shared Spark session in which a stage is to run, by name and executors."""

    name: str
    executors: int
    slot_profile: ResourceProfile
    """Resources of each executor."""


@message
class SparkSessionGuest:
    """Identifies an attempt of a stage that is to run in a shared session, and its process."""

    process: str
    """Name of the attempt's process."""
    pid: int
    """Process id on the session's node."""
    started: float
    """Start time of the process as the system reports it, because process ids are reused."""
    stage: str
    """Job and vertex of the stage. When this attempt attaches, the stage's earlier attempts end."""


@message
class SparkSessionAccess:
    """Tells a guest's process how to connect to a shared session on its node, and what the
    session has.
    """

    port: int
    """Port of py4j's gateway in the driver's JVM, on the loopback interface."""
    secret: str
    jvm_pid: int
    log_file: str
    """Log file of the JVM."""
    executors: int
    slot_profile: ResourceProfile
    configuration: dict[str, str]
    """Spark properties with which the session was started."""
    tag: str
    """Tag of this guest's Spark jobs: jobs with the tag are cancelled when the guest leaves."""


@message
class SparkStageDescriptor:
    """Everything that a Spark driver needs to run one attempt of one Spark stage (a job vertex)."""

    job_id: JobID
    job_name: str
    vertex_id: JobVertexID
    attempt_number: int
    listener_address: str
    """Address of the JobMaster (a :class:`CoordinatorListenerGateway`)."""
    job_master_id: JobMasterId
    """Id of the JobMaster that has started the attempt."""
    graph_id: ExecutionGraphID
    """Id of the job's execution graph."""
    worker_group: WorkerGroupId
    """The placement group of the job's slots; bundle i is the slot of executor i."""
    parallelism: int
    """Number of executors = number of bundles."""
    slot_profile: ResourceProfile
    code: bytes | BlobKey
    """The user's pickled function, or the key of a blob with it; the blob's owner is the job."""
    configuration: dict[str, str]
    """The user's Spark properties."""
    result_location: str
    """Directory (URI or path) for the Parquet files of a returned DataFrame."""
    is_result_read: bool = False
    """Whether other vertices read the result. If not, it is the job's result."""
    blob_server: str | None = None
    """Address of the blob server; needed if ``code`` is a key."""
    inputs: tuple[SparkStageInput, ...] = ()
    """Results of other vertices that the stage reads."""
    published_location: str | None = None
    """Location for the partitions of a returned DataFrame that a stream reads.

    The location is equal for all attempts. None: the result is written as a whole.
    """
    epochs_location: str | None = None
    """Location of the epochs of a stream that are passed to the function (equal for all attempts).

    None: the function is called once.
    """
    stream_execution: str = ""
    """Execution of the stream.

    The stream has ended its epochs only if it has ended in this execution
    (:func:`flinkray.file_results.stream_execution`).
    """
    begins_from_savepoint: bool = False
    """Whether the job begins from a savepoint.

    A published streaming query may have to continue from its position in the savepoint.
    """
    is_divided_as_before: bool = False
    """Whether rows must be divided as in an earlier job.

    True if the job begins from a savepoint that may be in the middle of a returned DataFrame. See
    :mod:`flinkray.spark.repeatable_plans`.
    """
    session: SparkSessionRequest | None = None
    """Session that the stage joins as a guest. None: the stage has executors of its own."""
    session_address: str = ""
    """Address of the guest's session (a :class:`SparkSessionGateway`)."""
    held_session: str | None = None
    """Name of the session that the stage keeps open for guests. None: the stage is no session."""
    session_idle_timeout: float = 0.0
    """Seconds without guests after which the held session ends."""
    takeover_timeout: float = 0.0
    """Seconds that the attempt keeps running without a JobMaster, until another JobMaster adopts
    it."""
    storage_permissions: str = STORAGE_PERMISSIONS.default
    """Value of ``storage.permissions``: who may read the files of driver and executors."""

    @property
    def job_text(self) -> str:
        """``job <id> (<name>)``, for log lines and errors."""
        return f"job {self.job_id} ({self.job_name})"

    @property
    def attempt_name(self) -> str:
        """Name of the attempt: the result of :func:`attempt_name`."""
        return attempt_name(self.vertex_id, self.graph_id, self.attempt_number)

    @property
    def coordinator(self) -> CoordinatorID:
        """The id under which the JobMaster knows the driver of this attempt."""
        return CoordinatorID(CoordinatorKind.SPARK_DRIVER, self.vertex_id, self.attempt_number)


@message
class ExecutorSlot:
    """Describes a slot in which its TaskExecutor can start a Spark executor."""

    subtask_index: int
    bundle_index: int
    actor_id: str
    """Ray's id of the TaskExecutor, hex."""
    node_id: str
    node_ip: str


@message
class ExecutorLaunch:
    """Tells a TaskExecutor how to start one executor: a JVM that is its child process."""

    executor_id: str
    """Spark's id of the executor, unique in an application."""
    stage_name: str
    """Name in the executor's log and files (:func:`flinkray.spark.processes.stage_name`)."""
    java_home: str | None
    """Value of ``env.java.home``. None: the option is not set."""
    java_options: tuple[str, ...]
    class_path: tuple[str, ...]
    """Class path entries after Spark's own archives."""
    arguments: tuple[str, ...]
    """Spark's main class for executors, and its arguments."""
    environment: dict[str, str]
    """Environment variables in addition to those of the TaskExecutor."""


class SparkExecutorsGateway(RpcGateway):
    """The methods of a Spark driver by which TaskExecutors get the executors to start for a
    stage. They find the driver by the name of its process, which contains the name of the stage
    attempt."""

    @abstractmethod
    @ask_timeout(600.0)
    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        """Return the launch of the executor to start in a slot. Waits until the stage's session is
        open."""

    @abstractmethod
    async def executor_started(self, executor_id: str, pid: int) -> None: ...

    @abstractmethod
    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        """Report that an executor's process has ended.

        Args:
            exit_code: in the form of :class:`subprocess.Popen`.
            how: description of the end, for people.

        Returns:
            True: the caller must ask for another executor for its slot. False: the slot needs none
            now; if an executor is missing, the JobMaster deploys another task, or the stage fails.
        """


class SparkDriverGateway(RpcGateway):
    """The methods of a Spark driver by which a JobMaster controls it. A driver runs one stage
    attempt.

    The driver takes orders from one JobMaster of the job, at first from the one that has started
    it. All other callers get CoordinatorReplacedError.
    """

    @abstractmethod
    async def request_heartbeat(self, job_master_id: JobMasterId) -> None:
        """Return, so that the JobMaster knows that the driver lives. Works even while Spark is
        busy."""

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def adopt(self, job_master_id: JobMasterId, listener_address: str) -> None:
        """Take orders from that JobMaster from now on, and send it the last event of each type.

        The driver asks the JobMaster whether it leads.

        Raises:
            FencingTokenError, LeadershipLostError, RpcConnectionError: the JobMaster does not lead.
        """

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def stop(self, job_master_id: JobMasterId) -> None:
        """Cancel running work, then end the session, the JVM, the Python workers and the
        process."""


class SparkSessionGateway(RpcGateway):
    """The methods of the driver of a shared Spark session by which guests attach to the session."""

    @abstractmethod
    @ask_timeout(600.0)
    async def await_open(self) -> str:
        """Wait until guests may attach; the session then waits for guests for some time.

        Returns:
            Ray's id of the session's node, on which guests must run.

        Raises:
            SparkSessionEndedError: the session is ending.
        """

    @abstractmethod
    @ask_timeout(600.0)
    @runs_to_completion
    async def attach(self, guest: SparkSessionGuest) -> SparkSessionAccess:
        """Attach a guest. The guest is detached when its process ends.

        An earlier attempt of the guest's stage is ended. The answer waits until the session does no
        more work for that attempt, because it might write where the new attempt is about to write.

        Raises:
            SparkSessionEndedError: the session ends, another attempt of the stage has attached, or
                the work for an earlier attempt takes too long.
        """

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def leave(self, process: str) -> None:
        """Detach the guest in the process *process*, and cancel its Spark jobs. An unknown name
        changes nothing."""


class CoordinatorListenerGateway(FencedRpcGateway):
    """The methods of a JobMaster by which operator coordinators, such as Spark drivers, report to
    it.

    Calls are fenced by the JobMasterId: a JobMaster that no longer leads gets no reports.
    """

    @abstractmethod
    @runs_to_completion
    async def coordinator_told(self, coordinator: CoordinatorID, event: CoordinatorEvent) -> None:
        """Report an event of a coordinator (:mod:`flinkray.scheduler.job.coordinator_events`).

        Each coordinator waits for the answer before its next call, so its events arrive in order.
        """

    @abstractmethod
    @ask_timeout(None)
    async def confirm_leadership(self) -> None:
        """Return if this JobMaster leads. Waits while the leader is not known.

        Coordinators call this before an action in which a JobMaster without leadership could do
        harm.

        Raises:
            FencingTokenError: another JobMaster leads.
            LeadershipLostError: another JobMaster may lead.
        """
