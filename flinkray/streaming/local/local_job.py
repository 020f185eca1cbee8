"""Runs a whole stream program in the calling process: all subtasks in turn, in one thread.

One thread is the fastest way in one Python process. With a manual clock the run is deterministic:
the same program takes the same steps in the same order.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from flinkray.core.clock import Clock
from flinkray.core.garbage_collection import RARELY, YOUNG
from flinkray.core.ids import JobID
from flinkray.streaming.channels import MemoryChannel, MemoryInputGate, MergingWriter
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.global_aggregates import LocalGlobalAggregateManager
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.operator_errors import operator_error, user_frames
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.chain_builder import (
    ChainBuilder,
    OperatorCopies,
    channel_targets,
    prepared_partitioner,
)
from flinkray.streaming.program.chain_plan import (
    ChainPlan,
    PlannedResult,
    edges_of,
    global_formats,
    plan_chain,
)
from flinkray.streaming.program.graph import Chain, StreamGraph
from flinkray.streaming.sinks.output_format import GlobalFormat
from flinkray.streaming.sources.coordinator import NO_MORE_SPLITS, SourceCoordinator
from flinkray.streaming.sources.source import Source
from flinkray.streaming.task.task import StreamTask, StreamTaskInput, close_all
from flinkray.streaming.task.task_mailbox import MailboxClosedError
from flinkray.streaming.time.time_service import (
    ProcessingTimeService,
    WaitingClock,
    WaitingSystemClock,
)
from flinkray.streaming.time.watermark_alignment import AlignmentGroups, TaskAlignment

POLL_INTERVAL = 0.005
"""Seconds between two polls of a source that cannot say when it will have records."""


class LocalJob:
    """One run of a graph, without checkpoints. Sinks commit at the end of their input. *clock*:
    gives processing time; a manual clock makes the run deterministic. None: the system clock."""

    def __init__(self, graph: StreamGraph, clock: WaitingClock | None = None) -> None:
        if not graph.nodes:
            raise StreamError("the program has no operators: there is nothing to execute")
        self._graph = graph
        self.clock: WaitingClock = clock or WaitingSystemClock()
        self._job_id = JobID.generate().hex()
        self._metrics = MetricGroup()
        self._global_aggregates = LocalGlobalAggregateManager()
        self.tasks: list[StreamTask] = []
        self._running: list[LocalTask] = []
        self._sources: list[LocalSource] = []
        self._formats: list[tuple[GlobalFormat, int]] = []
        """The formats with work for all subtasks together, each with its parallelism."""
        self._formats_are_done = False
        self._copies = OperatorCopies()
        self._alignment_groups = AlignmentGroups()
        self._alignments: list[TaskAlignment] = []
        self._operator_ids = graph.operator_ids()
        self._edges = edges_of(graph)
        self._numbers = {id(edge): number for number, edge in enumerate(self._edges)}
        self._channels: dict[tuple[int, int, int], MemoryChannel] = {}
        self._cancelled = False
        self._woken = threading.Event()
        self._closed = False
        chains = graph.chains()
        for chain in chains:
            self._make_channels(chain)
        for chain in chains:
            self._make_tasks(chain)
        self._open()

    # --- building -----------------------------------------------------------------------------

    def _make_channels(self, chain: Chain) -> None:
        for edge in chain.head.inputs:
            for producer in range(edge.source.parallelism):
                for consumer in channel_targets(edge, producer):
                    self._channels[self._numbers[id(edge)], producer, consumer] = MemoryChannel()

    def _make_tasks(self, chain: Chain) -> None:
        plan = plan_chain(self._graph, chain)
        tasks = [self._make_task(chain, plan, subtask) for subtask in range(chain.parallelism)]
        self.tasks += tasks
        self._running += [LocalTask(task, self.wake) for task in tasks]
        self._formats += [(one, chain.parallelism) for one in global_formats(plan)]
        if isinstance(chain.head.operator, SourceOperator):
            self._sources.append(LocalSource(chain.head.operator.source, tasks, self.clock))

    def _make_task(self, chain: Chain, plan: ChainPlan, subtask: int) -> StreamTask:
        time_service = ProcessingTimeService(self.clock)
        name = f"{chain.name} ({subtask + 1}/{chain.parallelism})"
        builder = ChainBuilder(
            plan,
            self._copies.copy_of,
            lambda result: self._make_writer(plan.results[result], subtask, time_service),
            subtask,
            chain.parallelism,
            0,
            self.clock,
            time_service,
            self._metrics,
            self._global_aggregates,
            self._join_alignment(chain, subtask),
            self._job_id,
        )
        head = builder.build()
        channels: list[MemoryChannel] = []
        channel_inputs: list[tuple[int, int]] = []
        counts = [0] * max(1, len(head.inputs()))
        for edge in chain.head.inputs:
            for producer in range(edge.source.parallelism):
                channel = self._channels.get((self._numbers[id(edge)], producer, subtask))
                if channel is not None:
                    channels.append(channel)
                    channel_inputs.append((edge.input_index, counts[edge.input_index]))
                    counts[edge.input_index] += 1
        inputs = [
            StreamTaskInput(port, count) for port, count in zip(head.inputs(), counts, strict=True)
        ]
        return StreamTask(
            name,
            builder.operators,
            MemoryInputGate(channels),
            inputs,
            channel_inputs,
            builder.writers,
            time_service,
            turn=builder.turn,
        )

    def _join_alignment(self, chain: Chain, subtask: int) -> TaskAlignment | None:
        if not isinstance(chain.head.operator, SourceOperator):
            return None
        task = f"{self._operator_ids[chain.head.id]}/{subtask}"
        self._alignments.append(TaskAlignment(task, self._align))
        return self._alignments[-1]

    def _align(self, group: str, member: str, watermark: int) -> None:
        least = self._alignment_groups.report(group, member, watermark)
        for alignment in self._alignments:
            alignment.announce(group, least)

    def _make_writer(
        self, result: PlannedResult, producer: int, time_service: ProcessingTimeService
    ) -> MergingWriter:
        channels = [
            self._channels[result.edge, producer, consumer]
            for consumer in channel_targets(self._edges[result.edge], producer)
        ]
        partitioner = prepared_partitioner(result, len(channels), producer)
        return MergingWriter(channels, partitioner, result.buffer_timeout, time_service)

    def _open(self) -> None:
        for one, parallelism in self._formats:
            self._guarded(one, partial(one.initialize, parallelism))
        for source in self._sources:
            self._guarded(source, source.start)
        for running in self._running:
            self._guarded(running, running.open)
        for source in self._sources:
            self._guarded(source, source.serve)

    # --- running ------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._closed or all(task.finished for task in self.tasks)

    def step(self) -> bool:
        """Do one step of every task. Returns False if there was nothing to do.
        Raises OperatorError: user code or an operator failed. The job is closed then."""
        progressed = False
        for running in self._running:
            if not running.task.finished and self._guarded(running, running.step):
                progressed = True
        for source in self._sources:
            if self._guarded(source, source.serve):
                progressed = True
        if not self._formats_are_done and all(task.finished for task in self.tasks):
            self._formats_are_done = True
            for one, parallelism in self._formats:
                self._guarded(one, partial(one.finalize, parallelism))
        return progressed

    def _guarded(
        self, acting: LocalTask | LocalSource | GlobalFormat, action: Callable[[], Any]
    ) -> Any:
        """Return the result of *action*. If it fails, close the job and raise OperatorError."""
        try:
            return action()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again; SystemExit: functions must not end the program
            failure = operator_error(error, acting.name)
            error.__traceback__ = user_frames(error)
            try:
                self.close()
            finally:  # failures of close only follow from this one
                raise failure from error

    def run(self) -> None:
        """Do steps until all tasks have finished, or until :meth:`cancel`. Then close the job."""
        with rare_searches():
            while not self.finished and not self._cancelled:
                self.advance()
        self.close()

    def advance(self) -> None:
        """Do one step of every task. If there is nothing to do, wait for work."""
        if not self.step() and not self.finished:
            self._wait()

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def _wait(self) -> None:
        now = self.clock.time()
        waits = [
            deadline / 1000 - now
            for task in self.tasks
            if not task.turn.is_waiting
            and (deadline := task.time_service.next_deadline()) is not None
        ]
        waits += [
            POLL_INTERVAL if at is None else at - now
            for source in self._sources
            for at in source.wake_up_times()
            if at != math.inf
        ]
        self.clock.wait(max(min(waits, default=POLL_INTERVAL), 0.0), self._woken)
        self._woken.clear()

    def cancel(self) -> None:
        """Make the run end soon; may be called from any thread."""
        self._cancelled = True
        self._woken.set()

    def wake(self) -> None:
        """End the job's wait for work, because there is new mail; may be called from any thread."""
        self._woken.set()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_all([*self._running, *self._sources])


@contextmanager
def rare_searches() -> Iterator[None]:
    """Return a context manager that makes Python's garbage collections rarer.
    Batches have hardly any garbage, so frequent collections would only take time. Nothing changes
    if collections are already rarer, or off."""
    _Rarely.enter()
    try:
        yield
    finally:
        _Rarely.leave()


class _Rarely:
    """Keeps garbage collections rare while at least one program runs in this process."""

    _lock = threading.Lock()
    _programs = 0
    _before: tuple[int, int, int] | None = None
    """The thresholds to restore after the last program; None: they were not changed."""

    @classmethod
    def enter(cls) -> None:
        with cls._lock:
            cls._programs += 1
            thresholds = gc.get_threshold()
            if cls._programs == 1 and 0 < thresholds[0] < YOUNG:
                cls._before = thresholds
                gc.set_threshold(*RARELY)

    @classmethod
    def leave(cls) -> None:
        with cls._lock:
            cls._programs -= 1
            if cls._programs == 0 and cls._before is not None:
                if gc.get_threshold() == RARELY:  # nobody has changed them since
                    gc.set_threshold(*cls._before)
                cls._before = None


class LocalTask:
    """Runs a task in a greenlet. *wake* is called when the task has work; from any thread.

    A step of a task may have to stop in the middle of a batch, deep in user code, until other tasks
    have read its results. A greenlet has a stack of its own, and like a thread it has its own
    context variables, among them the contexts of ``decimal`` and NumPy.
    """

    def __init__(self, task: StreamTask, wake: Callable[[], None]) -> None:
        self.task = task
        self.name = task.name
        self._wake = wake
        task.turn.pause = self._pause
        task.turn.wait_until = self._wait_until
        task.turn.wake = wake
        task.turn.post = self._post
        self._context = copy_context()
        self._stack: greenlet | None = None
        """Goes on from step to step: a new greenlet for each would cost the task new memory."""
        self._is_in_step = False
        """Whether the stack was left in the middle of a step."""
        self._running: greenlet | None = None
        self._thread: threading.Thread | None = None
        """The thread of the last step, which the greenlet's stack belongs to."""
        self._to_step: list[StreamTask] = []
        """The task, until its step begins."""

    def open(self) -> None:
        self._context.run(self.task.open)

    def step(self) -> bool:
        """Do a step of the task, or continue one that was stopped, until it would have to wait.
        Returns False if there was nothing to do."""
        stack, thread = self._stack, threading.current_thread()
        if self._is_in_step and self._thread is not thread:
            raise StreamError(
                "a program in this process goes on in the thread that it was begun in: take all of "
                "its results in one thread, or run it with execute_async"
            )
        if self._is_in_step and not self.task.has_room():
            return False
        if stack is None or self._thread is not thread:
            self._stack = stack = greenlet(_step_again_and_again)
            stack.gr_context = self._context
            self._thread = thread
        stack.parent = getcurrent()  # the parent may change if a function runs this job
        if not self._is_in_step:
            self._to_step.append(self.task)
        self._is_in_step, self._running = False, stack
        try:
            return bool(stack.switch(self._to_step))
        finally:
            self._running = None
            if stack.dead and self._stack is stack:  # the step has failed
                self._stack = None

    def _pause(self) -> None:
        monotonic = self.task.time_service.clock.monotonic
        begun = monotonic()
        self._leave(True)
        self.task.turn.paused += monotonic() - begun

    def _leave(self, progressed: bool) -> None:
        stack = self._running
        if stack is not None and stack is getcurrent() and stack.parent is not None:
            self._is_in_step = True
            stack.parent.switch(progressed)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        turn = self.task.turn
        turn.is_waiting = True
        try:
            while not condition():
                self.task.flush()
                self._leave(False)
        finally:
            turn.is_waiting = False

    def _post(self, mail: Callable[[], None]) -> None:
        with suppress(MailboxClosedError):
            self.task.mailbox.put(mail)
        self._wake()

    def close(self) -> None:
        """Close the operators. A batch in progress is abandoned now or, if another thread calls
        this method, later in the greenlet's own thread."""
        stack, self._stack, self._is_in_step = self._stack, None, False
        try:
            is_of_here = self._thread is threading.current_thread()
            if stack is not None and is_of_here and stack is not getcurrent():
                stack.parent = getcurrent()  # where control goes when the stack has ended
                stack.throw(GreenletExit)
        finally:
            self._context.run(self.task.close)


def _step_again_and_again(to_step: list[StreamTask]) -> None:
    """Run in the greenlet of a task. Between two steps this function holds nothing of the task:
    otherwise a job that nobody refers to any more could not be freed."""
    while True:
        progressed = to_step.pop().step()
        parent = getcurrent().parent
        assert parent is not None
        parent.switch(progressed)
        del parent


class LocalSource:
    """Connects a source's coordinator with the readers of all its tasks, in a local job."""

    def __init__(self, source: Source[Any], tasks: Sequence[StreamTask], clock: Clock) -> None:
        self._source = source
        self.tasks = list(tasks)
        self._clock = clock
        self.name = f"enumerator of {self.tasks[0].name}"
        self._requests = [0] * len(self.tasks)
        self._told = [0] * len(self.tasks)
        self._is_heard = False
        """Whether the coordinator knows the readers."""
        self._changes = 0
        """The coordinator's changes whose events the readers have."""

    def start(self) -> None:
        self._coordinator = SourceCoordinator(self._clock)
        self._coordinator.start(self._source, len(self.tasks))

    def serve(self) -> bool:
        """Pass on the readers' requests to the enumerator and its events to the readers. Look for
        new splits when the time for that has come. Returns whether a reader got an event."""
        coordinator = self._coordinator
        for subtask in range(len(self.tasks)):
            context = self._operator(subtask).reader_context
            if context.split_requested or not self._is_heard:
                self._requests[subtask] += context.split_requested
                context.split_requested = False
                told = self._told[subtask]
                coordinator.heard(subtask, 0, self._requests[subtask], position=told)
        self._is_heard = True
        discovery = coordinator.next_discovery_time()
        if discovery is not None and discovery <= self._clock.time():
            coordinator.discover()
        changes = coordinator.changes
        if changes == self._changes:
            return False
        self._changes = changes  # read before the events: those of a later change come again
        any_told = False
        for subtask in range(len(self.tasks)):
            operator = self._operator(subtask)
            for event in coordinator.events(subtask, 0, self._told[subtask]) or ():
                any_told = True
                self._told[subtask] += 1
                if event is NO_MORE_SPLITS:
                    operator.no_more_splits()
                else:
                    operator.add_splits([event])
        return any_told

    def _operator(self, subtask: int) -> SourceOperator:
        head = self.tasks[subtask].head
        assert isinstance(head, SourceOperator)
        return head

    def wake_up_times(self) -> Iterator[float | None]:
        """Yield the times, in seconds of the clock, at which the enumerator and each reader that
        may read have work to do next. None: a reader does not know its time."""
        waiting = [task for task in self.tasks if not task.has_ended]
        for task in waiting:
            assert isinstance(task.head, SourceOperator)
            if not task.head.paused and not task.turn.is_waiting:  # others are woken
                yield task.head.reader.next_poll_time()
        discovery = self._coordinator.next_discovery_time()
        if waiting and discovery is not None:
            yield discovery

    def close(self) -> None:
        coordinator = getattr(self, "_coordinator", None)
        if coordinator is not None:
            coordinator.close()
