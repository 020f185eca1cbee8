"""What the next JobMaster of a job learns of the one before and of what runs.

See ``docs/design/0051-taking-over.md``.
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
    """The coordinator of the job's sources, which lives on without its JobMaster."""

    attempt_number: int
    owner: JobMasterId
    """The JobMaster that started it: tasks know it by this id."""
    address: str
    restores: int | None = None
    """How often it has been restored, as it says itself when the next JobMaster reaches it; None:
    nobody has asked it yet."""
    has_readers: bool = True
    """Whether any task has asked it for splits since then, as it says itself."""


@message
class CoordinatorAttempt:
    """The last attempt of the coordinator of a vertex: its Spark driver."""

    vertex_id: JobVertexID
    attempt_number: int
    is_present: bool
    """False: the next one is to begin, when the vertex is deployed again."""


NOT_DEPLOYED = 1 << 31
"""Of a number in :attr:`JobNotes.attempts`: that attempt is the next one, and was never deployed.
Those before it count no more, whatever became of them."""


@message
class JobNotes:
    """What a JobMaster tells its SlotPool before it acts on it; later notes replace all earlier
    ones."""

    graph_id: ExecutionGraphID
    parallelisms: tuple[int, ...]
    """Per vertex, in the order of the execution graph."""
    attempts: bytes
    """Per subtask, in the order of the execution graph, an unsigned 32-bit integer, little endian:
    0 if it was never deployed in this execution graph, else the number of its present attempt plus
    one; with NOT_DEPLOYED, if that is to be restarted and was not deployed yet."""
    restores: int
    """How often the coordinators of sources have been restored."""
    source_coordinator: SourceCoordinatorPlace | None = None
    """None: the job has none, or it is not there yet; whoever hands the notes to ``take_over`` puts
    None in its place, too, if it cannot be reached."""
    takeovers: int = 0
    """How many JobMasters have taken the execution graph over."""
    task_executors: tuple[WorkerLocation, ...] = ()
    """Of a job with stream sources, those that have, or are sent, its present attempts."""
    is_being_scaled: bool = False
    """All is stopped, to be executed with another parallelism, though nothing has failed."""
    restarts: int = 0
    """Of the job, or of regions of it, so far."""
    failovers: int = 0
    """How many JobMasters have died before."""
    coordinators: tuple[CoordinatorAttempt, ...] = ()
    """Of the coordinated vertices that were ever deployed in this execution graph."""
    result: SparkResult | None = None
    """What a Spark stage has told that nothing of the job reads."""
    running_since: float = 0.0
    """Seconds since the epoch: since when the job is RUNNING; 0: it is not."""


@message
class FinishedTask:
    """An attempt that has finished, and the slot in which it has.

    Times are seconds since the epoch, by the clocks of the job's JobMasters; 0: not known.
    """

    state: TaskExecutionState
    slot: AllocatedSlot
    deployed_at: float = 0.0
    finished_at: float = 0.0
    """When its JobMaster heard of it."""


@message
class ReportedTask:
    """An attempt that a TaskExecutor has or had."""

    deployment: TaskDeployment
    """As it was deployed, but for the state that it was restored from."""
    state: ExecutionState
    """As was reported last, be it that nobody heard it."""
    ended: TaskExecutionState | None = None
    """How it ended; None: it runs."""
    is_stopping: bool = False
    """It has been told to stop with a savepoint."""
    awaits_checkpoint: int | None = None
    """It ends when a checkpoint later than this one is complete, and has said so; 0: any.  None: it
    has not said so, and waits at most for the next periodic one."""


@message
class ReportedGraph:
    """The attempts of one execution graph that a TaskExecutor has."""

    graph_id: ExecutionGraphID
    parts: tuple[SharedPart, ...]
    """To which the deployments refer; without users' code."""
    tasks: tuple[ReportedTask, ...]


@message
class TaskExecutorReport:
    """What a TaskExecutor has of a job, when it registers at a JobMaster of it."""

    location: WorkerLocation
    slots: tuple[AllocatedSlot, ...]
    graphs: tuple[ReportedGraph, ...]
    kv_states: tuple[KvStateRegistration, ...] = ()
