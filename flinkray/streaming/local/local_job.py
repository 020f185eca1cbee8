"""Runs a whole stream program in the calling process: all subtasks in turn, in one thread.

One thread is the fastest way in one Python process. With a manual clock the run is deterministic:
the same program takes the same steps in the same order.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from flinkray.core.garbage_collection import RARELY, YOUNG
from flinkray.core.ids import JobID
from flinkray.streaming.channels import MemoryChannel, MemoryInputGate, MergingWriter
from flinkray.streaming.errors import OperatorError, StreamError, operator_error, user_frames
from flinkray.streaming.functions.global_aggregates import LocalGlobalAggregateManager
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.local.local_source import LocalSource
from flinkray.streaming.local.local_task import LocalTask
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
from flinkray.streaming.task.task import StreamTask, StreamTaskInput, close_all
from flinkray.streaming.time.time_service import (
    ProcessingTimeService,
    WaitingClock,
    WaitingSystemClock,
)
from flinkray.streaming.time.watermark_alignment import AlignmentGroups, TaskAlignment

POLL_INTERVAL = 0.005
"""Seconds between two polls of a source that cannot say when it will have records."""


class LocalJob:
    """One run of a graph, without checkpoints. Sinks commit at the end of their input.

    *clock*: processing time; a manual clock makes the run deterministic. None: the system clock.
    """

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
        with self._closing_on_failure():
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
        """Whether the job was closed or all its tasks have ended."""
        return self._closed or all(task.finished for task in self.tasks)

    def step(self) -> bool:
        """Do one step of every task. Returns False if there was nothing to do.

        Raises:
            OperatorError: user code or an operator failed. The job is closed then.
        """
        progressed = False
        with self._closing_on_failure():
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
        try:
            return action()
        except (Exception, SystemExit) as error:  # a function must not end the program
            failure = operator_error(error, acting.name)
            error.__traceback__ = user_frames(error)
            raise failure from error

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OperatorError as failure:
            try:
                self.close()
            finally:  # failures of close only follow from this one
                raise failure

    def run(self) -> None:
        """Run to the end, or until :meth:`cancel`."""
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
        """End the run soon; from any thread."""
        self._cancelled = True
        self._woken.set()

    def wake(self) -> None:
        """End the wait of the job, because a mailbox has new mail; from any thread."""
        self._woken.set()

    def close(self) -> None:
        """Close all operators."""
        if not self._closed:
            self._closed = True
            close_all([*self._running, *self._sources])


@contextmanager
def rare_searches() -> Iterator[None]:
    """Return a context manager that makes Python's garbage collections rarer.

    Batches have hardly any garbage, so frequent collections would only take time. Nothing
    changes if collections are already rarer, or off.
    """
    _Rarely.enter()
    try:
        yield
    finally:
        _Rarely.leave()


class _Rarely:
    """Makes garbage collections rare while at least one program runs in this process."""

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
