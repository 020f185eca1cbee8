"""Runs a whole stream program in the calling process: all subtasks in turn, in one thread.

One thread is the fastest way in one Python process. With a manual clock the run is deterministic:
the same program and seed take the same steps in the same order.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from flinkray.core.garbage_collection import RARELY, YOUNG
from flinkray.core.ids import JobID
from flinkray.state import OperatorSnapshot
from flinkray.streaming.channels import InputGate, MemoryChannel, RecordWriter
from flinkray.streaming.checkpoint.subtask_checkpoints import CheckpointResponder
from flinkray.streaming.errors import OperatorError, StreamError, operator_error, user_frames
from flinkray.streaming.functions.global_aggregates import LocalGlobalAggregateManager
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.local.local_source import LocalSource
from flinkray.streaming.local.local_task import LocalTask
from flinkray.streaming.local.pending_checkpoint import (
    ChannelID,
    Checkpoint,
    PendingLocalCheckpoint,
)
from flinkray.streaming.operators.operator import OperatorState, OperatorStateCapture
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.chain_builder import (
    ChainBuilder,
    OperatorCopies,
    channel_targets,
    prepared_partitioner,
)
from flinkray.streaming.program.chain_plan import ChainPlan, PlannedResult, edges_of, plan_chain
from flinkray.streaming.program.graph import Chain, StreamGraph
from flinkray.streaming.records.elements import Barrier, Element
from flinkray.streaming.records.in_flight import InFlight, given_again
from flinkray.streaming.sources.enumerator_state import EnumeratorState
from flinkray.streaming.task.task import StreamTask, StreamTaskInput, close_all
from flinkray.streaming.task.task_mailbox import MailboxClosedError, TaskMailbox
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.waiting_clock import WaitingClock, WaitingSystemClock
from flinkray.streaming.time.watermark_alignment import AlignmentGroups, TaskAlignment

POLL_INTERVAL = 0.005
"""Seconds between two polls of a source that cannot say when it will have records."""


class LocalJob:
    """One run of a graph.

    *clock*: processing time; a manual clock makes the run deterministic. None: the system clock.
    *seed*: decides where rebalancing begins, and how records are shuffled. *restore* None: the run
    begins anew. *final_checkpoints*: True: when tasks only wait for a checkpoint before they end,
    the job takes one. False: the caller has to trigger it.
    """

    def __init__(
        self,
        graph: StreamGraph,
        clock: WaitingClock | None = None,
        seed: int = 0,
        restore: Checkpoint | None = None,
        attempt: int = 0,
        final_checkpoints: bool = True,
    ) -> None:
        if not graph.nodes:
            raise StreamError("the program has no operators: there is nothing to execute")
        self.graph = graph
        self.clock: WaitingClock = clock or WaitingSystemClock()
        self.seed = seed
        self.attempt = attempt
        self._job_id = JobID.generate().hex()
        self.metrics = MetricGroup()
        self._global_aggregates = LocalGlobalAggregateManager()
        self.tasks: list[StreamTask] = []
        self._running: list[LocalTask] = []
        self._sources: list[LocalSource] = []
        self._copies = OperatorCopies()
        self._alignment_groups = AlignmentGroups()
        self._alignments: list[TaskAlignment] = []
        self._operator_ids = graph.operator_ids()
        self._edges = edges_of(graph)
        self._numbers = {id(edge): number for number, edge in enumerate(self._edges)}
        self._channels: dict[tuple[int, int, int], MemoryChannel] = {}
        self._requests = TaskMailbox()
        self._checkpoints: dict[int, PendingLocalCheckpoint] = {}
        self._restored_from = 0 if restore is None else restore.checkpoint_id
        self._latest_checkpoint = self._restored_from
        self._takes_final_checkpoints = final_checkpoints
        self._cancelled = False
        self._woken = threading.Event()
        self._closed = False
        chains = graph.chains()
        for chain in chains:
            self._make_channels(chain)
        for chain in chains:
            self._make_tasks(chain)
        self._open(restore)

    # --- building -----------------------------------------------------------------------------

    def _make_channels(self, chain: Chain) -> None:
        for edge in chain.head.inputs:
            for producer in range(edge.source.parallelism):
                for consumer in channel_targets(edge, producer):
                    self._channels[self._numbers[id(edge)], producer, consumer] = MemoryChannel()

    def _make_tasks(self, chain: Chain) -> None:
        plan = plan_chain(self.graph, chain)
        tasks = [self._make_task(chain, plan, subtask) for subtask in range(chain.parallelism)]
        self.tasks += tasks
        self._running += [LocalTask(task, self.wake) for task in tasks]
        if isinstance(chain.head.operator, SourceOperator):
            operator_id = self._operator_ids[chain.head.id]
            self._sources.append(
                LocalSource(operator_id, chain.head.operator.source, tasks, self.clock)
            )

    def _make_task(self, chain: Chain, plan: ChainPlan, subtask: int) -> StreamTask:
        time_service = ProcessingTimeService(self.clock)
        name = f"{chain.name} ({subtask + 1}/{chain.parallelism})"
        builder = ChainBuilder(
            plan,
            self._copies.copy_of,
            lambda result: self._make_writer(plan.results[result], subtask, time_service),
            subtask,
            chain.parallelism,
            self.attempt,
            self.clock,
            time_service,
            self.seed,
            self.metrics,
            self._global_aggregates,
            self._join_alignment(chain, subtask),
            self._job_id,
        )
        head = builder.build()
        responder = _Responder(self, subtask)
        channels: list[MemoryChannel] = []
        channel_inputs: list[tuple[int, int]] = []
        counts = [0] * max(1, len(head.inputs()))
        for edge in chain.head.inputs:
            for producer in range(edge.source.parallelism):
                channel = self._channels.get((self._numbers[id(edge)], producer, subtask))
                if channel is not None:
                    channels.append(channel)
                    responder.channels.append((self._numbers[id(edge)], producer, subtask))
                    channel_inputs.append((edge.input_index, counts[edge.input_index]))
                    counts[edge.input_index] += 1
        inputs = [
            StreamTaskInput(port, count) for port, count in zip(head.inputs(), counts, strict=True)
        ]
        task = StreamTask(
            name,
            builder.operators,
            InputGate(channels),
            inputs,
            channel_inputs,
            builder.writers,
            time_service,
            responder,
            builder.turn,
            restored_from=self._restored_from,
        )
        responder.task = task
        return task

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
    ) -> RecordWriter:
        channels = [
            self._channels[result.edge, producer, consumer]
            for consumer in channel_targets(self._edges[result.edge], producer)
        ]
        partitioner = prepared_partitioner(result, len(channels), self.seed, producer)
        return RecordWriter(channels, partitioner, result.buffer_timeout, time_service)

    def _open(self, restore: Checkpoint | None) -> None:
        enumerators = {} if restore is None else restore.coordinators
        states = {} if restore is None else restore.operators
        with self._closing_on_failure():
            for source in self._sources:
                enumerator = enumerators.get(source.operator_id)
                self._guarded(source, partial(source.start, enumerator))
            for running in self._running:
                mine = {
                    operator_id: assigned_states(
                        states,
                        operator_id,
                        operator.context.subtask_index,
                        operator.context.parallelism,
                    )
                    for operator_id, operator in running.task.operators
                }
                self._guarded(running, partial(running.open, mine))
            for source in self._sources:
                self._guarded(source, source.serve)
        for channel, elements in ({} if restore is None else restore.in_flight).items():
            for element in given_again(elements):
                self._channels[channel].put(element)

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
        progressed = self._requests.run_pending()
        with self._closing_on_failure():
            for running in self._running:
                if running.task.finished:
                    continue
                if self._guarded(running, running.step):
                    progressed = True
                if running.task.finished:
                    self._has_ended(running.task)
            for source in self._sources:
                if not self._is_dividing(source) and self._guarded(source, source.serve):
                    progressed = True
        return progressed or self._begins_final_checkpoint()

    def _begins_final_checkpoint(self) -> bool:
        waiting = any(task.awaits_checkpoint for task in self.tasks)
        if not waiting or self._checkpoints or not self._takes_final_checkpoints:
            return False
        self.trigger_checkpoint(self._latest_checkpoint + 1, lambda _: None, lambda _: None)
        return True

    def _is_dividing(self, source: LocalSource) -> bool:
        """Return whether a pending checkpoint has the enumerator's state, but not all readers'.

        Then no reader may get a split, which would be in both states.
        """
        return any(each.awaits_any(source.tasks) for each in self._checkpoints.values())

    def _guarded(self, acting: LocalTask | LocalSource, action: Callable[[], Any]) -> Any:
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

    def run_until_idle(self) -> None:
        """Do steps until nothing more can happen without time passing or an event from outside."""
        while not self._cancelled and self.step():
            pass
        if self.finished:
            self.close()

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
            try:
                close_all([*self._running, *self._sources])
            finally:
                self._decline_checkpoints()

    # --- checkpoints --------------------------------------------------------------------------

    def trigger_checkpoint(
        self,
        checkpoint_id: int,
        on_complete: Callable[[Checkpoint], None],
        on_declined: Callable[[str], None],
        unaligned: bool = False,
    ) -> None:
        """Send a barrier through the job with the next step; from any thread.

        Args:
            on_complete: called with the checkpoint, which has every operator's state.
            on_declined: called with the reason if the job has ended, ends before all tasks have
                taken part, or if a task aborts the checkpoint (for a later one, for example).
            unaligned: True: the barrier overtakes elements in flight, which become part of the
                checkpoint.
        """
        pending = PendingLocalCheckpoint(checkpoint_id, on_complete, on_declined, unaligned)
        try:
            self._requests.put(partial(self._begin_checkpoint, pending))
        except MailboxClosedError:
            pending.decline(self._why_it_ended())
        self.wake()

    def _begin_checkpoint(self, pending: PendingLocalCheckpoint) -> None:
        if self.finished:
            pending.decline(self._why_it_ended())
            return
        checkpoint_id = pending.checkpoint_id
        self._checkpoints[checkpoint_id] = pending
        self._latest_checkpoint = max(self._latest_checkpoint, checkpoint_id)
        enumerators: dict[str, EnumeratorState | None] = {}
        try:
            for source in self._sources:
                snapshot = partial(source.snapshot, checkpoint_id)
                enumerators[source.operator_id] = self._guarded(source, snapshot)
        except OperatorError as error:
            self.decline_checkpoint(checkpoint_id, str(error))
            return
        pending.begin(int(self.clock.time() * 1000), self.tasks, enumerators)

    def pending_checkpoint(self, checkpoint_id: int) -> PendingLocalCheckpoint | None:
        """Return the pending checkpoint of that id; None if it was declined or is complete."""
        return self._checkpoints.get(checkpoint_id)

    def acknowledge_checkpoint(
        self,
        checkpoint_id: int,
        task: StreamTask,
        subtask: int,
        states: Mapping[str, OperatorState],
    ) -> None:
        """Store the state of a task, which has taken part in the checkpoint."""
        pending = self._checkpoints.get(checkpoint_id)
        if pending is not None:
            pending.acknowledge(task, subtask, states)
            self._complete_if_all_took_part(pending)

    def decline_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        """Decline a checkpoint because a task cannot take part in it."""
        pending = self._checkpoints.pop(checkpoint_id, None)
        if pending is not None:
            for source in self._sources:
                source.checkpoint_aborted(checkpoint_id)
            pending.decline(reason)

    def _has_ended(self, task: StreamTask) -> None:
        for pending in list(self._checkpoints.values()):
            pending.has_ended(task, self.tasks)
            self._complete_if_all_took_part(pending)

    def _complete_if_all_took_part(self, pending: PendingLocalCheckpoint) -> None:
        if pending.is_complete:
            del self._checkpoints[pending.checkpoint_id]
            for source in self._sources:
                completed = partial(source.checkpoint_completed, pending.checkpoint_id)
                self._guarded(source, completed)
            for task in self.tasks:
                if not task.finished:
                    task.mailbox.put(
                        partial(task.notify_checkpoint_complete, pending.checkpoint_id)
                    )
            pending.complete()

    def _decline_checkpoints(self) -> None:
        self._requests.quiesce()
        self._requests.run_pending()
        for pending in self._checkpoints.values():
            pending.decline(self._why_it_ended())
        self._checkpoints.clear()

    def _why_it_ended(self) -> str:
        if all(task.finished for task in self.tasks):
            return "all tasks of the job have ended"
        if self._cancelled:
            return "the job was cancelled"
        return "the job failed or was closed"


class _Responder(CheckpointResponder):
    """The checkpoint responder of one task. It writes captured state at once."""

    def __init__(self, job: LocalJob, subtask: int) -> None:
        self._job = job
        self._subtask = subtask
        self.task: StreamTask
        self.channels: list[ChannelID] = []
        self._waiting: dict[int, Mapping[str, OperatorState]] = {}
        """States of unaligned checkpoints for which elements in flight may follow."""

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        return None

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        raise AssertionError("what is overtaken in a channel in memory, its receiver finds there")

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        written = {operator_id: capture.write() for operator_id, capture in states.items()}
        if barrier.may_overtake:
            self._waiting[barrier.checkpoint_id] = written
        else:
            self._acknowledge(barrier.checkpoint_id, written)

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        pending = self._job.pending_checkpoint(checkpoint_id)
        if pending is not None:  # in memory elements are not encoded
            pending.was_in_flight(self.channels[channel], cast("Sequence[Element]", elements))

    def in_flight_completed(self, checkpoint_id: int) -> None:
        self._acknowledge(checkpoint_id, self._waiting.pop(checkpoint_id))

    def _acknowledge(self, checkpoint_id: int, states: Mapping[str, OperatorState]) -> None:
        self._job.acknowledge_checkpoint(checkpoint_id, self.task, self._subtask, states)

    def declined(self, checkpoint_id: int, reason: str) -> None:
        self._waiting.pop(checkpoint_id, None)
        self._job.decline_checkpoint(checkpoint_id, reason)

    def aborted(self, checkpoint_id: int) -> None:
        self._waiting.pop(checkpoint_id, None)


def assigned_states(
    states: Mapping[tuple[str, int], OperatorState],
    operator_id: str,
    subtask: int,
    parallelism: int,
) -> list[OperatorState]:
    """Return the states from which a subtask is restored.

    Keyed state comes from all earlier subtasks, and the subtask takes its key groups. List state
    comes from the earlier subtasks that are assigned to it, union state from all, broadcast state
    from one earlier subtask: the same subtask if it had the state.
    """
    before = {number: state for (owner, number), state in states.items() if owner == operator_id}
    operators = {
        number: state.operator for number, state in before.items() if state.operator is not None
    }
    result = []
    for number, state in before.items():
        operator = state.operator
        if operator is not None:
            others = [
                name
                for name, of_name in operator.states.items()
                if (of_name.mode == "list" and number % parallelism != subtask)
                or (of_name.mode == "broadcast" and number != _holder(operators, name, subtask))
            ]
            operator = operator.without_elements_of(others)
        result.append(OperatorState(state.keyed, operator))
    return result


def _holder(operators: Mapping[int, OperatorSnapshot], name: str, subtask: int) -> int:
    """Return the earlier subtask whose copy of the broadcast state *name* a subtask gets."""
    holders = [number for number, operator in operators.items() if name in operator.states]
    return subtask if subtask in holders else holders[subtask % len(holders)]


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
