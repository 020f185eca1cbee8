"""The operator that sends batches of records to the replicas of a model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from flinkray.core.error_text import in_one_line
from flinkray.core.errors import FlinkRayError, FrameTooLargeError
from flinkray.streaming.columnar.arrow_batches import (
    GatherBatchesOperator,
    with_timestamps,
    without_timestamps,
)
from flinkray.streaming.errors import StreamError, text_of
from flinkray.streaming.functions.models import (
    ModelDescriptor,
    ModelError,
    ModelUnavailableError,
)
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.operators.calls import AsyncCall, CallingOperator
from flinkray.streaming.operators.model_replicas import UNDER_WAY_PER_REPLICA, ModelReplicas
from flinkray.streaming.operators.operator import OperatorContext, Output
from flinkray.streaming.records.arrow_bytes import deserialized, serialized
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation

_PAUSE = 0.1
"""Seconds before a request is repeated the first time; the pause doubles each time."""


@dataclass(frozen=True)
class InferSettings:
    """How ``infer`` makes batches, and what it does with the answers of a model."""

    batch_size: int
    max_wait: int
    """Milliseconds that a record waits until its batch is full."""
    is_ordered: bool
    appends: bool
    """Whether the results are appended to the records. Otherwise they take the records' place."""
    timeout: float
    """Seconds that a replica may take for a batch."""
    retries: int
    errors: OutputTag[Any] | None
    """Side output for the records for which the model fails. None: the job fails."""


@dataclass(frozen=True)
class _Piece:
    """Consecutive records of a batch, with the model's results for them or its error."""

    begin: int
    end: int
    results: pa.RecordBatch | None
    error: FlinkRayError | None = None


class _Gathered:
    """Receives the gathered batches of an :class:`InferOperator`, and watermarks between them."""

    def __init__(self, operator: InferOperator) -> None:
        self.process_block = operator.process_block  # rows would have to be gathered first
        self.process_columns = operator.send
        self.process_watermark = partial(CallingOperator.process_watermark, operator)
        self.process_status = partial(CallingOperator.process_status, operator)


def _unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class InferOperator(CallingOperator):
    """Sends each batch to a replica of a model, and puts out the records with the results. If the
    model fails for a batch, its halves are sent, down to the records that are the cause."""

    def __init__(
        self,
        descriptor: ModelDescriptor,
        settings: InferSettings,
        input_type: TypeInformation | None,
    ) -> None:
        # as many again wait here, so that replicas need not wait while the thread makes records
        capacity = 2 * UNDER_WAY_PER_REPLICA * descriptor.most
        super().__init__(capacity, is_ordered=settings.is_ordered)
        self._descriptor = descriptor
        self._settings = settings
        self._input_type = input_type
        self._replicas: ModelReplicas | None = None

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        settings = self._settings
        self._gather = GatherBatchesOperator(
            _unchanged, settings.batch_size, settings.max_wait, self._input_type
        )
        self._gather.setup(context, Output([_Gathered(self)]))

    def open(self) -> None:
        self._gather.open()
        replicas = self.context.services.replicas(
            self._descriptor, self.context.operator_id, self.fail
        )
        self._replicas = replicas
        self._batches: deque[int] = deque(maxlen=100)
        metrics = self.context.metrics
        metrics.gauge("modelReplicas", lambda: replicas.number)
        metrics.gauge("modelBatchesWaiting", lambda: replicas.waiting)
        metrics.gauge("modelBatchSize", self._mean_size)
        metrics.gauge("modelWaitMs", replicas.mean_wait_ms)
        metrics.gauge("modelAnswerMs", replicas.mean_answer_ms)
        self._requests = metrics.counter("modelRequests")
        self._repeated = metrics.counter("modelRequestsRepeated")
        self.start_restored()

    def _mean_size(self) -> int:
        sizes = tuple(self._batches)
        return round(sum(sizes) / len(sizes)) if sizes else 0

    # --- in the task's thread -----------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        self._gather.process_block(block)

    def process_columns(self, columns: Columns) -> None:
        self._gather.process_columns(columns)

    def process_watermark(self, timestamp: int) -> None:
        self._gather.process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self._gather.process_status(idle)

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        self._gather.prepare_snapshot_pre_barrier(barrier)

    def finish(self) -> None:
        self._gather.finish()
        super().finish()

    def send(self, columns: Columns) -> None:
        """Begin a request for a batch of records, once there is room."""
        self.wait_for_room()
        self._batches.append(len(columns))
        self.begin([AsyncCall(columns, None, columns.origin)])

    def start(self, calls: list[AsyncCall]) -> None:
        assert self._replicas is not None
        for call in calls:
            self._replicas.run(partial(self._answer, call))

    def stored(self, call: AsyncCall) -> bytes:
        return serialized(with_timestamps(call.value))

    def restored(self, stored: bytes) -> AsyncCall:
        return AsyncCall(without_timestamps(deserialized(stored), None), None, None)

    def emit_results(self, calls: Sequence[AsyncCall]) -> None:
        for call in calls:
            for piece in call.results:
                records = call.value.part(piece.begin, piece.end)
                if piece.results is not None:
                    self.output.emit_columns(self._with_results(records, piece.results))
                else:
                    self._emit_error(records, piece.error)

    def _with_results(self, records: Columns, results: pa.RecordBatch) -> Columns:
        if not self._settings.appends:
            return Columns(results, records.timestamps, records.origin)
        names = [*records.batch.schema.names, *results.schema.names]
        twice = set(records.batch.schema.names).intersection(results.schema.names)
        if twice:
            raise StreamError(
                f"the model {self._descriptor.name} returns a column {min(twice)!r}, which the "
                'records have already: rename one, or take output="replace"'
            )
        columns = [*records.batch.columns, *results.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        return Columns(batch, records.timestamps, records.origin)

    def _emit_error(self, records: Columns, error: FlinkRayError | None) -> None:
        block = records.to_block()
        tag = self._settings.errors
        if tag is not None:
            texts = [in_one_line(str(error))] * len(block)
            names = ["record", "error"]
            rows = [
                Row.of(names, [value, text])
                for value, text in zip(block.values, texts, strict=True)
            ]
            self.output.emit_side(tag, Block(rows, block.timestamps, None, block.origin))
            return
        failed = iter(block.values)
        next(failed)
        self.reading = block, failed
        raise StreamError(
            f"the model {self._descriptor.name} failed for {text_of(block.values[0])}: {error}"
        ) from error

    def close(self) -> None:
        if self._replicas is not None:
            self._replicas.close()

    # --- in the event loop of the replicas ----------------------------------------------------

    async def _answer(self, call: AsyncCall) -> None:
        columns: Columns = call.value
        try:
            pieces = await self._pieces(columns.batch, 0)
        except Exception as error:  # noqa: BLE001 - the task's thread raises it again
            self.settled(call, [], error)
        else:
            self.settled(call, pieces)

    async def _pieces(self, batch: pa.RecordBatch, begin: int) -> list[_Piece]:
        rows = batch.num_rows
        try:
            return [_Piece(begin, begin + rows, await self._results(batch))]
        except (ModelError, ModelUnavailableError, FrameTooLargeError) as error:
            if rows == 1:
                return [_Piece(begin, begin + 1, None, error)]
        half = rows // 2
        first, second = await asyncio.gather(
            self._pieces(batch.slice(0, half), begin),
            self._pieces(batch.slice(half), begin + half),
        )
        return [*first, *second]

    async def _results(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the model's results for a batch. A request that no replica has answered is
        repeated; so is a request for a single record for which the model failed."""
        assert self._replicas is not None
        request, repeated = serialized(batch), 0
        while True:
            self._requests.inc()
            try:
                return deserialized(await self._replicas.infer(request, self._settings.timeout))
            except (ModelError, ModelUnavailableError) as error:
                is_divided = isinstance(error, ModelError) and batch.num_rows > 1
                if is_divided or repeated >= self._settings.retries:
                    raise
            await asyncio.sleep(_PAUSE * 2**repeated)
            repeated += 1
            self._repeated.inc()
