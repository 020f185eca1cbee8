"""The operator that reads a source, at the head of a chain."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.state.operator_state import StateFile
from flinkray.streaming.errors import UnavailableError
from flinkray.streaming.operators.operator import (
    OperatorContext,
    OperatorState,
    OperatorStateCapture,
    Output,
    StreamOperator,
)
from flinkray.streaming.operators.timestamps import TimestampsAndWatermarksOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Barrier, Block, Columns, Origin
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    NoRecords,
    OfSplit,
    ReaderContext,
    Source,
    SourceReader,
    SourceReaderWithFiles,
)
from flinkray.streaming.time.watermarks import WatermarkStrategy

BLOCK_RECORDS = 4096
"""Records in a block: so many that the work per block is small beside the work per record, and so
few that the block stays in the processor's cache."""

_SPLITS: ListStateDescriptor[Any] = ListStateDescriptor("source-splits")
_FILES: ListStateDescriptor[tuple[str, bool]] = ListStateDescriptor("source-files")
"""(location of the files of splits, whether a savepoint has copied them)"""


class SourceOperator(StreamOperator):
    """Puts out the records of its reader, and at the end of the input the last watermark.
    *strategy*: assigns timestamps and makes watermarks; None: records keep the source's timestamps.
    *progressive* False: only the last watermark is put out, as in batch mode."""

    shared = True
    """Local runs do not copy the source, which may be large and only creates readers."""

    def __init__(
        self,
        source: Source[Any],
        block_records: int = BLOCK_RECORDS,
        strategy: WatermarkStrategy | None = None,
        progressive: bool = True,
    ) -> None:
        self.source = source
        self._block_records = block_records
        self._stamping: TimestampsAndWatermarksOperator | None = None
        if strategy is not None and not strategy.passes_everything_on:
            self._stamping = TimestampsAndWatermarksOperator(
                strategy, progressive, needs_timestamps=False
            )

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._restored_files: dict[str, StateFile] = {}
        self._is_savepoint = False
        self._savepoints: list[OperatorStateCapture] = []
        """Captures of savepoints whose files may still be read."""
        if self._stamping is not None:
            self._stamping = copy.copy(self._stamping)  # each subtask has its own
            self._stamping.setup(replace(context, is_head=False), output)
            self.output = Output([self._stamping])

    @property
    def stamping(self) -> TimestampsAndWatermarksOperator | None:
        """The inner operator that assigns timestamps. None: this source assigns none."""
        return self._stamping

    @property
    def paused(self) -> bool:
        """Whether the source must wait for other sources (watermark alignment) or for sinks."""
        return self.context.source_waits

    def restore(self, states: Sequence[OperatorState], checkpoint_id: int | None = None) -> None:
        super().restore(states, checkpoint_id)
        self._restored_files = {file.name: file for state in states for file in state.files}

    def open(self) -> None:
        context = self.context
        if self._stamping is not None:
            self._stamping.open()
        self.reader_context = ReaderContext(
            context.subtask_index,
            context.parallelism,
            context.clock,
            context.turn.wake_up,
            context.services.stages,
        )
        self.reader: SourceReader[Any] = self.source.create_reader(self.reader_context)
        self._position = 0
        self._has_ended = False
        self._has_all_splits = not self.source.waits_for_splits
        self._note_splits()
        self._rest: Block | None = None
        """The rest of a batch that was longer than asked for; None if there is none."""
        if isinstance(self.reader, SourceReaderWithFiles):
            places = self.operator_state.list_state(_FILES).get()
            here = self.reader.location
            is_complete = all(is_copied or place == here for place, is_copied in places)
            self.reader.restore_files(self._restored_files, is_complete)
        restored = list(self.operator_state.list_state(_SPLITS).get())
        if restored:
            self.add_splits(restored)
        self.reader.start()

    def _note_splits(self) -> None:
        """Tell the generators of watermarks how far the reader has come: whether splits are left,
        for which watermarks have to wait, and how many splits were begun."""
        if self.source.waits_for_splits:
            context, splits = self.reader_context, self.context.splits
            splits.are_awaited = not self._has_all_splits or context.unread_splits > 0
            splits.begun = context.splits_begun

    def add_splits(self, splits: Sequence[Any]) -> None:
        if self._stamping is not None:
            for split in splits:
                split_id = self.reader.split_id(split)
                if split_id is not None:
                    self._stamping.add_split(split_id)
        self.reader.add_splits(splits)
        self._note_splits()

    def no_more_splits(self) -> None:
        self._has_all_splits = True
        self._note_splits()
        self.reader.notify_no_more_splits()

    @property
    def has_rest(self) -> bool:
        """Whether the last batch was put out only in part. Until the rest was put out, no
        checkpoint can be taken."""
        return self._rest is not None

    def emit_next(self, most: int = BLOCK_RECORDS) -> NoRecords | int:
        """Put out the next batch, or the rest of the last one. Returns its number of records, or
        why there is none. *most*: largest number of Python values; columns are put out whole."""
        polled: Block | Columns | NoRecords
        if self._rest is None:
            if self.paused:
                return NOTHING_NOW
            polled = self._polled(min(most, self._block_records))
            if isinstance(polled, NoRecords):
                self._has_ended = polled is END_OF_INPUT
                return polled
            if polled.origin is None:
                polled.origin = Origin(self.context.task_name, self._position)
            self._position += len(polled)
        else:
            polled, self._rest = self._rest, None
        if isinstance(polled, Block) and len(polled) > most:
            self._rest = polled.part(most, len(polled))
            polled = polled.part(0, most)
        if isinstance(polled, Block):
            if len(polled):
                self.output.emit(polled)
        elif len(polled):
            self.output.emit_columns(polled)
        return len(polled)

    def _polled(self, most: int) -> Block | Columns | NoRecords:
        polled = self.reader.poll(most)
        self._note_splits()
        finished = self.reader_context.finished_splits
        if finished:
            if self._stamping is not None:
                for split_id in finished:
                    self._stamping.release_split(split_id)
            finished.clear()
        if isinstance(polled, OfSplit):
            split_id, polled = polled
            if self._stamping is not None:
                self._stamping.select_split(split_id)
        return polled

    def describe_occasion(self) -> str:
        return f"reading what follows its first {getattr(self, '_position', 0)} records"

    def finish(self) -> None:
        """Put out the last watermark.
        Raises UnavailableError if the job needs the whole source and has not read all of it."""
        if self.source.is_needed_whole and not self._has_ended:
            raise UnavailableError(
                "the job is drained, and of a table to look up not all has been read: records "
                "would be answered by a part of it.  Stop the job without draining it, or later"
            )
        if self._stamping is not None:
            self._stamping.finish()
        self.output.emit_watermark(MAX_TIMESTAMP)

    def close(self) -> None:
        reader = getattr(self, "reader", None)
        if reader is not None:
            reader.close()

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        self._is_savepoint = barrier.savepoint

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        self.operator_state.list_state(_SPLITS).update(self.reader.snapshot_state(checkpoint_id))
        if isinstance(self.reader, SourceReaderWithFiles):
            place = self.reader.location, self._is_savepoint
            self.operator_state.list_state(_FILES).update([place])
        captured = super().capture(checkpoint_id, since)
        if self._is_savepoint and isinstance(self.reader, SourceReaderWithFiles):
            self._savepoints.append(captured)
        return captured

    def files(self) -> tuple[StateFile, ...]:
        if self._is_savepoint and isinstance(self.reader, SourceReaderWithFiles):
            return tuple(self.reader.files())
        return ()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.reader.notify_checkpoint_complete(checkpoint_id)
        self._savepoints = [one for one in self._savepoints if not one.is_released]
        if isinstance(self.reader, SourceReaderWithFiles) and not self._savepoints:
            self.reader.delete_read(checkpoint_id)
