"""Defines the messages from which the next JobMaster of a job learns the state of its predecessor
and of the tasks. See ``docs/design/0051-taking-over.md``.
"""

from __future__ import annotations

from flinkray.core.ids import ExecutionGraphID, JobMasterId, JobVertexID
from flinkray.core.kv_states import KvStateRegistration
from flinkray.core.message import message
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import SharedPart, TaskDeployment, TaskExecutionState


@message
class SourceCoordinatorPlace:
    """Identifies and locates the coordinator of the job's sources, which survives its JobMaster."""

    attempt_number: int
    owner: JobMasterId
    """The JobMaster that started the coordinator; tasks identify the coordinator by this id."""
    address: str
    restores: int | None = None
    """How often the coordinator was restored, by its own report to the next JobMaster.
    None if it has not been asked yet."""
    has_readers: bool = True
    """Whether a task has requested splits since the last restore.
    The coordinator itself reports this."""


@message
class CoordinatorAttempt:
    """The last attempt of a vertex's coordinator (a Spark driver), and whether the attempt
    exists."""

    vertex_id: JobVertexID
    attempt_number: int
    is_present: bool
    """Whether the attempt exists.  False: the next deployment starts the next attempt."""


NOT_DEPLOYED = 1 << 31
"""Flag in :attr:`JobNotes.attempts`: the noted attempt is the next one and was not deployed yet.
Earlier attempts of the subtask no longer count, however they ended."""


@message
class JobNotes:
    """What the next JobMaster needs to know to take over the job's tasks. A JobMaster stores the
    notes in its SlotPool before it acts; new notes replace earlier notes."""

    graph_id: ExecutionGraphID
    parallelisms: tuple[int, ...]
    """Parallelism of each vertex, in the order of the execution graph."""
    attempts: bytes
    """Unsigned 32-bit integers, little endian, one per subtask in the order of the execution graph.
    0: the subtask was never deployed in this execution graph.  Otherwise the number of its current
    attempt plus one, with the flag NOT_DEPLOYED if the attempt was not deployed yet."""
    restores: int
    """How often the coordinators of sources have been restored."""
    source_coordinator: SourceCoordinatorPlace | None = None
    """Location of the sources' coordinator.  None if the job has no such coordinator, or if it does
    not exist yet.  The caller of ``take_over`` also sets None if the coordinator cannot be reached.
    """
    takeovers: int = 0
    """How many JobMasters have taken over the execution graph."""
    task_executors: tuple[WorkerLocation, ...] = ()
    """TaskExecutors that have, or are sent, the current attempts.
    Noted only for jobs with streaming sources."""
    is_being_scaled: bool = False
    """Whether all tasks are being stopped to change the parallelism. This is not a failure."""
    restarts: int = 0
    """Number of restarts of the job or of its regions."""
    failovers: int = 0
    """How many JobMasters of the job have died."""
    coordinators: tuple[CoordinatorAttempt, ...] = ()
    """Coordinators of the vertices that were ever deployed in this execution graph."""
    result: SparkResult | None = None
    """Result of the Spark stage whose result no vertex reads; None if there is none yet."""
    running_since: float = 0.0
    """Seconds since the epoch when the job became RUNNING; 0 if it is not running."""


@message
class FinishedTask:
    """An attempt that has finished, with the TaskExecutor's last report about it and its slot.
    Times are seconds since the epoch, by the clocks of the job's JobMasters; 0 if unknown."""

    state: TaskExecutionState
    slot: AllocatedSlot
    deployed_at: float = 0.0
    finished_at: float = 0.0
    """When the JobMaster received the report."""


@message
class ReportedTask:
    """An attempt that a TaskExecutor runs or has run, as reported to a new JobMaster."""

    deployment: TaskDeployment
    """The deployment as received, without the restored state."""
    state: ExecutionState
    """The last state that the TaskExecutor reported, even if no JobMaster received the report."""
    ended: TaskExecutionState | None = None
    """How the attempt ended; None if it runs."""
    is_stopping: bool = False
    """Whether the attempt was told to stop with a savepoint."""
    awaits_checkpoint: int | None = None
    """Id of a checkpoint, or 0.  The attempt has reported that it ends as soon as a checkpoint with
    a higher id is complete.  None: it has not reported so, but may wait for the next periodic
    checkpoint."""
    acknowledged: int = 0
    """Id of the latest checkpoint for which the attempt has written its state; 0 if none."""


@message
class ReportedGraph:
    """Attempts of one execution graph that a TaskExecutor runs or has run. Without tasks: attempts
    were started there, and the TaskExecutor has dropped what it knew of them, because a JobMaster
    has told it that the job goes on with another graph."""

    graph_id: ExecutionGraphID
    parts: tuple[SharedPart, ...]
    """Shared parts that the deployments refer to, without user code."""
    tasks: tuple[ReportedTask, ...]


@message
class TaskExecutorReport:
    """A TaskExecutor's report about a job, sent when it registers at the job's JobMaster."""

    location: WorkerLocation
    slots: tuple[AllocatedSlot, ...]
    graphs: tuple[ReportedGraph, ...]
    kv_states: tuple[KvStateRegistration, ...] = ()
    notes: JobNotes | None = None
    """The last notes that a JobMaster stored on the TaskExecutor; None if there are none.
    There may be later notes elsewhere."""
