"""Builds the operators of one subtask of a chain, and connects them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flinkray.core import cloud_pickle
from flinkray.core.clock import Clock
from flinkray.core.config import ReadableConfig
from flinkray.core.error_text import summary_of
from flinkray.state.backends import backend_factory
from flinkray.state.kv_state_registry import TaskKvStateRegistry
from flinkray.streaming.channels import RecordWriter
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.global_aggregates import GlobalAggregateManager
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.operator_errors import Reading
from flinkray.streaming.operators.operator import OperatorContext, Output, Receiver, StreamOperator
from flinkray.streaming.operators.task_services import TaskServices
from flinkray.streaming.program.chain_plan import ChainPlan, PlannedOperator, PlannedResult
from flinkray.streaming.program.graph import StreamEdge
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.partitioners import StreamPartitioner
from flinkray.streaming.sources.source import SourceHold, SplitsToRead
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Turn
from flinkray.streaming.time.watermark_alignment import TaskAlignment

MakeWriter = Callable[[int], RecordWriter]


class ConvertingReceiver:
    """Converts values to a declared type on their way to the next operator."""

    def __init__(self, convert: Callable[[Any], Any], receiver: Receiver) -> None:
        self._convert = convert
        self._receiver = receiver
        self.reading: Reading | None = None
        """The last block and the iterator over its values, for error messages."""
        self.process_columns: Callable[[Columns], None] = receiver.process_columns
        self.process_watermark: Callable[[int], None] = receiver.process_watermark
        self.process_status: Callable[[bool], None] = receiver.process_status

    def process_block(self, block: Block) -> None:
        convert = self._convert
        records = iter(block.values)
        self.reading = block, records
        values = [convert(value) for value in records]
        self._receiver.process_block(Block(values, block.timestamps, None, block.origin))


class OperatorCopies:
    """Makes each subtask's own copy of an operator with its user function, so that subtasks in one
    process share nothing. A ``shared`` operator is copied without its function, which belongs to
    the client's process."""

    def __init__(self) -> None:
        self._pickled: dict[str, bytes] = {}

    def copy_of(self, planned: PlannedOperator) -> StreamOperator:
        operator = planned.operator
        if getattr(operator, "shared", False):
            return copy.copy(operator)
        payload = self._pickled.get(planned.operator_id)
        if payload is None:
            payload = _pickle(planned)
            self._pickled[planned.operator_id] = payload
        return pickle.loads(payload)  # type: ignore[no-any-return]


def _pickle(planned: PlannedOperator) -> bytes:
    try:
        return cloud_pickle.dumps(planned.operator)
    except Exception as error:
        raise unpicklable_operator(planned.name, error) from error


def unpicklable_operator(name: str, error: Exception) -> StreamError:
    return StreamError(
        f"the function of {name!r} cannot be sent to its tasks: {summary_of(error)}; make what it "
        "refers to in open(), or give it only what can be pickled"
    )


class ChainBuilder:
    """Makes the operators of one subtask.

    Args:
        copy_of: returns this subtask's copy of an operator.
        make_writer: makes the writer of a result, given the result's place in the plan.
        kv_states: where queryable states are registered; None: states cannot be queried.
        configuration: of the process, for options that the program does not set.
        services: what the runner of the task offers to its operators; None: the services of a run
            without a cluster.
    """

    def __init__(
        self,
        plan: ChainPlan,
        copy_of: Callable[[PlannedOperator], StreamOperator],
        make_writer: MakeWriter,
        subtask: int,
        parallelism: int,
        attempt: int,
        clock: Clock,
        time_service: ProcessingTimeService,
        metrics: MetricGroup,
        global_aggregates: GlobalAggregateManager,
        alignment: TaskAlignment | None = None,
        job_id: str = "",
        kv_states: TaskKvStateRegistry | None = None,
        configuration: ReadableConfig | None = None,
        hold: SourceHold | None = None,
        services: TaskServices | None = None,
    ) -> None:
        self._services = services or TaskServices()
        self._plan = plan
        self._copy_of = copy_of
        self._make_writer = make_writer
        self._subtask = subtask
        self._parallelism = parallelism
        self._attempt = attempt
        self._clock = clock
        self._time_service = time_service
        self._metrics = metrics
        self._global_aggregates = global_aggregates
        self._alignment = alignment
        self._hold = hold
        self._job_id = job_id
        self._kv_states = kv_states
        own = configuration or ReadableConfig()
        self._make_keyed_state = backend_factory(own.with_values(plan.state_options))
        self.operators: list[tuple[str, StreamOperator]] = []
        """(id, operator), each operator before those that it feeds."""
        self._writers: dict[int, RecordWriter] = {}
        self.turn = Turn()
        self._splits = SplitsToRead()

    @property
    def writers(self) -> list[RecordWriter]:
        """The writers of the results, by their index in the plan."""
        return [writer for _, writer in sorted(self._writers.items())]

    def build(self, place: int = 0) -> StreamOperator:
        """Return the operator at index *place* of the plan, after all operators chained behind it
        were built and connected. All of them are added to ``operators``, the first operator of the
        chain first."""
        planned = self._plan.operators[place]
        operator = self._copy_of(planned)
        first = len(self.operators)
        main: list[Receiver] = []
        side: dict[str, list[Receiver]] = {}
        selectors: list[Any] = []
        for output in planned.outputs:
            receiver: Receiver
            if output.operator is not None:
                receiver = self.build(output.operator).inputs()[0]
            else:
                assert output.result is not None
                writer = self._writers[output.result] = self._make_writer(output.result)
                receiver = writer
                selectors += writer.partitioner.functions
            convert = planned.convert if output.tag_id is None else output.convert
            if convert is not None:
                receiver = ConvertingReceiver(convert, receiver)
            if output.tag_id is None:
                main.append(receiver)
            else:
                side.setdefault(output.tag_id, []).append(receiver)
        following = self.operators[first:]
        del self.operators[first:]
        context = self._context(planned, place == 0, selectors)
        operator.setup(context, Output(main, side, context.object_reuse))
        self.operators += [(planned.operator_id, operator), *following]
        return operator

    def _context(
        self, planned: PlannedOperator, is_head: bool, selectors: Sequence[Any]
    ) -> OperatorContext:
        kv_states = self._kv_states
        return OperatorContext(
            name=planned.name,
            time_service=self._time_service,
            clock=self._clock,
            subtask_index=self._subtask,
            parallelism=self._parallelism,
            max_parallelism=planned.max_parallelism,
            attempt_number=self._attempt,
            job_id=self._job_id,
            operator_id=planned.operator_id,
            auto_watermark_interval=self._plan.auto_watermark_interval,
            keyed=planned.keyed,
            job_parameters=self._plan.job_parameters,
            cached_files=self._plan.cached_files,
            metrics=self._metrics.add_group(f"{planned.name}.{self._subtask}"),
            global_aggregates=self._global_aggregates,
            alignment=self._alignment,
            hold=self._hold,
            splits=self._splits,
            publish=None if kv_states is None else partial(kv_states.publish, planned.operator_id),
            turn=self.turn,
            is_head=is_head,
            object_reuse=self._plan.object_reuse,
            selectors=selectors,
            make_keyed_state=self._make_keyed_state,
            services=self._services,
        )


def prepared_partitioner(result: PlannedResult, channels: int, producer: int) -> StreamPartitioner:
    """Return a copy of the partitioner of *result*, set up for the subtask *producer* with
    *channels* channels. Its random choices are the same in every run."""
    partitioner = result.partitioner
    if partitioner.functions:
        partitioner = pickle.loads(cloud_pickle.dumps(partitioner))
    else:
        partitioner = copy.copy(partitioner)
    partitioner.setup(channels, result.max_parallelism, result.edge * 1_000_003 + producer)
    return partitioner


def channel_targets(edge: StreamEdge, producer: int) -> Sequence[int]:
    """Return the consumer's subtasks to which the producer's subtask *producer* sends records over
    *edge* (SPEC appendix B): all, or a few if the partitioner is pointwise."""
    sources, targets = edge.source.parallelism, edge.target.parallelism
    if not edge.partitioner.pointwise:
        return range(targets)
    return [
        consumer
        for consumer in range(targets)
        if producer in pointwise_producers(sources, targets, consumer)
    ]


def pointwise_producers(sources: int, targets: int, consumer: int) -> range:
    """Return the indices of the producer's subtasks that the subtask *consumer* reads from, if the
    producer has *sources* and the consumer *targets* subtasks."""
    if sources >= targets:
        return range(consumer * sources // targets, (consumer + 1) * sources // targets)
    only = consumer * sources // targets
    return range(only, only + 1)
