"""Makes jobs whose tasks do what a test says: hold a slot, wait, end or fail.

They are stream programs, for clusters with threads and sockets. Each vertex calls a function in the
threads of its tasks. For clusters on virtual time see :mod:`flinkray.testing.function_jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

from flinkray.client.stream_job import stream_job
from flinkray.core.key_group_ranges import default_max_parallelism
from flinkray.scheduler.graph.job_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    JobGraph,
    RestartStrategy,
    SchedulerMode,
)
from flinkray.streaming.operators.operator import OperatorContext, StreamOperator
from flinkray.streaming.operators.source import BLOCK_RECORDS, SourceOperator
from flinkray.streaming.program.graph import StreamEdge, StreamGraph, StreamNode
from flinkray.streaming.records.partitioners import ForwardPartitioner, RebalancePartitioner
from flinkray.streaming.sources.result_files import FunctionInputs
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    NoRecords,
)

STEP = 5
"""Milliseconds between two steps of a function."""


@dataclass(frozen=True)
class TaskAttempt:
    """Argument of the function of a vertex: the attempt of a task that calls it."""

    subtask_index: int
    attempt_number: int


TaskFunction = Callable[[TaskAttempt], object]
"""Plain function, or function with ``yield``. At each ``yield`` the task does other things for a
few milliseconds: it can be cancelled there, and then the function is closed.

The task ends when the function returns, unless it reads another vertex: then it ends when that one
has ended.
"""


def waits(task: TaskAttempt) -> Generator[None, None, None]:
    """Wait until the task is cancelled."""
    while True:
        yield


def ends(task: TaskAttempt) -> None:
    """Return at once."""


class TaskJobBuilder:
    """Builder of a job: vertices are added first, then connected."""

    def __init__(
        self,
        name: str,
        *,
        restart_strategy: RestartStrategy | None = None,
        scheduler_mode: SchedulerMode = SchedulerMode.DEFAULT,
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        """Create a builder without vertices. *restart_strategy* None: the strategy that the
        configuration names."""
        self._graph = StreamGraph(name, chaining_enabled=False)
        self._restart_strategy = restart_strategy
        self._scheduler_mode = scheduler_mode
        self._configuration = configuration

    def add(
        self,
        function: TaskFunction,
        *,
        name: str | None = None,
        parallelism: int = 1,
        slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP,
    ) -> StreamNode:
        """Add a vertex whose tasks call *function*, and return it. *name* None: the name of the
        function."""
        node = StreamNode(
            len(self._graph.nodes),
            name or getattr(function, "__name__", None) or type(function).__name__,
            _FunctionSource(function),
            parallelism,
            default_max_parallelism(parallelism),
            slot_sharing_group=slot_sharing_group,
        )
        self._graph.nodes.append(node)
        return node

    def connect(
        self, producer: StreamNode, consumer: StreamNode, *, is_pointwise: bool = False
    ) -> None:
        """Add an edge from *producer* to *consumer*, on which no records travel. The producer must
        have been added to the builder before the consumer. *is_pointwise*: subtask i reads only
        subtask i; otherwise each subtask reads all subtasks."""
        partitioner = ForwardPartitioner() if is_pointwise else RebalancePartitioner()
        if isinstance(consumer.operator, _FunctionSource):
            consumer.operator = _FunctionReader(consumer.operator.function)
        self._graph.connect(StreamEdge(producer, consumer, 0, partitioner))

    def build(self) -> JobGraph:
        """Build the job graph. Raises JobSubmissionError if the job could never run."""
        job = stream_job(self._graph, configuration=self._configuration)
        return replace(
            job, restart_strategy=self._restart_strategy, scheduler_mode=self._scheduler_mode
        )


def task_job(
    function: TaskFunction,
    *,
    name: str | None = None,
    parallelism: int = 1,
    restart_strategy: RestartStrategy | None = None,
    configuration: Mapping[str, str] | None = None,
) -> JobGraph:
    """Make a job of one vertex; :class:`TaskJobBuilder` makes larger ones."""
    label = name or getattr(function, "__name__", None) or type(function).__name__
    builder = TaskJobBuilder(label, restart_strategy=restart_strategy, configuration=configuration)
    builder.add(function, name=label, parallelism=parallelism)
    return builder.build()


class _Steps:
    """The call of a vertex's function by one task, step by step."""

    def __init__(self, function: TaskFunction, context: OperatorContext) -> None:
        self._function = function
        self._task = TaskAttempt(context.subtask_index, context.attempt_number)
        self._generator: Generator[None, None, None] | None = None
        self._has_begun = False

    def go_on(self) -> bool:
        """Do the next step of the call; return whether the function has returned."""
        if not self._has_begun:
            self._has_begun = True
            returned = self._function(self._task)
            if isinstance(returned, Generator):
                self._generator = returned
        if self._generator is not None:
            try:
                next(self._generator)
                return False
            except StopIteration:
                self._generator = None
        return True

    def close(self) -> None:
        if self._generator is not None:
            self._generator.close()


class _FunctionSource(SourceOperator):
    """Runs the function of a vertex without inputs."""

    def __init__(self, function: TaskFunction) -> None:
        super().__init__(FunctionInputs(Boundedness.CONTINUOUS_UNBOUNDED))
        self.function = function

    def open(self) -> None:
        super().open()
        self._steps = _Steps(self.function, self.context)

    def emit_next(self, most: int = BLOCK_RECORDS) -> NoRecords | int:
        return END_OF_INPUT if self._steps.go_on() else NOTHING_NOW

    def close(self) -> None:
        super().close()
        self._steps.close()


class _FunctionReader(StreamOperator):
    """Runs the function of a vertex that reads another one."""

    def __init__(self, function: TaskFunction) -> None:
        self._function = function

    def open(self) -> None:
        self._steps = _Steps(self._function, self.context)
        self._go_on(0)

    def _go_on(self, timestamp: int) -> None:
        if not self._steps.go_on():
            service = self.context.time_service
            service.schedule(service.now() + STEP, self._go_on)

    def close(self) -> None:
        self._steps.close()
