"""The gateway of a stream job's coordinator, which tasks, the JobMaster and the client call."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.job_processes import job_process, processes_of_job
from flinkray.actors.gateways.task_process import JobPartition
from flinkray.checkpoint.handles import StateLocation
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID, JobID, JobMasterId, JobVertexID
from flinkray.core.job_options import MAX_WAITING_EPOCHS
from flinkray.core.message import message
from flinkray.core.options import STORAGE_PERMISSIONS
from flinkray.rpc import RpcGateway, ask_timeout
from flinkray.rpc.gateway import runs_to_completion
from flinkray.scheduler.checkpoints.messages import CheckpointAborted, CheckpointCompleted
from flinkray.scheduler.graph.job_graph import JobFile
from flinkray.scheduler.job.coordinator_events import CoordinatorID, GlobalFormatsCall
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes
from flinkray.streaming.sources.source_progress import SourceProgress

STREAM_COORDINATOR_ENDPOINT = "streams"

STREAM_COORDINATOR_FACTORY = "flinkray.actors.stream_coordinator.endpoint:create_stream_coordinator"


def stream_coordinators_of_job(job_id: JobID) -> str:
    """Return the name prefix of the coordinator processes of all JobMasters of the job."""
    return processes_of_job("StreamCoordinator", job_id)


def stream_coordinator_process(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Return the process name of the coordinator that a JobMaster has started."""
    return job_process("StreamCoordinator", job_id, job_master_id)


def alignment_name(vertex_id: JobVertexID, subtask_index: int) -> str:
    """Return the name of a source's subtask as a member of its watermark alignment group."""
    return f"{vertex_id}/{subtask_index}"


def stream_coordinator_address(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Return the address of the coordinator that a JobMaster has started."""
    return f"{stream_coordinator_process(job_id, job_master_id)}/{STREAM_COORDINATOR_ENDPOINT}"


@message
class CoordinatorSnapshot:
    """State that one source's split enumerator had at a checkpoint. ``state`` None: no state."""

    operator_id: str
    state: StateLocation | None


@message
class RestoredCoordinators:
    """State to which all enumerators and master hooks of a job's sources are restored."""

    restores: int
    """How often the coordinators have been restored, including this time."""
    checkpoint_id: int
    """The restored checkpoint. 0 means none: the coordinators begin without state."""
    states: tuple[CoordinatorSnapshot, ...]
    master_states: tuple[MasterState, ...] = ()


@message
class VertexCode:
    """A vertex of the job with its pickled code, from which its source or its output formats are
    loaded."""

    vertex_id: JobVertexID
    operator_id: str
    """Operator id of the vertex's first operator."""
    name: str
    code: bytes | BlobKey
    has_hook: bool = False
    """Whether the source has a master hook, and the job takes checkpoints."""


@message
class CollectorPlace:
    """Address and partition from which the client reads the collected results of a job.
    Read with :meth:`~flinkray.actors.gateways.task_process.TaskProcessGateway.read_partition`.
    """

    address: str
    partition: JobPartition
    restored: int | None = None
    """Number of pieces of earlier attempts that stay valid. This attempt continues after them.
    None: the job takes no checkpoints, and an attempt sends all results again.
    """
    first: int = 0
    """Number of the first piece that this attempt holds. The client has read all earlier pieces."""


@message
class KeptPart:
    """A part of a source coordinator's state, stored by other processes in case the coordinator
    dies. The part is the progress of one source, or the address where the job's results are
    collected.
    """

    vertex_id: JobVertexID | None
    """Vertex of the source. None: the part is the address where results are collected."""
    restores: int
    """How often the sources had been restored when the part was made."""
    version: int
    """Grows with every change, and from one coordinator process to the next."""
    progress: SourceProgress | None = None
    """Progress of the source.
    None for a source: no other process knows its progress, and without this coordinator the job
    begins anew.
    """
    place: CollectorPlace | None = None

    @property
    def age(self) -> tuple[int, int]:
        """A key by which parts of one source are ordered. A later part has a greater key."""
        return self.restores, self.version


@message
class KeptPiece:
    """One message of what a JobMaster stores for its successor, at the SlotPool and a TaskExecutor.
    It holds notes, finished tasks, or a part of the source coordinator's state.
    """

    part: KeptPart | None = None
    finished: tuple[FinishedTask, ...] = ()
    notes: JobNotes | None = None
    """The JobMaster's notes.
    Only in the last piece of a copy: without its notes a copy is not used.
    """


@message
class StreamCoordinatorArguments:
    """Arguments with which the coordinator process is started."""

    cluster_id: str
    job_id: JobID
    owner: JobMasterId
    """The JobMaster that has started the coordinator. Tasks know the coordinator by this id."""
    job_master_id: JobMasterId
    """The JobMaster whose orders the coordinator takes."""
    coordinator: CoordinatorID
    """The id under which the coordinator reports."""
    listener_address: str
    """Address of the JobMaster."""
    vertices: tuple[VertexCode, ...]
    files: tuple[JobFile, ...] = ()
    """Files that travel with the job. The code imports from them."""
    restored: RestoredCoordinators | None = None
    takeover_timeout: float = 60.0
    """Seconds to wait for the next JobMaster."""
    storage_dir: str = ""
    """Storage directory of the cluster."""
    restores: int = 0
    """How often sources had been restored before this coordinator began."""
    kept: tuple[KeptPart, ...] = ()
    """Parts kept from the earlier coordinator, which has died.
    This coordinator continues from them.
    """
    graph_id: ExecutionGraphID | None = None
    """Execution graph of the tasks that the coordinator serves."""
    max_waiting_epochs: int = MAX_WAITING_EPOCHS.default
    """Number of waiting epochs from which on a Spark vertex counts as behind."""
    formats: tuple[VertexCode, ...] = ()
    """Vertices with output formats that prepare or finish their outputs in the coordinator."""
    storage_permissions: str = STORAGE_PERMISSIONS.default
    """Value of ``storage.permissions``: who may read the files that the coordinator writes."""
    blob_server: str | None = None
    """Address of the server for code that did not travel with the job."""
    allow_non_restored_state: bool = False
    """Whether the job may be restored without the state of master hooks that it does not have."""


@message
class AdoptedCoordinator:
    """State of a coordinator, returned to the JobMaster that takes it over."""

    coordinator: CoordinatorID
    restores: int
    """How often the job's sources have been restored."""
    has_readers: bool
    """Whether any task has requested splits since the last restore."""


@message
class ReaderProgress:
    """Names an attempt of a source's subtask that calls the coordinator, and says how many splits
    it has requested and how many events it has received."""

    job_master_id: JobMasterId
    vertex_id: JobVertexID
    subtask_index: int
    attempt_number: int
    parallelism: int
    requests: int
    """Number of splits that the attempt has requested."""
    position: int
    """Number of events that the attempt has received."""
    blob_server: str | None
    """Address of the server for code that did not travel with the job."""
    restores: int = 0
    """How often the job's sources had been restored when the task was deployed."""
    restored_from: int = 0
    """The checkpoint from which the task was restored. 0: the task began without state."""
    checkpoint_id: int = 0
    """The latest checkpoint for which the task has taken its snapshot."""


@message
class Holders:
    """What a source may have to wait for: consumers of its records, and its master hook.
    The source is not read while a consumer is behind, or while the hook is not restored.
    """

    stages: tuple[JobVertexID, ...] = ()
    """Spark vertices that take epochs of the records."""
    look_ups: tuple[str, ...] = ()
    """Ids of operators in which records wait for a table."""
    restores: int | None = None
    """How often the job's sources had been restored when the task was deployed.
    None: the source has no master hook.
    """


@message
class PrintedText:
    """Lines that a task has printed, sent as one text."""

    job_master_id: JobMasterId
    task: str
    """Name of the task with subtask and attempt."""
    number: int
    """Number of the message among the task's messages, from 1."""
    data: bytes
    """UTF-8, possibly with surrogates. Whole lines, unless a line is too long."""


@message
class PrintedPart:
    """What one read of the client returns: texts that tasks have printed, and where to read on."""

    coordinator: str
    """Id of the coordinator that has kept these texts.
    Positions of another coordinator do not count.
    """
    texts: tuple[bytes, ...]
    position: int
    """Position from which the next read continues."""
    left_out: int
    """Total number of lines before these that were dropped unread."""
    is_end: bool
    """Whether no more texts will follow."""


@message
class AggregateUpdate:
    """A value that an attempt of a task adds to a global aggregate of its job."""

    job_master_id: JobMasterId
    attempt_id: ExecutionAttemptID
    number: int
    """Number of the update among the updates of the attempt, from 1."""
    known: str | None
    """Id of the coordinator that has answered the attempt's last update.
    None: this is its first update.
    """
    name: str
    """Name of the aggregate."""
    value: bytes
    """The value, pickled."""
    function: bytes
    """A pickled function that returns the AggregateFunction. Its argument is None."""
    blob_server: str | None
    """Address of the server for files that did not travel with the job."""


@message
class AggregateAnswer:
    """Answer to an AggregateUpdate: the new value of the aggregate."""

    coordinator: str
    """Id of the coordinator that keeps the aggregates."""
    result: bytes | None
    """The new result, pickled.
    None: another coordinator, which has died, has answered the attempt's last update. The values
    before are lost, and the value was not added.
    """


class StreamCoordinatorGateway(RpcGateway):
    """Coordinates the sources of a stream job, and keeps the job's global aggregates.
    It outlives its *owner*, the JobMaster that has started it.

    Tasks know the coordinator by the owner's id. The coordinator takes orders from one JobMaster:
    the owner, or the JobMaster that has taken over (adopted) the coordinator last.
    """

    # called by tasks

    @abstractmethod
    @ask_timeout(None)
    async def exchange(self, reader: ReaderProgress) -> tuple[bytes, ...]:
        """Return the events for a reader (a source's subtask) that the reader has not received yet.
        Waits for at least one event. Returns no events if the reader has made a newer call
        meanwhile, or if the sources were restored after its task was deployed. May be repeated.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner.
        """

    @abstractmethod
    async def exchange_until_cut(
        self, reader: ReaderProgress, checkpoint_id: int
    ) -> tuple[bytes, ...]:
        """Return the remaining events that the reader must receive before it takes its snapshot.
        *checkpoint_id* is the checkpoint of this snapshot. Returns no events if the checkpoint is
        complete or aborted.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner.
        """

    @abstractmethod
    async def results_are_at(self, job_master_id: JobMasterId, place: CollectorPlace) -> None:
        """Report the address of the task that collects the job's results.
        May be repeated. Late calls of earlier attempts of the task change nothing.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner.
        """

    @abstractmethod
    async def report_watermark(
        self, job_master_id: JobMasterId, group: str, member: str, watermark: int
    ) -> int:
        """Report a member's watermark, and return the least watermark of its alignment group.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner.
        """

    @abstractmethod
    @ask_timeout(None)
    async def await_hold(
        self, job_master_id: JobMasterId, holders: Holders, known: bool | None
    ) -> bool:
        """Return True if a consumer in *holders* is behind, so that the calling task must not read
        its source; otherwise False.

        Waits until the source's master hook is restored, and until the answer differs from *known*,
        the last answer that the task has got. *known* None: the task has no answer yet.
        """

    @abstractmethod
    @ask_timeout(None)
    async def printed(self, text: PrintedText) -> None:
        """Store printed lines until the client reads them. May be repeated.
        Returns when the task may send more.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner.
        """

    @abstractmethod
    @ask_timeout(60.0)
    @runs_to_completion
    async def update_global_aggregate(self, update: AggregateUpdate) -> AggregateAnswer:
        """Add a value to a global aggregate, and return its new value. May be repeated: the value
        is added once.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner.
            GlobalAggregateError: the user's function failed. The value was not added.
        """

    # called by the JobMaster

    @abstractmethod
    @ask_timeout(5.0)
    async def adopt(
        self, owner: JobMasterId, job_master_id: JobMasterId, listener_address: str
    ) -> AdoptedCoordinator:
        """Take over the coordinator.
        Called by the job's next JobMaster, which gives the orders from now on. The coordinator
        reports failures to this JobMaster. A repeated call gets the same answer.

        Raises:
            CoordinatorReplacedError: the coordinator has another owner, or the JobMaster that gives
                it orders lives.
        """

    @abstractmethod
    async def request_heartbeat(self, job_master_id: JobMasterId) -> None:
        """Answer at once: this shows that the process lives, even while enumerators are busy.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    @abstractmethod
    @runs_to_completion
    async def snapshot(
        self, job_master_id: JobMasterId, checkpoint_id: int, timestamp: int, directory: str
    ) -> tuple[CoordinatorSnapshot, ...]:
        """Fix which events the readers of all sources get before a checkpoint (the *cut*), and
        return the state of all enumerators at this point.

        Large state is written to *directory*. Readers get later events only after they have taken
        their snapshots. Master hooks are called after the cut (:meth:`master_states`).

        Raises:
            CheckpointStorageError: state cannot be written.
            OperatorError: an enumerator failed, or its state cannot be stored.
        """

    @abstractmethod
    @ask_timeout(None)
    async def master_states(
        self, job_master_id: JobMasterId, checkpoint_id: int
    ) -> tuple[MasterState, ...]:
        """Return the states of the master hooks for a checkpoint whose :meth:`snapshot` was taken.
        Waits until all hooks have their state.

        Raises:
            OperatorError: a hook has failed.
            StreamError: the states are too large.
            UnavailableError: the checkpoint is over.
        """

    @abstractmethod
    @runs_to_completion
    async def restore(self, job_master_id: JobMasterId, restored: RestoredCoordinators) -> None:
        """Restore the enumerators of all sources to the given state.
        Master hooks are restored later, when they are first needed. A repeated call with the same
        ``restored.restores`` does nothing.

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
        """Take back the splits that earlier attempts of the subtasks received after a checkpoint.

        Checkpoint 0 takes back all of their splits. May be repeated. *subtasks*: operator id ->
        pairs of subtask index and number of the new attempt. Raises OperatorError if an enumerator
        failed.
        """

    @abstractmethod
    @runs_to_completion
    async def checkpoint_ended(
        self, job_master_id: JobMasterId, order: CheckpointCompleted | CheckpointAborted
    ) -> None:
        """Report that a checkpoint is complete or aborted.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    @abstractmethod
    @ask_timeout(None)
    async def call_global_formats(
        self, job_master_id: JobMasterId, call: GlobalFormatsCall, blob_server: str | None
    ) -> None:
        """Prepare or finish the outputs of all output formats. May be repeated: a repeated call
        waits for the end of the first. *blob_server*: address of the server for code that was too
        large to be sent with the job.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
            OperatorError: a format failed. The coordinator also reports this to the JobMaster.
            RpcError: the code of a format cannot be fetched now.
        """

    @abstractmethod
    async def stop(self, job_master_id: JobMasterId) -> None:
        """End the coordinator: wait until the client has read the printed lines or is gone, close
        the enumerators, and remove the job's unpacked files from this machine.

        Raises:
            CoordinatorReplacedError: another JobMaster gives the orders.
        """

    # called by the client

    @abstractmethod
    @ask_timeout(None)
    async def find_results(self, known: CollectorPlace | None) -> CollectorPlace:
        """Wait until the address where the job's results are collected differs from *known*, and
        return the address. *known* None: the caller knows no address.
        """

    @abstractmethod
    @ask_timeout(None)
    async def read_printed(self, known: str | None, position: int) -> PrintedPart:
        """Return printed texts from *position* on.
        Waits some seconds for at least one text. A request for a position confirms that everything
        before the position was read. *known* is the coordinator that gave the position. The texts
        of another coordinator are read from their beginning.
        """
