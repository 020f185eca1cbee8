"""The base of all operators: a batch, a time or the end of the input goes in, batches come out.

Operators of a chain call each other directly, batch by batch, in their task's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Protocol

from flinkray.core.clock import Clock
from flinkray.core.key_group_ranges import key_group_range
from flinkray.kernels.rows import own
from flinkray.state import backends
from flinkray.state.backend import KeyedStateBackend, KeyedStateBackendFactory
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.key_group_assignment import KeyHash, stable_hash
from flinkray.state.operator_state import (
    OperatorCapture,
    OperatorSnapshot,
    OperatorStateBackend,
    StateFile,
)
from flinkray.state.snapshots import SnapshotStream, StateCapture
from flinkray.state.table import StateTable
from flinkray.state.thread_turns import first_turn
from flinkray.streaming.errors import text_of
from flinkray.streaming.functions.global_aggregates import (
    GlobalAggregateManager,
    LocalGlobalAggregateManager,
)
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.functions.output_tag import OutputTag
from flinkray.streaming.functions.runtime_context import RuntimeContext
from flinkray.streaming.operator_errors import Reading
from flinkray.streaming.operators.task_services import TaskServices
from flinkray.streaming.records.elements import Barrier, Block, Columns
from flinkray.streaming.sources.source import SourceHold, SplitsToRead
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Portion, Turn
from flinkray.streaming.time.watermark_alignment import TaskAlignment


class ChainingStrategy(Enum):
    """Says whether an operator may run in the task of the operator before or behind it."""

    ALWAYS = "always"
    HEAD = "head"
    """The operator starts a chain. Further operators may follow in the chain."""
    NEVER = "never"


class Receiver(Protocol):
    """Interface of what takes batches, watermarks and idle status: an operator's input, or a writer
    that sends them to other tasks."""

    def process_block(self, block: Block) -> None: ...
    def process_columns(self, columns: Columns) -> None: ...
    def process_watermark(self, timestamp: int) -> None: ...
    def process_status(self, idle: bool) -> None: ...


class Output:
    """The receivers of an operator's main output and of its side outputs.
    The values of a block belong to the receiver, which may change them. Several receivers get
    copies, unless objects are reused."""

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
        # Usually there is one receiver; then emit calls it directly.
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
        """Put a block out to a side output. It is dropped if the side output has no receivers."""
        self._give(self._side.get(tag.tag_id, ()), block)

    def emit_watermark(self, timestamp: int) -> None:
        for receiver in self._everyone:
            receiver.process_watermark(timestamp)

    def emit_status(self, idle: bool) -> None:
        for receiver in self._everyone:
            receiver.process_status(idle)


@dataclass
class OperatorContext:
    """What a task gives to an operator: names, ids, clock, metrics and settings."""

    name: str
    time_service: ProcessingTimeService
    clock: Clock
    subtask_index: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    attempt_number: int = 0
    restored_checkpoint_id: int = 0
    """Id of the checkpoint that the task was restored from, even if the operator has no state in
    it. 0: the task was not restored."""
    job_id: str = ""
    """32 hexadecimal digits; empty if unknown."""
    operator_id: str = ""
    """32 hexadecimal digits under which the operator's state is kept; empty if unknown."""
    auto_watermark_interval: int = 200
    keyed: bool = False
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    cached_files: Mapping[str, str] = field(default_factory=dict)
    metrics: MetricGroup = field(default_factory=MetricGroup)
    global_aggregates: GlobalAggregateManager = field(default_factory=LocalGlobalAggregateManager)
    """The aggregates that all tasks of the job share."""
    alignment: TaskAlignment | None = None
    """Watermark alignment of the task; None if the task reads no source."""
    hold: SourceHold | None = None
    """Stops the source while sinks are too far behind; None: sinks never hold the source."""
    splits: SplitsToRead = field(default_factory=SplitsToRead)
    """The splits that the task's source has yet to read. Shared by the operators of the task."""
    make_keyed_state: KeyedStateBackendFactory = backends.DEFAULT
    publish: Callable[[KeyedStateBackend, StateDescriptor, StateTable], None] | None = None
    """Called for each queryable state; None if states cannot be queried."""
    turn: Turn = field(default_factory=Turn)
    """The turn of the task, shared by its operators."""
    is_head: bool = False
    """Whether this is the task's first operator, which the task calls directly."""
    object_reuse: bool = False
    """Results are passed on without copies; user code must neither keep nor change them."""
    selectors: Sequence[Any] = ()
    """Functions that decide where results go: key selectors and partitioners."""
    services: TaskServices = field(default_factory=TaskServices)
    """What the runner of the task offers to its operators."""

    @property
    def own(self) -> Callable[[Any], Any]:
        """The function that copies results of user code which user code could still change. With
        object reuse, it copies nothing."""
        return _shared if self.object_reuse else own

    @property
    def source_waits(self) -> bool:
        """Whether the task's source must wait, for other sources or for sinks that are behind."""
        if self.hold is not None and self.hold.is_held:
            return True
        return self.alignment is not None and self.alignment.paused

    @property
    def task_name(self) -> str:
        return f"{self.name} ({self.subtask_index + 1}/{self.parallelism})"


@dataclass(frozen=True)
class OperatorState:
    """The state that one subtask of an operator has in a checkpoint, or is restored from."""

    keyed: SnapshotStream | None = None
    operator: OperatorSnapshot | None = None
    files: tuple[StateFile, ...] = ()


class OperatorStateCapture:
    """The state of an operator's subtask at one moment. The task continues to change its state
    while the capture is written."""

    def __init__(
        self,
        keyed: StateCapture | None,
        operator: OperatorCapture | None,
        files: tuple[StateFile, ...] = (),
    ) -> None:
        """Make a capture of an operator's keyed state, operator state and files.
        The *files* must exist until the capture is released."""
        self._keyed = keyed
        self._operator = operator
        self._files = files
        self.is_released = False
        """Whether :meth:`release` was called: the capture was written, or will never be."""

    @property
    def is_whole(self) -> bool:
        """Whether the capture has all keyed state, not only changes since an earlier capture."""
        return self._keyed is None or self._keyed.is_whole

    def write(self) -> OperatorState:
        """Return the captured state, serialised. Call this method once, from any thread."""
        keyed = None if self._keyed is None else self._keyed.write()
        return OperatorState(keyed, self._written(), self._files)

    def stream(self) -> OperatorState:
        """Return the state; keyed state is serialised only when its bodies are read."""
        keyed = None if self._keyed is None else self._keyed.stream()
        return OperatorState(keyed, self._written(), self._files)

    def _written(self) -> OperatorSnapshot | None:
        return None if self._operator is None else self._operator.write()

    def release(self) -> None:
        """Release the captured state without writing it, from any thread."""
        if self._keyed is not None:
            self._keyed.release()
        if self._operator is not None:
            self._operator.release()
        self.is_released = True


class StreamOperator:
    """Base of all operators with one input. Methods that are not overridden pass records,
    watermarks and status on. Life cycle: :meth:`setup`, :meth:`restore` if there is state to
    restore, :meth:`open`, batches and time, :meth:`finish` (when the input ends, but not when the
    task fails), :meth:`close`."""

    chaining: ClassVar[ChainingStrategy] = ChainingStrategy.ALWAYS
    gives_slots: ClassVar[bool] = False
    """Whether the operator's function may use array state."""
    context: OperatorContext
    output: Output
    reading: Reading | None = None
    """The last block and an iterator that shows how far it was read. For error messages."""

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
        """Return the hash function from which the key groups of keys are computed."""
        return stable_hash

    @property
    def selectors(self) -> Sequence[Any]:
        """The user's functions that this operator calls to get the keys of records."""
        return ()

    def all_selectors(self) -> Iterable[Any]:
        """Return the functions that select keys for the operator, and the user functions of the
        partitioners of its results, each once. They are opened before the operator and closed after
        it."""
        return {id(it): it for it in (*self.selectors, *self.context.selectors)}.values()

    def open_selector(self, selector: Any) -> None:
        """Open one of :meth:`all_selectors`. The function gets a runtime context without state."""
        selector.open(self.runtime_context(has_state=False))

    def runtime_context(self, *, has_state: bool = True) -> RuntimeContext:
        """Return the runtime context that the user's function gets in ``open``."""
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
            global_aggregates=context.global_aggregates,
            has_arrays=self.gives_slots,
            is_restored=context.restored_checkpoint_id > 0,
            devices=context.services.devices,
        )

    def inputs(self) -> Sequence[Receiver]:
        """Return the receivers of the operator's inputs, first to last."""
        return (self,)

    def open(self) -> None:
        """Prepare the operator for its first batch, for example open the user's function."""

    def finish(self) -> None:
        """Put out all results that the operator still keeps: its input has ended."""

    def close(self) -> None:
        """Release resources; also called after a failure."""

    def read(self, block: Block) -> Iterator[Any]:
        """Return an iterator over a block's values. If processing fails, the error names the value
        that the iterator returned last."""
        values = block.values
        # An iterator over a range does not show whether it is exhausted.
        records = iter(list(values) if isinstance(values, range) else values)
        self.reading = block, records
        if self.keyed_state is not None:
            self.keyed_state.count_records(len(values))
        return records

    @property
    def takes_columns(self) -> bool:
        """Whether the operator overrides :meth:`process_columns`: columns need not become rows."""
        return type(self).process_columns is not StreamOperator.process_columns

    def process_block(self, block: Block) -> None:
        self.output.emit(block)

    def process_columns(self, columns: Columns) -> None:
        """Process columns. Operators that do not override this method get the columns as rows."""
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
        """Put out results that must be sent before the barrier of a checkpoint. Called for one
        operator after the other, from the head of the task, before any state is captured."""

    def files(self) -> tuple[StateFile, ...]:
        """Return the files to which the operator state refers. A capture includes them."""
        return ()

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        """Return a capture of the present state, to be written later. Called between two batches.
        *since*: id of an earlier checkpoint; only later changes of keyed state are captured. None:
        all of it is captured."""
        keyed = None
        if self.keyed_state is not None:
            keyed = self.keyed_state.capture(checkpoint_id, since)
        return OperatorStateCapture(keyed, self.operator_state.capture(), self.files())

    def restore(self, states: Sequence[OperatorState], checkpoint_id: int | None = None) -> None:
        """Restore *states*, which earlier subtasks have written. Called between setup and open.
        *checkpoint_id*: if the keyed state is exactly this subtask's state in a checkpoint, the id
        of this checkpoint; later captures may then hold only the changes since. None: otherwise."""
        if self.keyed_state is not None:
            keyed = (s.keyed for s in states if s.keyed is not None)
            with first_turn():
                self.keyed_state.restore(keyed, checkpoint_id)
        self.operator_state.restore(s.operator for s in states if s.operator is not None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called when the checkpoint is complete in all tasks. Ids come in increasing order."""

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether the operator has finished, but still needs a checkpoint to commit its results.
        The task cannot end before that."""
        return False

    @property
    def is_retrying(self) -> bool:
        """Whether the operator has finished, but still retries an action that has failed.
        The task cannot end before that."""
        return False

    def describe_record(self, block: Block, place: int) -> str:
        """Return the text for the record at *place* of a block, for error messages."""
        return text_of(block.values[place])

    def describe_occasion(self) -> str:
        """Return a text for errors on the timer or window that is processed without a record."""
        return ""


class LastOperator(StreamOperator):
    """Base of operators that no operator follows. Watermarks and idle status are dropped."""

    def process_watermark(self, timestamp: int) -> None:
        return None

    def process_status(self, idle: bool) -> None:
        return None


class FunctionOperator(StreamOperator):
    """Base of operators with one user function, which :meth:`open` opens and :meth:`close`
    closes."""

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
            close = getattr(self.function, "close", None)  # may be missing
            if close is not None:
                close()

    def method(self, name: str) -> Callable[..., Any]:
        """Return the method *name* of the user function, or, if it has no such method, the function
        itself."""
        bound = getattr(self.function, name, None)
        return bound if bound is not None else self.function  # type: ignore[no-any-return]


def _shared(value: Any) -> Any:
    return value
