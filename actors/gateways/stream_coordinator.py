"""What the coordinator of a stream job answers: to its tasks, its JobMaster and its client."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.job_processes import job_process, processes_of_job
from flinkray.actors.gateways.task_process import JobPartition
from flinkray.checkpoint.handles import StateLocation
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, JobVertexID
from flinkray.core.job_options import MAX_WAITING_EPOCHS
from flinkray.core.message import message
from flinkray.rpc import RpcGateway, ask_timeout
from flinkray.rpc.gateway import runs_to_completion
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, CheckpointCompleted
from flinkray.scheduler.graph.job_graph import JobFile
from flinkray.scheduler.job.coordinator_events import CoordinatorID
from flinkray.scheduler.shared.taking_over import JobNotes
from flinkray.streaming.sources.source_progress import SourceProgress

STREAM_COORDINATOR_ENDPOINT = "streams"

STREAM_COORDINATOR_FACTORY = "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator"


def stream_coordinators_of_job(job_id: JobID) -> str:
    """With what the names of the processes of all its JobMasters' coordinators begin."""
    return processes_of_job("StreamCoordinator", job_id)


def stream_coordinator_process(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Name of the process."""
    return job_process("StreamCoordinator", job_id, job_master_id)


def alignment_name(vertex_id: JobVertexID, subtask_index: int) -> str:
    """Under which a source's subtask takes part in the alignment of watermarks."""
    return f"{vertex_id}/{subtask_index}"


def stream_coordinator_address(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Address of the coordinator."""
    return f"{stream_coordinator_process(job_id, job_master_id)}/{STREAM_COORDINATOR_ENDPOINT}"


@message
class CoordinatorSnapshot:
    """State of the coordinator of one operator."""

    operator_id: str
    state: StateLocation | None


@message
class RestoredCoordinators:
    """What the coordinators of a job's sources begin with."""

    restores: int
    """How often they have been restored, this time included."""
    checkpoint_id: int
    """0: of no checkpoint; they begin anew."""
    states: tuple[CoordinatorSnapshot, ...]


@message
class VertexCode:
    """A vertex of the job and its pickled code."""

    vertex_id: JobVertexID
    operator_id: str
    """Of the source, which the vertex begins with."""
    name: str
    code: bytes | BlobKey


@message
class CollectorPlace:
    """Where the results of a job can be read, by
    :meth:`~flinkray.actors.gateways.task_process.TaskProcessGateway.read_partition`."""

    address: str
    partition: JobPartition
    restored: int | None = None
    """How many pieces earlier attempts have put that count: it goes on behind them.  None: the job
    takes no checkpoints, and everything comes again."""
    first: int = 0
    """Number of the first of these that it has itself: those before it were read."""


@message
class KeptPart:
    """A part of what a coordinator knows, as others keep it in case it dies: how far a source is,
    or where the results are."""

    vertex_id: JobVertexID | None
    """Of the source; None: it is the place of the results."""
    restores: int
    """How often the coordinators had been restored."""
    version: int
    """Grows from change to change, and from one process to the next."""
    progress: SourceProgress | None = None
    """None, of a source: nobody else knows how far it is, and the job begins anew without this
    coordinator."""
    place: CollectorPlace | None = None

    @property
    def age(self) -> tuple[int, int]:
        """Of two of one source, the one with the higher age is later."""
        return self.restores, self.version


@message
class StreamCoordinatorArguments:
    """What the process is started with."""

    cluster_id: str
    job_id: JobID
    owner: JobMasterId
    """By whose id tasks know it."""
    job_master_id: JobMasterId
    """Whose orders it takes."""
    coordinator: CoordinatorID
    """Under which it reports."""
    listener_address: str
    """Of the JobMaster."""
    vertices: tuple[VertexCode, ...]
    files: tuple[JobFile, ...] = ()
    """That the code imports from."""
    restored: RestoredCoordinators | None = None
    takeover_timeout: float = 60.0
    """Seconds that it waits for the next JobMaster."""
    storage_dir: str = ""
    """Of the cluster."""
    restores: int = 0
    """How often coordinators had been restored when this one was to begin."""
    kept: tuple[KeptPart, ...] = ()
    """Of the coordinator before it, which died: what it goes on from."""
    graph_id: ExecutionGraphID | None = None
    """Of the tasks that it serves."""
    max_waiting_epochs: int = MAX_WAITING_EPOCHS.default
    """With so many a taker is behind."""


@message
class AdoptedCoordinator:
    """What a JobMaster learns of a coordinator that it takes over."""

    coordinator: CoordinatorID
    restores: int
    """How often it has been restored."""
    has_readers: bool
    """Whether any task has asked it for splits since then."""
    notes: JobNotes | None = None
    """Which its last JobMaster has left."""


@message
class ReaderProgress:
    """Which attempt of a source's subtask speaks, what it has asked for and been told so far."""

    job_master_id: JobMasterId
    vertex_id: JobVertexID
    subtask_index: int
    attempt_number: int
    parallelism: int
    requests: int
    """Splits that it has asked for."""
    position: int
    """Events that it has."""
    blob_server: str | None
    """From where code comes that did not travel with the job."""
    restores: int = 0
    """How often the job's coordinators had been restored when the task was deployed: it belongs to
    what they were restored to last."""
    restored_from: int = 0
    """The checkpoint that the task goes on from; 0: it began anew."""
    checkpoint_id: int = 0
    """The latest that the task has taken its snapshot for."""


@message
class Holders:
    """Who takes what becomes of a source's records, and may be behind."""

    stages: tuple[JobVertexID, ...] = ()
    """Of Spark, which take epochs."""
    look_ups: tuple[str, ...] = ()
    """Operators where records wait for a table."""


@message
class PrintedText:
    """Lines that a task has printed."""

    job_master_id: JobMasterId
    task: str
    """Its name with subtask and attempt."""
    number: int
    """Counts the task's messages from 1."""
    data: bytes
    """UTF-8, which may have surrogates; whole lines, if they are not too long."""


@message
class PrintedPart:
    """What the client of a job reads of it."""

    coordinator: str
    """Which one has kept it: its process and attempt."""
    texts: tuple[bytes, ...]
    position: int
    """Behind them; to read on from."""
    left_out: int
    """How many lines before these were not kept until they were read, all in all."""
    is_end: bool
    """Nothing follows these."""


class StreamCoordinatorGateway(RpcGateway):
    """Outlives the JobMaster that has started it, its *owner*: tasks know it by the owner's id.

    It takes orders of one JobMaster: of the owner, or of the one that has adopted it last.
    """

    # for tasks

    @abstractmethod
    @ask_timeout(None)
    async def exchange(self, reader: ReaderProgress) -> tuple[bytes, ...]:
        """The events that follow those that the reader has: at least one, unless it has meanwhile
        said more.  May be repeated.

        Raises:
            CoordinatorReplacedError: it has another owner.
        """

    @abstractmethod
    async def exchange_until_cut(
        self, reader: ReaderProgress, checkpoint_id: int
    ) -> tuple[bytes, ...]:
        """The events that follow those that the reader has and belong before a checkpoint: it takes
        its snapshot when it has them.  None where that checkpoint is over.

        Raises:
            CoordinatorReplacedError: it has another owner.
        """

    @abstractmethod
    async def results_are_at(self, job_master_id: JobMasterId, place: CollectorPlace) -> None:
        """The task that collects the job's results runs there.  May be repeated; what an earlier
        attempt of the task says late changes nothing.

        Raises:
            CoordinatorReplacedError: it has another owner.
        """

    @abstractmethod
    async def report_watermark(
        self, job_master_id: JobMasterId, group: str, member: str, watermark: int
    ) -> int:
        """The least watermark of a group of aligned sources, of which this is one member's.

        Raises:
            CoordinatorReplacedError: it has another owner.
        """

    @abstractmethod
    @ask_timeout(None)
    async def await_hold(
        self, job_master_id: JobMasterId, holders: Holders, known: bool | None
    ) -> bool:
        """Whether one of those is behind that take what becomes of a source, so that it is not to
        be read.  Waits until that is something else than the task knows.

        Raises:
            CoordinatorReplacedError: it has another owner.
        """

    @abstractmethod
    @ask_timeout(None)
    async def printed(self, text: PrintedText) -> None:
        """Keep it for the client, and return when more may come.  May be repeated.

        Raises:
            CoordinatorReplacedError: it has another owner.
        """

    # for the JobMaster

    @abstractmethod
    @ask_timeout(5.0)
    async def adopt(
        self, owner: JobMasterId, job_master_id: JobMasterId, listener_address: str
    ) -> AdoptedCoordinator:
        """From the job's next JobMaster: it gives the orders from now on, and is told of failures.
        Again: the same answer.

        Raises:
            CoordinatorReplacedError: it has another owner, or the JobMaster that gives it orders
                lives.
        """

    @abstractmethod
    async def note(self, job_master_id: JobMasterId, notes: JobNotes) -> None:
        """Keep them for the next JobMaster, as the SlotPool does: the two may die together.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    @abstractmethod
    async def request_heartbeat(self, job_master_id: JobMasterId) -> None:
        """Answer, whatever enumerators do at the moment.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    @abstractmethod
    @runs_to_completion
    async def snapshot(
        self, job_master_id: JobMasterId, checkpoint_id: int, directory: str
    ) -> tuple[CoordinatorSnapshot, ...]:
        """A cut of all sources, and their state, which is written to that directory where it is
        not small.  What readers are told afterwards is told when they have taken their snapshots.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
            CheckpointStorageError: state cannot be written.
            OperatorError: an enumerator failed, or its state cannot be stored.
        """

    @abstractmethod
    @runs_to_completion
    async def restore(self, job_master_id: JobMasterId, restored: RestoredCoordinators) -> None:
        """All sources begin with that; once for each count of restores.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
            CheckpointStorageError: state cannot be read.
        """

    @abstractmethod
    @runs_to_completion
    async def reset_subtasks(
        self,
        job_master_id: JobMasterId,
        checkpoint_id: int,
        subtasks: dict[str, tuple[tuple[int, int], ...]],
    ) -> None:
        """What earlier attempts of these subtasks were given after a checkpoint (0: at all) goes
        back.  May be repeated.

        Args:
            subtasks: operator id -> index and number of the attempt that goes on from there.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
            OperatorError: an enumerator failed.
        """

    @abstractmethod
    @runs_to_completion
    async def checkpoint_ended(
        self, job_master_id: JobMasterId, order: CheckpointCompleted | CheckpointAborted
    ) -> None:
        """A checkpoint is over.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    @abstractmethod
    async def stop(self, job_master_id: JobMasterId) -> None:
        """Close the enumerators and remove the job's files; then the process ends.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    # for the client

    @abstractmethod
    @ask_timeout(None)
    async def find_results(self, known: CollectorPlace | None) -> CollectorPlace:
        """Where the results are: waits until they are somewhere else than the client knows."""

    @abstractmethod
    @ask_timeout(None)
    async def read_printed(self, known: str | None, position: int) -> PrintedPart:
        """What tasks have printed, from a position on: at least something, unless nothing comes
        within seconds.  Asking for a position says that what is before it was read.

        *known*: the coordinator that gave the position; what another one has is read from its
        beginning.
        """
