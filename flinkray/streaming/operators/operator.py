"""What an operator is: it is given batches, time and the end of its input, and puts out batches.

Operators of a chain call each other directly, batch by batch.  All calls of one operator come from
its task's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Protocol

from flinkray.core.clock import Clock
from flinkray.core.key_groups import key_group_range
from flinkray.core.values import own
from flinkray.state import backends
from flinkray.state.backend import KeyedStateBackend, KeyedStateBackendFactory
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.keys import KeyHash, stable_hash
from flinkray.state.operator_state import (
    OperatorCapture,
    OperatorSnapshot,
    OperatorStateBackend,
)
from flinkray.state.snapshots import SnapshotStream, StateCapture
from flinkray.state.table import StateTable
from flinkray.streaming.errors import Reading, text_of
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.runtime_context import RuntimeContext
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.sources.source_hold import SourceHold
from flinkray.streaming.state_file import StateFile
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Portion, Turn
from flinkray.streaming.time.watermark_alignment import TaskAlignment


class ChainingStrategy(Enum):
    """Whether an operator may run in one task with the one before it."""

    ALWAYS = "always"
    HEAD = "head"
    """It starts a chain; others may follow in it."""
    NEVER = "never"


class Receiver(Protocol):
    """What takes batches: an operator's input, or the way to another task."""

    def process_block(self, block: Block) -> None: ...
    def process_columns(self, columns: Columns) -> None: ...
    def process_watermark(self, timestamp: int) -> None: ...
    def process_status(self, idle: bool) -> None: ...


class Output:
    """Where an operator's results go: the receivers of its main output, and of its side outputs.

    The values of a block belong to its receiver, which may change them; where there are several,
    each is given values of its own.
    """

    def __init__(
        self,
        main: Sequence[Receiver] = (),
        side: Mapping[str, Sequence[Receiver]] | None = None,
        object_reuse: bool = False,
    ) -> None:
        self._main = tuple(main)
        self._side = {tag: tuple(receivers) for tag, receivers in (side or {}).items()}
        self._object_reuse = object_reuse
        everyone = [*self._main, *(r for receivers in self._side.values() for r in receivers)]
        # One receiver is the rule; then the call goes there directly.
        self.emit: Callable[[Block], None] = (
            self._main[0].process_block if len(self._main) == 1 else self._emit_to_all
        )
        self.emit_columns: Callable[[Columns], None] = (
            self._main[0].process_columns if len(self._main) == 1 else self._emit_columns_to_all
        )
        self._everyone = tuple(everyone)

    def _emit_to_all(self, block: Block) -> None:
        self._give(self._main, block)

    def _give(self, receivers: Sequence[Receiver], block: Block) -> None:
        for receiver in receivers[:-1]:
            receiver.process_block(block if self._object_reuse else block.owned())
        for receiver in receivers[-1:]:
            receiver.process_block(block)

    def _emit_columns_to_all(self, columns: Columns) -> None:
        for receiver in self._main:
            receiver.process_columns(columns)

    def emit_side(self, tag: OutputTag[Any], block: Block) -> None:
        """To a side output; dropped where nobody asked for it."""
        self._give(self._side.get(tag.tag_id, ()), block)

    def emit_watermark(self, timestamp: int) -> None:
        for receiver in self._everyone:
            receiver.process_watermark(timestamp)

    def emit_status(self, idle: bool) -> None:
        for receiver in self._everyone:
            receiver.process_status(idle)


@dataclass
class OperatorContext:
    """What an operator knows of its surroundings."""

    name: str
    time_service: ProcessingTimeService
    clock: Clock
    subtask_index: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    attempt_number: int = 0
    restored_checkpoint_id: int = 0
    """Of the checkpoint that the task goes on from, also where the operator has no state in it; 0:
    it begins anew."""
    job_id: str = ""
    """32 hexadecimal digits; empty: unknown."""
    operator_id: str = ""
    """Under which its state is kept; likewise."""
    auto_watermark_interval: int = 200
    keyed: bool = False
    seed: int = 0
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    cached_files: Mapping[str, str] = field(default_factory=dict)
    metrics: MetricGroup = field(default_factory=MetricGroup)
    alignment: TaskAlignment | None = None
    """Of tasks that read a source."""
    hold: SourceHold | None = None
    """Of those whose sinks may be too far behind."""
    make_keyed_state: KeyedStateBackendFactory = backends.DEFAULT
    publish: Callable[[KeyedStateBackend, StateDescriptor, StateTable], None] | None = None
    """Is told of queryable states; None: nobody queries."""
    turn: Turn = field(default_factory=Turn)
    """The task's."""
    is_head: bool = False
    """It is the task's first operator, and the task calls it directly."""
    object_reuse: bool = False
    """Results are handed on without copies; user code keeps and changes none of them."""
    selectors: Sequence[Any] = ()
    """Functions that say where results go: key selectors and partitioners."""

    @property
    def own(self) -> Callable[[Any], Any]:
        """What results of user code go through, so that nobody else can change them."""
        return _shared if self.object_reuse else own

    @property
    def source_waits(self) -> bool:
        """The task's source has to wait for other sources, or for those that take what becomes of
        its records."""
        if self.hold is not None and self.hold.is_held:
            return True
        return self.alignment is not None and self.alignment.paused

    @property
    def task_name(self) -> str:
        return f"{self.name} ({self.subtask_index + 1}/{self.parallelism})"


@dataclass(frozen=True)
class OperatorState:
    """A point in time of one operator's subtask."""

    keyed: SnapshotStream | None = None
    operator: OperatorSnapshot | None = None
    files: tuple[StateFile, ...] = ()


class OperatorStateCapture:
    """The same, not written yet: the task goes on meanwhile."""

    def __init__(
        self,
        keyed: StateCapture | None,
        operator: OperatorCapture | None,
        files: tuple[StateFile, ...] = (),
    ) -> None:
        """*files*: they stay where they are until it is released."""
        self._keyed = keyed
        self._operator = operator
        self._files = files
        self.is_released = False
        """Nobody is going to write it any more, or it is written."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the keyed state is in it; else what has changed since an earlier one."""
        return self._keyed is None or self._keyed.is_whole

    def write(self) -> OperatorState:
        """Serialise it; from any thread, once."""
        keyed = None if self._keyed is None else self._keyed.write()
        return OperatorState(keyed, self._written(), self._files)

    def stream(self) -> OperatorState:
        """The same; the keyed state is serialised while its bodies are taken."""
        keyed = None if self._keyed is None else self._keyed.stream()
        return OperatorState(keyed, self._written(), self._files)

    def _written(self) -> OperatorSnapshot | None:
        return None if self._operator is None else self._operator.write()

    def release(self) -> None:
        """Nobody is going to write it; from any thread."""
        if self._keyed is not None:
            self._keyed.release()
        if self._operator is not None:
            self._operator.release()
        self.is_released = True


class StreamOperator:
    """Base of all operators with one input; by itself it passes everything on.

    Life: :meth:`setup`, :meth:`restore` if there is something to restore, :meth:`open`, batches and
    time, :meth:`finish` (the input ended; not when the task fails), :meth:`close`.
    """

    chaining: ClassVar[ChainingStrategy] = ChainingStrategy.ALWAYS
    gives_slots: ClassVar[bool] = False
    """Its function may use array state."""
    context: OperatorContext
    output: Output
    reading: Reading | None = None
    """For error messages: the last block, and how far it was read."""

    def setup(self, context: OperatorContext, output: Output) -> None:
        self.context = context
        self.output = output
        self._rows = Portion(context.clock, context.turn)
        self.operator_state = OperatorStateBackend()
        self.keyed_state: KeyedStateBackend | None = None
        if context.keyed:
            self.keyed_state = context.make_keyed_state(
                context.max_parallelism,
                key_group_range(
                    context.max_parallelism, context.parallelism, context.subtask_index
                ),
                context.time_service.now,
                context.time_service.schedule,
                self.key_hash(),
            )
            if context.publish is not None:
                self.keyed_state.publish = partial(context.publish, self.keyed_state)

    def key_hash(self) -> KeyHash:
        """What key groups of the operator's keys come from."""
        return stable_hash

    @property
    def selectors(self) -> Sequence[Any]:
        """Functions that it asks for the keys of records."""
        return ()

    def all_selectors(self) -> Iterable[Any]:
        """Those, and functions that say where results go, each once.  They are opened before the
        operator, and closed after it."""
        return {id(it): it for it in (*self.selectors, *self.context.selectors)}.values()

    def open_selector(self, selector: Any) -> None:
        """One of them.  It has no state."""
        selector.open(self.runtime_context(has_state=False))

    def runtime_context(self, *, has_state: bool = True) -> RuntimeContext:
        """What the user's function is given in ``open``."""
        context = self.context
        return RuntimeContext(
            task_name=context.name,
            subtask_index=context.subtask_index,
            parallelism=context.parallelism,
            max_parallelism=context.max_parallelism,
            attempt_number=context.attempt_number,
            job_parameters=context.job_parameters,
            cached_files=context.cached_files,
            metrics=context.metrics,
            keyed_state=self.keyed_state if has_state else None,
            has_arrays=self.gives_slots,
            is_restored=context.restored_checkpoint_id > 0,
        )

    def inputs(self) -> Sequence[Receiver]:
        """The inputs, first to last."""
        return (self,)

    def open(self) -> None:
        """Before the first batch."""

    def finish(self) -> None:
        """The input has ended; what is still kept is put out now."""

    def close(self) -> None:
        """Give resources back; also after a failure."""

    def read(self, block: Block) -> Iterator[Any]:
        """The values of a block, one after the other; a failure is traced to the last of them."""
        values = block.values
        # An iterator over a range does not show that it has come to its end.
        records = iter(list(values) if isinstance(values, range) else values)
        self.reading = block, records
        if self.keyed_state is not None:
            self.keyed_state.count_records(len(values))
        return records

    @property
    def takes_columns(self) -> bool:
        """Whether it handles columns as such."""
        return type(self).process_columns is not StreamOperator.process_columns

    def process_block(self, block: Block) -> None:
        self.output.emit(block)

    def process_columns(self, columns: Columns) -> None:
        """Operators that do not know columns are given rows."""
        self.process_rows(columns, self.process_block)

    def process_rows(self, columns: Columns, process: Callable[[Block], None]) -> None:
        """Give columns to *process* as rows, a portion at a time."""
        for begin, end in self._rows.of(len(columns)):
            process(columns.part(begin, end).to_block())
            if end < len(columns):
                self.context.turn.pause()

    def process_watermark(self, timestamp: int) -> None:
        self.output.emit_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.output.emit_status(idle)

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        """A checkpoint is about to be taken: what is put out now goes ahead of its barrier.  After
        those in front of it in the task, and before any state is captured."""

    def files(self) -> tuple[StateFile, ...]:
        """Those that the operator state refers to, and that are to be captured with it."""
        return ()

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        """The state at this moment, to be written later; called between two batches.

        Args:
            since: an earlier checkpoint; of keyed state, only what has changed since then is
                wanted, as :meth:`KeyedStateBackend.capture` says.
        """
        keyed = None
        if self.keyed_state is not None:
            keyed = self.keyed_state.capture(checkpoint_id, since)
        return OperatorStateCapture(keyed, self.operator_state.capture(), self.files())

    def restore(self, states: Sequence[OperatorState], checkpoint_id: int | None = None) -> None:
        """Take over what earlier subtasks left; between setup and open.

        Args:
            checkpoint_id: the keyed state is this subtask's own of that checkpoint, and captures
                may be about changes since then.
        """
        if self.keyed_state is not None:
            keyed = (s.keyed for s in states if s.keyed is not None)
            self.keyed_state.restore(keyed, checkpoint_id)
        self.operator_state.restore(s.operator for s in states if s.operator is not None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete everywhere; ids come in increasing order."""

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether its task cannot end yet, though it is finished: what it has is to be committed
        with a checkpoint."""
        return False

    @property
    def is_retrying(self) -> bool:
        """Whether its task cannot end yet, though it is finished: something has failed, and is
        tried again by a callback that was scheduled for after the end, too."""
        return False

    def describe_record(self, block: Block, place: int) -> str:
        """For error messages."""
        return text_of(block.values[place])

    def describe_occasion(self) -> str:
        """For error messages where there is no record: what the operator was at."""
        return ""


class FunctionOperator(StreamOperator):
    """An operator around one user function, which it opens and closes."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._opened = False

    def open(self) -> None:
        open_function = getattr(self.function, "open", None)
        if open_function is not None:
            self._opened = True
            open_function(self.runtime_context())

    def close(self) -> None:
        if self._opened:
            self._opened = False
            close = getattr(self.function, "close", None)  # which an object of one method may lack
            if close is not None:
                close()

    def method(self, name: str) -> Callable[..., Any]:
        """The function's method of that name, or the function itself where it is a plain one."""
        bound = getattr(self.function, name, None)
        return bound if bound is not None else self.function  # type: ignore[no-any-return]


def _shared(value: Any) -> Any:
    return value
