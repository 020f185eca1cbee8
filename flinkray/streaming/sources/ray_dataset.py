"""Source of the rows of a Ray Data dataset: blocks are splits, which tasks read from Ray's object
store. And the way back: record batches become a dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from flinkray.core.clock import Clock
from flinkray.file_results import NonDeterministicSourceError
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns, Origin
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.type_inference import type_of_schema
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.records.widening import as_one_table, without_views
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SourceReader,
    SplitEnumerator,
)

if TYPE_CHECKING:
    import ray.data

BATCH_ROWS = 1 << 16
"""Most rows of a batch that a reader puts out."""
BLOCK_BYTES = 1 << 26
"""Size from which gathered record batches become a block of a new dataset."""


class BlockSplit(NamedTuple):
    """A block of a dataset, of which the first *offset* rows have been read."""

    block: int
    offset: int
    checksum: int
    """Checksum of all blocks of the dataset."""


class _Described(NamedTuple):
    schema: pa.Schema
    checksum: int


class RayDatasetSource(Source[Row, BlockSplit]):
    """The rows of a ``ray.data.Dataset``, block by block, in columns.

    The dataset is executed when the source is made. Ray's object store keeps the blocks for as long
    as the process that made the source runs. The source is made anew when a program is submitted
    again with a savepoint. If the dataset then has other blocks, readers raise
    NonDeterministicSourceError.
    """

    waits_for_splits = True

    def __init__(self, dataset: ray.data.Dataset) -> None:
        """Execute the dataset.

        Raises:
            ValueError: the dataset has no columns.
            StreamError: the blocks have no common type, or hold Python objects.
        """
        import ray

        references = dataset.to_arrow_refs()
        blocks = _described(references)
        try:
            schema = pa.unify_schemas(
                [block.schema for block in blocks], promote_options="permissive"
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise StreamError(f"the blocks of the dataset do not go together: {error}") from error
        if not schema.names:
            raise ValueError("from_dataset was given a dataset without columns")
        self._schema = schema
        self._checksum = crc32(repr([block.checksum for block in blocks]).encode())
        # Ray's pickler adds the owner of a block, without whom nobody finds it
        self._blocks = [ray.cloudpickle.dumps(reference) for reference in references]

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def get_produced_type(self) -> TypeInformation[Row]:
        return type_of_schema(self._schema)

    def create_enumerator(
        self, context: EnumeratorContext[BlockSplit], clock: Clock
    ) -> SplitEnumerator[BlockSplit]:
        splits = [BlockSplit(block, 0, self._checksum) for block in range(len(self._blocks))]
        return FixedSplitsEnumerator(context, splits)

    def create_reader(self, context: ReaderContext) -> SourceReader[BlockSplit]:
        return _BlockReader(context, self._blocks, self._schema, self._checksum)


class _BlockReader(SequentialReader[BlockSplit]):
    """Fetches blocks in a thread, because they may be on another node. While a block is read, the
    next one is asked for and fetched."""

    def __init__(
        self, context: ReaderContext, blocks: list[bytes], schema: pa.Schema, checksum: int
    ) -> None:
        super().__init__(context)
        self._blocks = blocks
        self._schema = schema
        self._checksum = checksum
        self._thread = ThreadPoolExecutor(1, "flinkray-blocks")
        self._fetched: deque[Future[pa.Table]] = deque()
        """The blocks of the current split, if its table was not taken yet, and of waiting ones."""
        self._name = f"Ray dataset {context.subtask_index}"

    def add_splits(self, splits: Sequence[BlockSplit]) -> None:
        for split in splits:
            if split.checksum != self._checksum:
                raise NonDeterministicSourceError(
                    "the dataset has other rows, or other blocks, than in the run of which the job "
                    "has read a part: pass from_dataset the result of dataset.materialize(), and "
                    "the same again when the job is resumed, or write the dataset to files and "
                    "read these"
                )
            fetched = self._thread.submit(self._fetch, split.block)
            fetched.add_done_callback(lambda _: self.context.wake())
            self._fetched.append(fetched)
        super().add_splits(splits)

    def open_split(self, split: BlockSplit) -> None:
        self._split = split
        self._table: pa.Table | None = None
        if not self._waiting and not self._no_more:
            self.context.send_split_request()

    def _fetch(self, block: int) -> pa.Table:
        import ray
        from ray.exceptions import RayError

        try:
            table = ray.get(ray.cloudpickle.loads(self._blocks[block]))
        except RayError as error:
            raise StreamError(
                f"block {block} of the dataset is gone: {error}. Ray keeps the blocks while the "
                "program that called from_dataset runs"
            ) from error
        return _with_schema(_plain(table), self._schema).combine_chunks()

    def read(self, max_records: int) -> Polled:
        if self._table is None:
            if not self._fetched[0].done():
                return NOTHING_NOW
            self._table = self._fetched.popleft().result()
        begin = self._split.offset
        if begin >= self._table.num_rows:
            self._table = None
            return END_OF_INPUT
        part = self._table.slice(begin, BATCH_ROWS).to_batches()[0]
        self._split = self._split._replace(offset=begin + part.num_rows)
        return Columns(part, None, Origin(f"{self._name}, block {self._split.block}", begin))

    def remaining(self) -> BlockSplit:
        return self._split

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _described(references: list[Any]) -> list[_Described]:
    """Describe each block in a Ray task. The tasks take no processors, which the slots of a cluster
    may hold, so at most as many run at a time as Ray has processors."""
    import ray

    describe = ray.remote(num_cpus=0)(_describe)
    most = max(1, int(ray.cluster_resources().get("CPU", 1)))
    answers: dict[Any, Any] = {}
    running: list[Any] = []
    for block in dict.fromkeys(references):
        if len(running) >= most:
            _, running = ray.wait(running)
        answers[block] = describe.remote(block)
        running.append(answers[block])
    described: list[_Described] = ray.get([answers[block] for block in references])
    return described


def _describe(block: pa.Table) -> _Described:
    """Return what the source must know of a block. Runs as a Ray task, where the block lies."""
    table = _plain(block).combine_chunks()
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table)
    return _Described(table.schema, crc32(memoryview(content.getvalue())))


_PICKLED = "ray.data.arrow_pickled_object"
"""Name of Ray's Arrow type for values that Arrow has no type for."""


def _plain(block: pa.Table) -> pa.Table:
    """Return the block without Ray's types of its own and without views: tensors are lists. Raises
    StreamError: a column holds pickled Python objects."""
    for place, field in enumerate(block.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            if field.type.extension_name == _PICKLED:
                raise StreamError(
                    f"column {field.name!r} of the dataset holds Python objects: map these to "
                    "numbers, texts, lists or dictionaries with dataset.map_batches first"
                )
            chunks = [chunk.storage for chunk in block.column(place).chunks]
            plain = pa.chunked_array(chunks, field.type.storage_type)
            block = block.set_column(place, field.name, plain)
    return without_views(block)


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of *schema*. Columns that it does not have are null."""
    names = set(table.schema.names)
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def dataset_of(batches: Iterator[pa.RecordBatch]) -> ray.data.Dataset:
    """Return a dataset with the rows of *batches*. Blocks go to Ray's object store as they are
    complete, so that this process holds only one of them."""
    import ray
    import ray.data

    references: list[Any] = []
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= BLOCK_BYTES:
            references.append(ray.put(as_one_table(waiting, may_round=False)))
            waiting, size = [], 0
    if waiting or not references:
        table = as_one_table(waiting, may_round=False) if waiting else pa.table({})
        references.append(ray.put(table))
    return ray.data.from_arrow_refs(references)
