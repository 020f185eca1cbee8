"""Builds the operators of one subtask of a chain and wires them to each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from flinkray.core.clock import Clock
from flinkray.streaming.channels import RecordWriter
from flinkray.streaming.elements import Block, Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.graph import StreamEdge, StreamGraph, StreamNode
from flinkray.streaming.metrics import MetricGroup
from flinkray.streaming.operator import OperatorContext, Output, Receiver, StreamOperator
from flinkray.streaming.time_service import ProcessingTimeService
from flinkray.streaming.watermark_alignment import TaskAlignment

MakeWriter = Callable[[StreamEdge], RecordWriter]


class ConvertingReceiver:
    """Turns values into those of a declared type on their way to the next operator."""

    def __init__(self, convert: Callable[[Any], Any], receiver: Receiver) -> None:
        self._convert = convert
        self._receiver = receiver
        self.process_columns: Callable[[Columns], None] = receiver.process_columns
        self.process_watermark: Callable[[int], None] = receiver.process_watermark
        self.process_status: Callable[[bool], None] = receiver.process_status

    def process_block(self, block: Block) -> None:
        convert = self._convert
        records = iter(block.values)
        values = [convert(value) for value in records]
        self._receiver.process_block(Block(values, block.timestamps, None, block.origin))


class OperatorCopies:
    """Each subtask has its own copy of an operator with the user's function in it, as on a
    cluster; operators that belong to the client's process are shared."""

    def __init__(self) -> None:
        self._pickled: dict[int, bytes] = {}

    def copy_of(self, node: StreamNode) -> StreamOperator:
        operator = node.operator
        if getattr(operator, "shared", False):
            return copy.copy(operator)
        payload = self._pickled.get(node.id)
        if payload is None:
            payload = _pickle(node)
            self._pickled[node.id] = payload
        return cloudpickle.loads(payload)  # type: ignore[no-any-return]


def _pickle(node: StreamNode) -> bytes:
    try:
        return cloudpickle.dumps(node.operator)  # type: ignore[no-any-return]
    except (TypeError, AttributeError, RecursionError) as error:
        raise StreamError(
            f"the function of {node.name!r} cannot be sent to its tasks: {error}; make what it "
            "refers to in open(), or give it only what can be pickled"
        ) from error


class ChainBuilder:
    """Makes the operators of one subtask."""

    def __init__(
        self,
        graph: StreamGraph,
        copies: OperatorCopies,
        operator_ids: dict[int, str],
        make_writer: MakeWriter,
        subtask: int,
        attempt: int,
        clock: Clock,
        time_service: ProcessingTimeService,
        seed: int,
        metrics: MetricGroup,
        alignment: TaskAlignment | None = None,
    ) -> None:
        self._graph = graph
        self._copies = copies
        self._ids = operator_ids
        self._make_writer = make_writer
        self._subtask = subtask
        self._attempt = attempt
        self._clock = clock
        self._time_service = time_service
        self._seed = seed
        self._metrics = metrics
        self._alignment = alignment
        self.operators: list[tuple[str, StreamOperator]] = []
        self.writers: list[RecordWriter] = []

    def build(self, node: StreamNode) -> StreamOperator:
        """The operator of *node* with all that are chained behind it."""
        operator = self._copies.copy_of(node)
        place = len(self.operators)
        main: list[Receiver] = []
        side: dict[str, list[Receiver]] = {}
        following: list[tuple[str, StreamOperator]] = []
        for edge in node.outputs:
            receiver: Receiver
            if self._graph.is_chained(edge):
                receiver = self.build(edge.target).inputs()[0]
            else:
                writer = self._make_writer(edge)
                self.writers.append(writer)
                receiver = writer
            if edge.output_tag is not None:
                side.setdefault(edge.output_tag, []).append(receiver)
            elif node.convert is not None:
                main.append(ConvertingReceiver(node.convert, receiver))
            else:
                main.append(receiver)
        following = self.operators[place:]
        del self.operators[place:]
        operator.setup(self._context(node), Output(main, side))
        self.operators += [(self._ids[node.id], operator), *following]
        return operator

    def _context(self, node: StreamNode) -> OperatorContext:
        return OperatorContext(
            name=node.name,
            time_service=self._time_service,
            clock=self._clock,
            subtask_index=self._subtask,
            parallelism=node.parallelism,
            max_parallelism=node.max_parallelism,
            attempt_number=self._attempt,
            auto_watermark_interval=self._graph.auto_watermark_interval,
            keyed=node.keyed,
            seed=self._seed,
            job_parameters=self._graph.job_parameters,
            metrics=self._metrics.add_group(f"{node.name}.{self._subtask}"),
            alignment=self._alignment,
        )


def channel_targets(edge: StreamEdge, producer: int) -> Sequence[int]:
    """The consumers that a producer's subtask writes to: all, or its own few (SPEC appendix B)."""
    sources, targets = edge.source.parallelism, edge.target.parallelism
    if not edge.partitioner.pointwise:
        return range(targets)
    return [
        consumer
        for consumer in range(targets)
        if producer in pointwise_producers(sources, targets, consumer)
    ]


def pointwise_producers(sources: int, targets: int, consumer: int) -> range:
    """The producers a consumer reads from."""
    if sources >= targets:
        return range(consumer * sources // targets, (consumer + 1) * sources // targets)
    only = consumer * sources // targets
    return range(only, only + 1)
