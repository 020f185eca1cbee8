"""Runs one attempt of a stream task in its thread: a chain of operators between its channels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_process import ResultPartitionNotFoundError
from flinkray.actors.task_process.code_failure import TaskCancelledError
from flinkray.actors.task_process.collected_results import CollectedResults
from flinkray.actors.task_process.coordinator_clients import CoordinatorClients
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.global_aggregate_client import GlobalAggregateClient
from flinkray.actors.task_process.in_flight_files import read_in_flight
from flinkray.actors.task_process.printed_lines_sender import PrintedLinesOutput
from flinkray.actors.task_process.task_checkpoints import (
    TaskCheckpointOrders,
    TaskCheckpointResponder,
)
from flinkray.actors.task_process.task_files import TaskFiles
from flinkray.actors.task_process.task_snapshots import (
    StateNotReadError,
    own_keyed_state,
    read_states,
)
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import RpcError, SuppressRestartsError
from flinkray.core.ids import IntermediateDataSetID
from flinkray.scheduler.graph.job_graph import ResultMedium
from flinkray.scheduler.shared.tasks import RestoredTask
from flinkray.state.errors import StateMigrationError
from flinkray.state.kv_state_registry import TaskKvStateRegistry
from flinkray.streaming.channels import MemoryInputGate, RecordWriter
from flinkray.streaming.functions.metrics import Counter, Gauge, Meter, MetricGroup
from flinkray.streaming.network import (
    ChannelError,
    ChannelMetrics,
    ChannelSource,
    NetworkInputGate,
    PartitionReleasedError,
    PartitionUnavailableError,
    PartitionWriter,
    ResultPartition,
    Signal,
    register_input,
    register_output,
)
from flinkray.streaming.operator_errors import operator_error
from flinkray.streaming.operators.model_replicas import ModelReplicas
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.operators.task_services import (
    CommitLog,
    LookUpRoom,
    ResultsReceiver,
    TaskServices,
)
from flinkray.streaming.operators.timestamps import TimestampsAndWatermarksOperator
from flinkray.streaming.program.chain_builder import ChainBuilder, prepared_partitioner
from flinkray.streaming.program.chain_plan import ChainPlan, PlannedOperator
from flinkray.streaming.records.partitioners import ForwardPartitioner
from flinkray.streaming.sources.result_files import ResultFileSplit
from flinkray.streaming.task.task import StreamTask, StreamTaskInput, StreamTaskOutput, closing
from flinkray.streaming.task.task_thread import TaskLoop
from flinkray.streaming.time.time_service import ProcessingTimeService, WaitingClock

log = logging.getLogger(__name__)

_LOST_INPUTS = (
    ChannelError,
    PartitionUnavailableError,
    PartitionReleasedError,
    ResultPartitionNotFoundError,
    RpcError,
)
"""Errors that mean that a task's input is lost."""


class ClusterTaskServices(TaskServices):
    """Services for the operators of a task in a cluster."""

    stages: TaskFiles

    def __init__(
        self,
        files: TaskFiles,
        results: CollectedResults,
        printed: PrintedLinesOutput | None,
        devices: Mapping[str, tuple[str, ...]],
        replicas: Callable[..., ModelReplicas],
    ) -> None:
        """Create the services of one task.

        Args:
            files: the task's files.
            results: receives results that the client collects.
            printed: receives lines that are printed for the client. None: lines are written to
                the log.
            devices: ids of the process's accelerators, by the name of the resource.
            replicas: returns the replicas of a model.
        """
        self.replicas = replicas  # type: ignore[method-assign]
        self.stages = files
        self.devices = devices
        self.write_lines = None if printed is None else printed.write
        self._results = results
        self.outputs: list[StreamTaskOutput] = [] if printed is None else [printed]
        """Outputs of the task that its operators use, and whose reader is the client."""

    def commit_log(self, operator_id: str) -> CommitLog:
        return self.stages.commit_log(operator_id)

    def look_up_room(self, operator_id: str) -> LookUpRoom:
        return self.stages.look_up_room(operator_id)

    def results(self) -> ResultsReceiver:
        self.outputs.insert(0, self._results)
        return self._results

    def file_writer(
        self, data_set_id: IntermediateDataSetID
    ) -> Callable[[pa.RecordBatch | pa.Table], None] | None:
        output = self.stages.outputs.get(data_set_id)
        return None if output is None else output.write


@dataclass(kw_only=True)
class StreamTaskContext:
    """Everything that one attempt of a stream task needs: channels, files, state, services."""

    deployed: DeployedTask
    sources: Sequence[Sequence[ChannelSource]]
    """For each of the vertex's inputs through channels: the channels to read."""
    gate: NetworkInputGate | None
    """Reads these channels. None: there are no inputs through channels. The owner of the task
    closes the gate when the thread has ended.
    """
    partitions: Sequence[ResultPartition]
    """For each of the vertex's results through channels: the partition to write."""
    files: TaskFiles
    """Files that the task reads and writes."""
    clients: CoordinatorClients
    services: ClusterTaskServices
    global_aggregates: GlobalAggregateClient
    """Updates the job's global aggregates for user functions."""
    kv_states: TaskKvStateRegistry
    """Registers the task's queryable states."""
    responder: TaskCheckpointResponder
    """Sends the task's answers to checkpoints."""
    orders: TaskCheckpointOrders
    """Receives the checkpoint orders for the task."""
    signal: Signal
    check_cancelled: Callable[[], None]
    """Raises TaskCancelledError if the task is cancelled."""
    clock: WaitingClock
    cached_files: Mapping[str, str]
    """Paths of the job's cached files, by name."""
    configuration: ReadableConfig
    """Configuration of the process."""
    metrics: MetricGroup = field(default_factory=MetricGroup)

    @property
    def restored(self) -> RestoredTask | None:
        """State from which the task is restored. None: the task begins without state."""
        return self.deployed.task.restored


class StreamTaskRun:
    """Function for the task's thread, which runs the chain of operators."""

    def __init__(self, context: StreamTaskContext, printed: PrintedLinesOutput | None) -> None:
        """Create the function.
        *printed* sends lines that are printed for the client. None: the job prints no lines for the
        client.
        """
        self._context = context
        self._printed = printed

    def __call__(self, plan: ChainPlan) -> None:
        """Run the chain until all its input and all its pipelined results are read.

        Raises:
            OperatorError: user code or an operator failed.
            ChannelError: a producer or consumer is gone.
        """
        context, deployed = self._context, self._context.deployed
        clients = context.clients
        plan = self._as_deployed(plan)
        clock = context.clock
        time_service = ProcessingTimeService(clock)
        builder = ChainBuilder(
            plan,
            _own_operator,
            lambda result: self._writer(plan, result),
            deployed.task.subtask_index,
            deployed.vertex.parallelism,
            deployed.task.attempt_number,
            clock,
            time_service,
            context.metrics,
            context.global_aggregates,
            alignment=None if clients.alignment is None else clients.alignment.alignment,
            hold=None if clients.hold is None else clients.hold.hold,
            job_id=deployed.job.job_id.hex(),
            kv_states=context.kv_states,
            configuration=context.configuration,
            services=context.services,
        )
        head = builder.build()
        inputs, channel_inputs = self._inputs(plan, head)
        task = StreamTask(
            deployed.name,
            builder.operators,
            context.gate or MemoryInputGate(()),
            inputs,
            channel_inputs,
            [*builder.writers, *context.services.outputs],
            time_service,
            context.responder,
            builder.turn,
            deployed.job.is_exactly_once,
            _checkpoint_of(context.restored),
        )
        loop = TaskLoop(
            task, context.signal, clock, context.check_cancelled, clients.splits, clock.monotonic
        )
        times = TaskTimes(loop, context.partitions)
        context.metrics.gauge("busyTimeMs", times.busy)
        context.metrics.gauge("idleTimeMs", times.idle)
        if inputs:
            context.metrics.gauge(
                "checkpointAlignmentTime", lambda: int(task.alignment_seconds * 1e9)
            )
            context.metrics.gauge(
                "currentInputWatermark", lambda: min(taking.valve.current for taking in inputs)
            )
        elif assigners := _assigners(builder.operators):
            context.metrics.gauge(
                "currentOutputWatermark", lambda: min(one.watermark for one in assigners)
            )
        try:
            self._run(task, loop)
            context.files.end_streams()
        finally:
            loop.end()
            if self._printed is not None:
                self._printed.flush()
            log.info("task %s has ended; %s", deployed.name, figures(context.metrics))

    def _as_deployed(self, plan: ChainPlan) -> ChainPlan:
        """Return a copy of the plan with the maximum parallelisms and cached files of this
        deployment."""
        context, vertex = self._context, self._context.deployed.vertex
        own = vertex.max_parallelism
        of_consumers = [
            max((consumer.max_parallelism for consumer in result.consumers), default=0)
            for result in vertex.results
            if result.medium is ResultMedium.CHANNELS
        ]
        return replace(
            plan,
            operators=[replace(it, max_parallelism=own) for it in plan.operators],
            results=[
                replace(result, max_parallelism=of_consumer)
                for result, of_consumer in zip(plan.results, of_consumers, strict=True)
            ],
            cached_files=context.cached_files,
        )

    def end_at_once(self) -> None:
        """Run a task that had finished in the restored checkpoint: end all outputs without calling
        user code. Checkpoint barriers pass through.

        Raises:
            TaskError: readers still need results of the task, which are gone.
        """
        context, deployed = self._context, self._context.deployed
        if context.files.outputs or any(partition.is_blocking for partition in context.partitions):
            raise TaskError(
                f"{deployed.name} had finished in checkpoint {_checkpoint_of(context.restored)}, "
                "and its results, which others read later, are gone: start the job from an earlier "
                "checkpoint, or from the beginning"
            )
        clock = context.clock
        task = StreamTask(
            deployed.name,
            (),
            context.gate or MemoryInputGate(()),
            (),
            [(0, channel) for channel in range(sum(map(len, context.sources)))],
            [PartitionWriter(partition, ForwardPartitioner()) for partition in context.partitions],
            ProcessingTimeService(clock),
            context.responder,
            exactly_once=deployed.job.is_exactly_once,
            restored_from=_checkpoint_of(context.restored),
        )
        loop = TaskLoop(task, context.signal, clock, context.check_cancelled)
        for partition in context.partitions:
            partition.listen(context.signal.set)
        try:
            context.orders.attach(task)
            if context.gate is not None:
                context.gate.listen(context.signal.set)
                context.gate.request()
            loop.run()
        finally:
            task.close()
        self._wait_until_read(loop.wait_until)
        context.files.end_streams()

    def _run(self, task: StreamTask, loop: TaskLoop) -> None:
        context = self._context
        for partition in context.partitions:
            partition.listen(context.signal.set)
        register_output(context.metrics, lambda: total_metrics(context.partitions))
        if context.gate is not None:
            register_input(context.metrics, context.gate.metrics)
        try:
            name = f"task {context.deployed.name}"
            with closing(task.close, name), closing(context.kv_states.unregister_all, name):
                self._open(task)
                context.clients.attach(loop, context.metrics)
                if context.gate is not None:
                    context.gate.listen(context.signal.set)
                    context.gate.request()
                with self._reading_files(loop):
                    loop.run()
        except _LOST_INPUTS:
            raise  # not the fault of an operator
        except TaskCancelledError:
            raise
        except StateNotReadError as error:
            if self._is_from_savepoint and error.is_refused:
                raise SuppressRestartsError(str(error)) from error
            if error.is_lost:
                raise SuppressRestartsError(
                    "the job cannot go on from its last checkpoint, and no restart helps; start it "
                    f"from a savepoint, or from another checkpoint that is there: {error}"
                ) from error
            raise
        except BaseException as error:
            told = operator_error(error, context.deployed.name)
            if self._is_from_savepoint and _is_of_stored_types(error):
                raise SuppressRestartsError(str(told)) from error
            raise told from error
        self._wait_until_read(loop.wait_until)

    @property
    def _is_from_savepoint(self) -> bool:
        """Whether the task is restored from a savepoint or from another job's checkpoint. If its
        state does not fit the program then, the job fails at once, because a restart would not
        help."""
        restored = self._context.restored
        return restored is not None and restored.is_foreign

    def _open(self, task: StreamTask) -> None:
        context, restored = self._context, self._context.restored
        channels = [
            (number, channel)
            for number, sources in enumerate(context.sources)
            for channel in range(len(sources))
        ]
        context.responder.begin(task.operators[0][0], channels)
        if restored is None or restored.state is None:
            task.open()
        else:
            state, operators = restored.state, task.operators
            states = read_states(state, operators, context.check_cancelled)
            own = own_keyed_state(state, operators)
            context.responder.restored(restored.checkpoint_id, own)
            inputs, results = read_in_flight(state, context.check_cancelled)
            for (result, subpartition), elements in results.items():
                context.partitions[result].restore(subpartition, elements)
            task.open(states, own)
            for place, elements in inputs.items():
                assert context.gate is not None
                context.gate.restore(channels.index(place), elements)
        context.orders.attach(task)

    @contextmanager
    def _reading_files(self, loop: TaskLoop) -> Iterator[None]:
        """Context manager: give the task's source the part of another vertex's rows, stored in
        files, that this task has to read."""
        with ExitStack() as stack:
            for files in self._context.files.inputs:
                stack.enter_context(files.telling_what_is_lost())
                loop.give_all([ResultFileSplit(rows) for rows in files.share()])
            yield

    def _wait_until_read(self, wait_until: Callable[[Callable[[], bool]], None]) -> None:
        for partition in self._context.partitions:
            if partition.is_blocking:
                continue
            partition.on_consumed(self._context.signal.set)

            def is_read(partition: ResultPartition = partition) -> bool:
                if partition.failure is not None:
                    raise partition.failure
                return partition.is_consumed

            wait_until(is_read)

    def _writer(self, plan: ChainPlan, result: int) -> RecordWriter:
        task, vertex = self._context.deployed.task, self._context.deployed.vertex
        partition = self._context.partitions[result]
        channels = len(partition.subpartitions)
        written_by = [o.name for o in plan.operators if any(w.result == result for w in o.outputs)]
        subtask = f"{task.subtask_index + 1}/{vertex.parallelism}"
        partition.encoder.writer = written_by[0], subtask
        partitioner = prepared_partitioner(plan.results[result], channels, task.subtask_index)
        return PartitionWriter(partition, partitioner)

    def _inputs(
        self, plan: ChainPlan, head: StreamOperator
    ) -> tuple[list[StreamTaskInput], list[tuple[int, int]]]:
        """Return the inputs of the chain's first operator, and for each channel of the task (index
        of the input, number of the channel within the input)."""
        if not plan.inputs:
            return [], []
        counts = [0] * max(1, len(head.inputs()))
        channel_inputs: list[tuple[int, int]] = []
        for index, sources in zip(plan.inputs, self._context.sources, strict=True):
            for _ in sources:
                channel_inputs.append((index, counts[index]))
                counts[index] += 1
        ports = head.inputs()
        return [StreamTaskInput(p, c) for p, c in zip(ports, counts, strict=True)], channel_inputs


def _checkpoint_of(restored: RestoredTask | None) -> int:
    return 0 if restored is None else restored.checkpoint_id


def _assigners(
    operators: Sequence[tuple[str, StreamOperator]],
) -> list[TimestampsAndWatermarksOperator]:
    found = (o.stamping if isinstance(o, SourceOperator) else o for _, o in operators)
    return [one for one in found if isinstance(one, TimestampsAndWatermarksOperator)]


def total_metrics(partitions: Sequence[ResultPartition]) -> ChannelMetrics:
    """Return the sum of the metrics of all results of a task."""
    total = ChannelMetrics()
    for partition in partitions:
        total += partition.metrics()
    return total


class TaskTimes:
    """Milliseconds for which a task was busy and idle so far.
    Waiting counts as idle, except waiting for room at a consumer, which counts as neither.
    """

    def __init__(self, loop: TaskLoop, partitions: Sequence[ResultPartition]) -> None:
        self._loop = loop
        self._partitions = partitions

    def busy(self) -> int:
        return int((self._loop.elapsed() - self._loop.waited()) * 1000)

    def idle(self) -> int:
        held_up = max((p.metrics().back_pressured_seconds for p in self._partitions), default=0.0)
        return max(0, int((self._loop.waited() - held_up) * 1000))


def _own_operator(planned: PlannedOperator) -> StreamOperator:
    """Return the plan's operator, not a copy: the plan was unpickled for this subtask alone."""
    return planned.operator


def figures(metrics: MetricGroup) -> str:
    """Return all metrics of a task as one line for the log."""
    told = []
    for name, metric in sorted(metrics.all().items()):
        if isinstance(metric, Gauge):
            told.append(f"{name}={metric.get_value()}")
        elif isinstance(metric, Counter | Meter):
            told.append(f"{name}={metric.get_count()}")
        else:
            told.append(f"{name}={metric.count}/{metric.sum}")
    return ", ".join(told) or "no metrics"


def _is_of_stored_types(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, StateMigrationError):
        cause = cause.__cause__
    return cause is not None
