"""Sink that makes a Ray Data dataset of the rows of each checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flinkray.streaming.columnar.conversion import batch_of_type, block_to_batch
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.records.widening import as_one_table
from flinkray.streaming.sinks.sink import (
    CommitRequest,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
)

if TYPE_CHECKING:
    import ray.data

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class RayDatasetSink(Sink[Any, bytes]):
    """Calls a function with a ``ray.data.Dataset`` of the rows of each checkpoint, once the
    checkpoint is complete.

    The rows of a checkpoint are part of it until they are handed over, so they must fit into the
    memory of the sink's tasks. ``function(dataset, checkpoint_id)`` runs in one task, in the order
    of the checkpoints, and holds up later checkpoints until it returns: begin long work in a Ray
    task or actor. Checkpoints without rows are left out. If the job fails, the function may be
    called again with the same rows and the same id. A job without checkpoints calls the function
    once, at the end of its input, with the id 0.
    """

    commits_in_order = True

    def __init__(self, function: Callable[[ray.data.Dataset, int], object]) -> None:
        """Raises TypeError if *function* cannot be called."""
        if not callable(function):
            raise TypeError(
                "RayDatasetSink takes a function of a dataset and the id of its checkpoint, got "
                f"{function!r}"
            )
        self._function = function

    def create_writer(self, context: WriterContext) -> SinkWriter[bytes]:
        return _DatasetWriter(context.type_info)

    def create_committer(self, context: CommitterContext) -> Committer[bytes]:
        return _DatasetCommitter(self._function)


class _DatasetWriter(SinkWriter[bytes]):
    """Keeps rows until the next checkpoint. A committable is a compressed Arrow stream."""

    def __init__(self, type_info: TypeInformation | None) -> None:
        self._type_info = type_info
        self._batches: list[pa.RecordBatch] = []

    def write(self, block: Block) -> None:
        if len(block):
            self._batches.append(block_to_batch(block, self._type_info))

    def write_columns(self, columns: Columns) -> None:
        batch, declared = columns.batch, self._type_info
        if batch.num_rows:
            self._batches.append(batch if declared is None else batch_of_type(batch, declared))

    def prepare_commit(self, end_of_input: bool) -> Sequence[bytes]:
        batches, self._batches = self._batches, []
        if not batches:
            return ()
        table = as_one_table(batches, may_round=False)
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, table.schema, options=_OPTIONS) as stream:
            stream.write_table(table)
        return (content.getvalue().to_pybytes(),)


class _DatasetCommitter(Committer[bytes]):
    def __init__(self, function: Callable[[ray.data.Dataset, int], object]) -> None:
        self._function = function

    def commit(self, requests: Sequence[CommitRequest[bytes]]) -> None:
        """Call the function. *requests* are all requests of the checkpoint, because barriers are
        aligned."""
        import ray
        import ray.data

        blocks: list[Any] = [
            ray.put(pa.ipc.open_stream(request.committable).read_all()) for request in requests
        ]
        self._function(ray.data.from_arrow_refs(blocks), requests[0].checkpoint_id)
