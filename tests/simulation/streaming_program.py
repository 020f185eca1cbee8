"""A stream program for the simulation: splits from an enumerator, counts by key, transactions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from flinkray import user_code
from flinkray.core.clock import Clock
from flinkray.core.ids import random_bytes
from flinkray.core.job_options import CHECKPOINTING_UNALIGNED, STATE_RECOVERY_PATH
from flinkray.datastream import (
    Configuration,
    KeyedProcessFunction,
    ModelFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.cluster_execution import job_of
from flinkray.datastream.common import Types
from flinkray.datastream.common.io import FinalizeOnMaster, InitializeOnMaster, OutputFormat
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.operators.operator import OperatorStateCapture, StreamOperator
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sinks.sink import (
    CommitRequest,
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    StatefulSinkWriter,
    WriterContext,
)
from flinkray.streaming.sources.master_hook import (
    MasterTriggerRestoreHook,
    WithMasterCheckpointHook,
)
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.step_threads import pause_thread
from tests.simulation.external_system import ExternalSystem, Fired, Result, Transaction, Written

KEYS = 5
END_OF_WINDOW = 10**12
"""Event time of a timer that fires when the input has ended, or is drained."""
SINKS = ("operator", "sink", "sink in order")
"""An operator of its own; a sink with a committer behind each writer, which fails where it cannot
commit; one with a single committer, which tries again."""


@dataclass(frozen=True)
class Program:
    """How much there is of everything."""

    sources: int
    """Parallelism."""
    counters: int
    splits: int
    records: int
    """Of each split."""
    longest_pause: float
    """Seconds between two batches of a reader."""
    longest_work: float
    """Seconds that the count of a record takes; records wait in channels meanwhile."""
    failures: float
    """Share of the records whose count fails, while there are faults."""
    configuration: dict[str, str]
    table: int = 0
    """Splits of a second source, which gives all it has at once and has ended long before what it
    gave is read."""
    sink: str = "operator"
    """Which of :data:`SINKS` writes the transactions."""
    has_windows: bool = False
    """Whether the records of each key are counted until event time ends, too."""
    has_format: bool = False
    """Whether a :class:`WholeOutput` gets all results, too."""
    is_held: bool = False
    """Whether the last record of each split is held back as long as a :class:`Hold` says so."""
    has_hook: bool = False
    """Whether the source of the records has a master hook."""
    replicas: int = 0
    """How many replicas of a :class:`SlowModel` get the records first. 0: there is no model."""

    @property
    def is_unaligned(self) -> bool:
        """Whether its checkpoints may have data in flight."""
        return self.configuration.get(CHECKPOINTING_UNALIGNED.key) == "true"

    def started_from(self, location: str) -> Program:
        """The same, that goes on from a savepoint or a checkpoint."""
        start = {STATE_RECOVERY_PATH.key: location}
        return replace(self, configuration={**self.configuration, **start})

    @property
    def all_records(self) -> set[tuple[int, int]]:
        """Split and number of each."""
        splits = range(self.splits + self.table)
        return {(split, number) for split in splits for number in range(self.records)}


@dataclass
class Hold:
    """What belongs to a simulation whose job is not to end yet."""

    is_on: bool = True


@dataclass(frozen=True)
class RecordSplit:
    """Records of one split, from a position on."""

    number: int
    end: int
    position: int = 0


class RecordSource(Source[Any, RecordSplit]):
    """Records ``(split, number)``, a few at a time."""

    def __init__(
        self, splits: range, records: int, longest_pause: float, is_held: bool = False
    ) -> None:
        self._splits = splits
        self._records = records
        self._longest_pause = longest_pause
        self._is_held = is_held

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[RecordSplit], clock: Clock
    ) -> SplitEnumerator[RecordSplit]:
        splits = [RecordSplit(number, self._records) for number in self._splits]
        return FixedSplitsEnumerator(context, splits)

    def create_reader(self, context: ReaderContext) -> SourceReader[RecordSplit]:
        return RecordReader(context, self._longest_pause, self._is_held)


class HookedRecordSource(RecordSource, WithMasterCheckpointHook[int]):
    """The same, with a master hook."""

    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[int]:
        return Bookmark()


class Bookmark(MasterTriggerRestoreHook[int]):
    """Its state is the id of the checkpoint.  While there are faults it fails now and then."""

    def __init__(self) -> None:
        self._external: ExternalSystem = Simulation.current().belongings[ExternalSystem]
        self._last = 0

    def get_identifier(self) -> str:
        return "bookmark"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> int:
        if checkpoint_id <= self._last:
            self._external.violated(f"hook: checkpoint {checkpoint_id} after {self._last}")
        self._last = checkpoint_id
        simulation = Simulation.current()
        if simulation.are_faults_on and simulation.random.random() < 0.05:
            raise ValueError("as the test wants it")
        return checkpoint_id

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: int | None) -> None:
        if checkpoint_data != checkpoint_id:
            text = f"hook: state {checkpoint_data} of checkpoint {checkpoint_id}"
            self._external.violated(text)


class RecordReader(SourceReader[RecordSplit]):
    """Asks for the next split when it begins to read the last one that it has."""

    def __init__(self, context: ReaderContext, longest_pause: float, is_held: bool = False) -> None:
        super().__init__(context)
        simulation = Simulation.current()
        self._hold: Hold | None = simulation.belongings[Hold] if is_held else None
        name = f"reader {context.subtask_index}"
        self._random = stream(simulation.seed, name, simulation.scheduler.steps)
        self._longest_pause = longest_pause
        self._splits: deque[RecordSplit] = deque()
        self._no_more = self._is_asking = False
        self._next = 0.0

    def start(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if not self._is_asking and not self._no_more and len(self._splits) < 2:
            self._is_asking = True
            self.context.send_split_request()

    def add_splits(self, splits: Sequence[RecordSplit]) -> None:
        self._splits.extend(splits)
        self._is_asking = False
        self._ask()

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, max_records: int) -> Polled:
        now = self.context.clock.time()
        if not self._splits:
            return END_OF_INPUT if self._no_more else NOTHING_NOW
        if now < self._next:
            return NOTHING_NOW
        split = self._splits[0]
        end = min(split.end, split.position + min(max_records, self._random.randint(1, 5)))
        if self._hold is not None and self._hold.is_on and end == split.end:
            end -= 1
        records = [(split.number, number) for number in range(split.position, end)]
        if end == split.end:
            self._splits.popleft()
            self._ask()
        else:
            self._splits[0] = replace(split, position=end)
        self._next = now + self._longest_pause * self._random.random() ** 2
        return Block(records) if records else NOTHING_NOW

    def next_poll_time(self) -> float | None:
        return self._next if self._splits else math.inf

    def snapshot_state(self, checkpoint_id: int) -> list[RecordSplit]:
        return list(self._splits)


def _as_record(row: Any) -> tuple[int, int]:
    return row.f0, row.f1


class SlowModel(ModelFunction):
    """Takes a while for each batch."""

    def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        pause_thread(0.01, 0.05)
        return batch


class Counting(KeyedProcessFunction[Any, Any, Any]):
    """Numbers the records of each key."""

    def __init__(self, longest_work: float, failures: float) -> None:
        self._longest_work = longest_work
        self._failures = failures

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if self._longest_work:
            pause_thread(self._longest_work)
        simulation = Simulation.current()
        if simulation.are_faults_on and simulation.random.random() < self._failures:
            raise ValueError("as the test wants it")
        split, number = value
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield Written(split, number, key_of(value), count)


class CountingInWindows(Counting):
    """Tells, at the end of event time, how many records of a key have come since it told last."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._open = runtime_context.get_state(ValueStateDescriptor("open", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield from super().process_element(value, ctx)
        self._open.update((self._open.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(END_OF_WINDOW)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield Fired(ctx.get_current_key(), self._open.value() or 0)
        self._open.clear()


def key_of(record: tuple[int, int]) -> int:
    """Keys have records of all splits."""
    split, number = record
    return (3 * split + number) % KEYS


_PENDING: ListStateDescriptor[Any] = ListStateDescriptor("transactions")


class TransactionOperator(StreamOperator):
    """Two-phase: what was written before a checkpoint is one transaction, which is committed when
    the checkpoint is complete, or by whoever goes on from it."""

    def open(self) -> None:
        self._external: ExternalSystem = Simulation.current().belongings[ExternalSystem]
        self._records: list[Result] = []
        restored: list[Transaction] = list(self.operator_state.list_state(_PENDING).get())
        self._pending: list[Transaction] = []
        self._commit(restored)

    def process_block(self, block: Block) -> None:
        self._records.extend(self.read(block))

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        if self._records:
            subtask = self.context.subtask_index
            transaction = Transaction(
                f"{checkpoint_id}-{subtask}-{random_bytes(4).hex()}",
                checkpoint_id,
                tuple(self._records),
            )
            self._external.prepare(transaction)
            self._records = []
            self._pending.append(transaction)
        self.operator_state.list_state(_PENDING).update(list(self._pending))
        return super().capture(checkpoint_id, since)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._commit([it for it in self._pending if it.checkpoint_id <= checkpoint_id])
        self._pending = [it for it in self._pending if it.checkpoint_id > checkpoint_id]

    def _commit(self, transactions: list[Transaction]) -> None:
        if transactions:
            pause_thread(0.05, 0.3)
            self._external.commit([it.name for it in transactions])

    @property
    def awaits_checkpoint(self) -> bool:
        return bool(self._records or self._pending)


class TransactionSink(Sink[Any, str]):
    """The same by the interface of sinks: a transaction is a committable."""

    def __init__(self, commits_in_order: bool) -> None:
        self.commits_in_order = commits_in_order

    def create_writer(self, context: WriterContext) -> SinkWriter[str]:
        return TransactionWriter(context.subtask_index)

    def create_committer(self, context: CommitterContext) -> Committer[str]:
        return TransactionCommitter(self.commits_in_order)


class TransactionWriter(StatefulSinkWriter[str, None]):
    """It gets to know of each checkpoint after it has prepared what belongs to it."""

    def __init__(self, subtask: int) -> None:
        self._external: ExternalSystem = Simulation.current().belongings[ExternalSystem]
        self._subtask = subtask
        self._records: list[Result] = []
        self._prepared: list[str] = []
        """Since the last checkpoint."""

    def write(self, block: Block) -> None:
        self._records.extend(block.values)

    def prepare_commit(self, end_of_input: bool) -> list[str]:
        if not self._records:
            return []
        name = f"{self._subtask}-{random_bytes(6).hex()}"
        self._external.prepare(Transaction(name, 0, tuple(self._records)))
        self._records = []
        if end_of_input:  # its task may end, and a checkpoint covers that which begins later
            self._external.cover([name], self._external.latest_completed() + 1)
        else:
            self._prepared.append(name)
        return [name]

    def snapshot_state(self, checkpoint_id: int) -> Sequence[None]:
        prepared, self._prepared = self._prepared, []
        self._external.cover(prepared, checkpoint_id)
        return ()


class TransactionCommitter(Committer[str]):
    """Of one subtask, or of all."""

    def __init__(self, tries_again: bool) -> None:
        self._external: ExternalSystem = Simulation.current().belongings[ExternalSystem]
        self._tries_again = tries_again

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        pause_thread(0.05, 0.3)
        for request in requests:
            try:
                self._external.commit([request.committable])
            except OSError as error:
                if not self._tries_again:
                    raise
                request.retry_later(error)


class WholeOutput(OutputFormat[Result], InitializeOnMaster, FinalizeOnMaster):
    """An output that is prepared before its first subtask begins and finished after the last."""

    def initialize_global(self, parallelism: int) -> None:
        pause_thread(0.05, 0.3)
        _external().output_is_prepared = True

    def open(self, task_number: int, num_tasks: int) -> None:
        self._me = task_number
        if not _external().output_is_prepared:
            _external().violated(f"subtask {task_number} writes to an output that is not prepared")

    def write_record(self, record: Result) -> None:
        """Nothing is done with it."""

    def close(self) -> None:
        _external().closed_outputs.add(self._me)

    def finalize_global(self, parallelism: int) -> None:
        external = _external()
        missing = set(range(parallelism)) - external.closed_outputs
        if missing:
            external.violated(f"the output is finished without its subtasks {sorted(missing)}")
        pause_thread(0.05, 0.3)
        external.output_is_finished = True


def _external() -> ExternalSystem:
    external: ExternalSystem = Simulation.current().belongings[ExternalSystem]
    return external


def job_graph(program: Program) -> JobGraph:
    """The job."""
    # by name, not by value: pickles of classes have ids that no seed decides
    with patch.object(user_code, "_is_users_own", lambda module: False):
        return _job_graph(program)


def _job_graph(program: Program) -> JobGraph:
    configuration = Configuration()
    for key, value in program.configuration.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    splits = range(program.splits)
    source_is = HookedRecordSource if program.has_hook else RecordSource
    source = source_is(splits, program.records, program.longest_pause, program.is_held)
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "records")
    records.set_parallelism(program.sources).uid("records")
    if program.replicas:
        results = records.infer(
            SlowModel(), batch_size=4, replicas=program.replicas, cpu=0.5, memory="1m",
            output="replace", ordered=True, timeout="2 s", retries=100,
        )  # fmt: skip
        results.set_parallelism(program.sources).uid("model")
        records = results.map(_as_record).set_parallelism(program.sources)
    if program.table:
        splits = range(program.splits, program.splits + program.table)
        table = env.from_source(
            RecordSource(splits, program.records, 0.0), WatermarkStrategy.no_watermarks(), "table"
        )
        records = records.union(table.set_parallelism(1).uid("table"))
    function = CountingInWindows if program.has_windows else Counting
    counted = records.key_by(key_of).process(function(program.longest_work, program.failures))
    counted.set_parallelism(program.counters).uid("count")
    if program.sink == "operator":
        sink = counted.end_with("transactions", TransactionOperator())
    else:
        sink = counted.sink_to(TransactionSink(program.sink == "sink in order"))
    sink.set_parallelism(program.counters).uid("transactions")
    if program.has_format:
        output = counted.write_using_output_format(WholeOutput())
        output.set_parallelism(program.counters).uid("output")
    return job_of(env.get_stream_graph("streaming"), {}, env._job_settings(), ())
