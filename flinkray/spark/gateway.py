"""Messages and gateways between a Spark driver and the JobMaster whose stage it runs."""

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
    """Of the vertex that has produced it."""
    directories: tuple[str, ...]
    """Locations; see :mod:`flinkray.file_results`."""
    partitions: tuple[ResultPartitionID, ...]
    """Of each directory, a partition that is in it."""


RESULT_KIND = "flinkray.result"
"""In the configuration of a Spark invokable: PUBLISHED, EPOCHS, THROUGH, or nothing."""
PUBLISHED = "published"
"""The partitions of its result are read by a stream, while it runs."""
EPOCHS = "epochs"
"""It has no result: its function is given the epochs of a stream."""
THROUGH = "through"
"""Its function is given the epochs of a stream, and what it makes of them another stream reads."""


def attempt_name(vertex_id: JobVertexID, graph_id: ExecutionGraphID, attempt_number: int) -> str:
    """Of an attempt of a Spark stage: ``<vertex>-<execution graph>-<number>``; in each execution
    graph of a job they are counted from 0."""
    return f"{vertex_id.short()}-{graph_id.short()}-{attempt_number}"


def spark_driver_process(
    job_id: JobID, vertex_id: JobVertexID, graph_id: ExecutionGraphID, attempt_number: int
) -> str:
    """Name of the process of a stage attempt's driver."""
    return f"{spark_drivers_of_job(job_id)}{attempt_name(vertex_id, graph_id, attempt_number)}"


def spark_drivers_of_job(job_id: JobID) -> str:
    """What the names of all of these begin with."""
    return f"SparkDriver-{job_id}-"


SPARK_DRIVER_ENDPOINT = "sparkdriver"
SPARK_SESSION_ENDPOINT = "sparksession"


@message
class SparkSessionRequest:
    """The session that a stage is to run in, which jobs share."""

    name: str
    executors: int
    slot_profile: ResourceProfile
    """Of each executor."""


@message
class SparkSessionGuest:
    """An attempt of a stage that is to run in a session."""

    process: str
    """Its name."""
    pid: int
    """On the node of the session."""
    started: float
    """When that process did, as the system says: pids are given again."""
    stage: str
    """Job and vertex: another attempt of it is over when this one comes."""


@message
class SparkSessionAccess:
    """How a process on the same node connects to a session, and what that is."""

    port: int
    """Of py4j's gateway in the driver's JVM, on the loopback interface."""
    secret: str
    jvm_pid: int
    log_file: str
    """The JVM's."""
    executors: int
    slot_profile: ResourceProfile
    configuration: dict[str, str]
    """The Spark properties that it was started with."""
    tag: str
    """That Spark jobs of this guest must carry: those with it are cancelled when it leaves."""


@message
class SparkStageDescriptor:
    """All a Spark driver needs to run one attempt of one Spark stage (a job vertex)."""

    job_id: JobID
    job_name: str
    vertex_id: JobVertexID
    attempt_number: int
    listener_address: str
    """Address of the JobMaster (a :class:`CoordinatorListenerGateway`)."""
    job_master_id: JobMasterId
    """Of the JobMaster that has started the attempt."""
    graph_id: ExecutionGraphID
    """Of the job."""
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
    is_result_read: bool = False
    """Whether other vertices read the result; else it is the job's."""
    blob_server: str | None = None
    """Address; needed where ``code`` is a key."""
    inputs: tuple[SparkStageInput, ...] = ()
    """What the stage reads of other vertices."""
    published_location: str | None = None
    """Where the partitions of a returned DataFrame are published that a stream reads (the same for
    all attempts); None: the result is written as a whole."""
    epochs_location: str | None = None
    """Where a stream publishes the epochs that the function is given (the same for all attempts);
    None: the function is called once."""
    stream_execution: str = ""
    """Of the stream, which has ended its epochs only if it has ended in this execution; see
    :func:`flinkray.file_results.stream_execution`."""
    begins_from_savepoint: bool = False
    """Of the job: a streaming query that is published may have to go on where it was then."""
    session: SparkSessionRequest | None = None
    """Whose guest the stage is; None: it has executors of its own."""
    session_address: str = ""
    """Of a guest's session (a :class:`SparkSessionGateway`)."""
    held_session: str | None = None
    """The name of the session that the stage keeps open for guests; None: it is no session."""
    session_idle_timeout: float = 0.0
    """Seconds without guests after which such a session ends."""
    takeover_timeout: float = 0.0
    """Seconds for which the attempt goes on without a JobMaster, until another one adopts it."""

    @property
    def attempt_name(self) -> str:
        """See :func:`attempt_name`."""
        return attempt_name(self.vertex_id, self.graph_id, self.attempt_number)

    @property
    def coordinator(self) -> CoordinatorID:
        """Under which the driver reports."""
        return CoordinatorID(CoordinatorKind.SPARK_DRIVER, self.vertex_id, self.attempt_number)


@message
class ExecutorSlot:
    """Where a TaskExecutor would start an executor."""

    subtask_index: int
    bundle_index: int
    actor_id: str
    """Ray's id of the TaskExecutor, hex."""
    node_id: str
    node_ip: str


@message
class ExecutorLaunch:
    """An executor that a TaskExecutor is to start, as a JVM that is its child."""

    executor_id: str
    """Spark's; no two executors of an application have the same."""
    stage_name: str
    """Names the executor's log and its files; see :func:`flinkray.spark.processes.stage_name`."""
    java_home: str | None
    """Of ``env.java.home``, if that is set."""
    java_options: tuple[str, ...]
    class_path: tuple[str, ...]
    """What follows Spark's own archives."""
    arguments: tuple[str, ...]
    """Spark's class for executors, and what it is given."""
    environment: dict[str, str]
    """Variables beside those of the TaskExecutor."""


class SparkExecutorsGateway(RpcGateway):
    """Of a stage whose executors are started by the TaskExecutors of its slots.  They know the
    attempt by the name of its driver's process."""

    @abstractmethod
    @ask_timeout(600.0)
    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        """What to start in a slot; waits until the stage's session is open."""

    @abstractmethod
    async def executor_started(self, executor_id: str, pid: int) -> None: ...

    @abstractmethod
    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        """An executor's process has ended.

        Args:
            exit_code: as of :class:`subprocess.Popen`.
            how: for people.

        Returns:
            Whether another one is to be started for the same task.  If not, and one is needed, the
            JobMaster deploys another task, or the stage fails.
        """


class SparkDriverGateway(RpcGateway):
    """A Spark driver: one process, one SparkSession, one attempt of one stage.

    It takes orders of one JobMaster of the job, at first of the one that has started it; all others
    get CoordinatorReplacedError.
    """

    @abstractmethod
    async def request_heartbeat(self, job_master_id: JobMasterId) -> None:
        """Answer, whatever Spark does at the moment."""

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def adopt(self, job_master_id: JobMasterId, listener_address: str) -> None:
        """Take orders of that JobMaster from now on, and tell it all that matters of what was told
        before.  The driver asks it whether it leads.

        Raises:
            FencingTokenError, LeadershipLostError, RpcConnectionError: it does not.
        """

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def stop(self, job_master_id: JobMasterId) -> None:
        """Cancel what runs, end the session, JVM and Python workers; then the process ends."""


class SparkSessionGateway(RpcGateway):
    """Of the process of a session that jobs share, beside its driver."""

    @abstractmethod
    @ask_timeout(600.0)
    async def await_open(self) -> str:
        """Answers when guests may come; the session then waits for some.

        Returns:
            Ray's id of its node, on which guests must be.

        Raises:
            SparkSessionEndedError: it is ending.
        """

    @abstractmethod
    @ask_timeout(600.0)
    @runs_to_completion
    async def attach(self, guest: SparkSessionGuest) -> SparkSessionAccess:
        """A guest comes.  If its process ends, it has left.

        An earlier attempt of its stage is ended.  The answer waits until nothing in the session
        works for that any more: it might write where this one is about to.

        Raises:
            SparkSessionEndedError: it ends, another attempt of the stage has come, or something
                works for an earlier one for too long.
        """

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def leave(self, process: str) -> None:
        """A guest leaves: its Spark jobs are cancelled.  One that is not there changes nothing."""


class CoordinatorListenerGateway(FencedRpcGateway):
    """The side of the JobMaster that operator coordinators report to; fenced by its JobMasterId."""

    @abstractmethod
    @runs_to_completion
    async def coordinator_told(self, coordinator: CoordinatorID, event: CoordinatorEvent) -> None:
        """A coordinator has something to say: see
        :mod:`flinkray.scheduler.job.coordinator_events`.

        The order is that in which one coordinator asks, which waits for each answer.
        """

    @abstractmethod
    @ask_timeout(None)
    async def confirm_leadership(self) -> None:
        """To be asked before something is done that nobody fences.  Waits while nobody can say.

        Raises:
            FencingTokenError: another JobMaster leads.
            LeadershipLostError: another one may.
        """
