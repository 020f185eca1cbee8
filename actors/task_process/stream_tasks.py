"""The stream tasks of a process, with their channels and connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

from flinkray.actors.gateways.stream_coordinator import (
    CollectorPlace,
    StreamCoordinatorGateway,
    stream_coordinator_address,
)
from flinkray.actors.gateways.task_process import JobPartition
from flinkray.actors.shared.chain_code import PRINTED_LINES, TO_CLIENT, buffer_timeouts
from flinkray.actors.shared.produced_partitions import ProducedPartition, produced_partitions
from flinkray.actors.task_process.channel_finder import ChannelFinder
from flinkray.actors.task_process.code_failure import Cancellation
from flinkray.actors.task_process.collected_results import CollectedResults
from flinkray.actors.task_process.coordinator_clients import CoordinatorClients
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.global_aggregate_client import GlobalAggregateClient
from flinkray.actors.task_process.partitions import HeldPartition, ResultPartitions
from flinkray.actors.task_process.printed_lines_sender import PrintedLinesOutput
from flinkray.actors.task_process.stream_task_run import (
    ClusterTaskServices,
    StreamTaskContext,
    StreamTaskRun,
)
from flinkray.actors.task_process.task_checkpoints import (
    TaskCheckpointOrders,
    TaskCheckpointResponder,
)
from flinkray.actors.task_process.task_files import TaskFiles
from flinkray.actors.task_process.task_metrics import ShownAs, TaskMetrics, io_metrics_of
from flinkray.actors.task_process.task_runtime import TaskRuntime
from flinkray.core import network_options
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import CoordinatorReplacedError, FlinkRayError
from flinkray.core.ids import (
    ExecutionAttemptID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    ResultPartitionID,
)
from flinkray.core.job_options import CHECKPOINTING_INLINE_THRESHOLD
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.scheduler.checkpoints.messages import CheckpointAnswer, CheckpointOrder
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.graph.job_graph import ResultMedium
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.state.kv_state_registry import KvStateRegistry
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.network import (
    ChannelSource,
    DataAddress,
    NetworkEnvironment,
    NetworkInputGate,
    NetworkSettings,
    ResultPartition,
)
from flinkray.streaming.operators.model_replicas import ModelReplicas

log = logging.getLogger(__name__)

_ANNOUNCE_PAUSE = 0.05
"""Seconds until an unanswered call that announces the results is repeated."""


class StreamTasks:
    """Prepares the stream tasks of a process, and owns its channels and the blocking results of
    ended tasks. Lives on the main thread of the task process. The channels' listener and threads
    are started for the first stream task, or when their address is first requested.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        runtime: TaskRuntime,
        configuration: ReadableConfig,
        read: ResultPartitions,
        is_to_come: Callable[[JobID, ResultPartitionID], Awaitable[bool]],
        cached_files: Callable[[JobID], Mapping[str, str]],
        files: Callable[[DeployedTask], TaskFiles],
        report: Callable[[CheckpointAnswer], None],
        kv_states: KvStateRegistry,
        replicas: Callable[..., ModelReplicas],
    ) -> None:
        """Create the collection of stream tasks, without tasks.

        Args:
            read: the partitions that are read by messages; collected results are added to them.
            is_to_come: returns whether the task that produces a partition has not begun yet.
            cached_files: returns the cached files of a job, by name.
            files: returns what a task reads and writes in the cluster's storage.
            report: sends answers to the JobMaster, in order with the states of tasks.
            kv_states: the registry of queryable states.
            replicas: returns the replicas of a model for a task; see :class:`ModelClients`.
        """
        self.replicas = replicas
        self.files_of = files
        self.report = report
        self.runtime = runtime
        self.kv_states = kv_states
        self.inline_threshold = configuration.get(CHECKPOINTING_INLINE_THRESHOLD)
        self.configuration = configuration
        self._running: dict[ExecutionAttemptID, StreamTaskResources] = {}
        self._endpoint = endpoint
        self._read = read
        self.cached_files = cached_files
        self.metrics = TaskMetrics(endpoint.clock.time)
        endpoint.export_metrics(self.metrics.samples)
        self._finder = ChannelFinder(
            endpoint.rpc_service,
            configuration.get(network_options.REQUEST_BACKOFF_INITIAL),
            configuration.get(network_options.REQUEST_BACKOFF_MAX),
            is_to_come,
        )
        self._network: NetworkEnvironment | None = None
        self._kept: dict[JobPartition, ResultPartition] = {}
        """Blocking results of finished tasks."""

    def network(self) -> NetworkEnvironment:
        """Return the channels of the process. Raises TaskError if the process has no sockets."""
        if self._network is None:
            self._network = self.runtime.network(NetworkSettings.of(self.configuration))
        return self._network

    def data_address(self) -> DataAddress:
        """Return the address of the channels. Raises TaskError if the process has no sockets."""
        return self.network().address

    def prepare(self, deployed: DeployedTask) -> StreamTaskResources:
        """Return the task's resources. The task's results can be requested from now on."""
        resources = StreamTaskResources(self, self._endpoint, deployed, self._create(deployed))
        self._running[deployed.attempt_id] = resources
        return resources

    def order_checkpoint(self, order: CheckpointOrder, attempt_id: ExecutionAttemptID) -> None:
        """Pass an order to a task. Do nothing if the task is not here any more."""
        resources = self._running.get(attempt_id)
        if resources is not None:
            resources.checkpoint_orders.order(order)

    def _create(self, deployed: DeployedTask) -> list[tuple[ProducedPartition, ResultPartition]]:
        vertex, network = deployed.vertex, self.network()
        produced = produced_partitions(
            deployed.job.job_id, deployed.graph_id, vertex, deployed.task
        )
        timeouts = buffer_timeouts(
            vertex.invokable.configuration, self.configuration.get(network_options.BUFFER_TIMEOUT)
        )
        return [
            (
                one,
                network.create_partition(
                    one.partition_id,
                    deployed.name,
                    one.subpartitions,
                    buffer_timeout=timeout,
                    is_blocking=not one.is_pipelined,
                ),
            )
            for one, timeout in zip(produced, timeouts, strict=True)
        ]

    async def gate_of(
        self, deployed: DeployedTask
    ) -> tuple[list[list[ChannelSource]], NetworkInputGate]:
        """Find the processes that have the task's inputs. Returns the channels of each input, and
        the input gate that reads all channels.

        Raises:
            ResultPartitionNotFoundError: a producer is not where it should be.
        """
        vertex, subtask = deployed.vertex, deployed.task.subtask_index
        job_id = deployed.job.job_id
        sources: list[list[ChannelSource]] = []
        for information, locations in deployed.inputs_of(ResultMedium.CHANNELS):
            pattern, producers = information.pattern, information.producer_parallelism
            group = distribution.group_of_consumer(pattern, producers, vertex.parallelism, subtask)
            partitions = distribution.partitions_of_group(
                pattern, producers, vertex.parallelism, group
            )
            subpartition = distribution.subpartition_of(
                pattern, producers, vertex.parallelism, subtask
            )
            addresses = await self._finder.find(job_id, locations, partitions)
            sources.append(
                [
                    ChannelSource(
                        JobPartition(job_id, locations.partition_id(partition)),
                        subpartition,
                        addresses[partition],
                    )
                    for partition in partitions
                ]
            )
        every = [source for of_input in sources for source in of_input]
        return sources, self.network().create_gate(deployed.name, every)

    # --- ends ---------------------------------------------------------------------------------

    def ended(
        self,
        attempt_id: ExecutionAttemptID,
        partitions: list[tuple[ProducedPartition, ResultPartition]],
        reason: str | None,
    ) -> None:
        """Note the end of a task. *reason* None: it has finished; its pipelined results are
        released, and its blocking results stay. Otherwise it failed or was cancelled, and consumers
        of its results fail with *reason*."""
        del self._running[attempt_id]
        for one, partition in partitions:
            if reason is not None:
                self.network().fail_partition(partition, reason)
            elif one.is_pipelined:
                self.network().release_partition(partition)
            else:
                self._kept[one.partition_id] = partition

    def release(self, partition_id: JobPartition) -> None:
        """Release a blocking result that is not needed any more."""
        partition = self._kept.pop(partition_id, None)
        if partition is not None:
            self.network().release_partition(partition)

    def collect(
        self, deployed: DeployedTask, partition: HeldPartition, results: CollectedResults
    ) -> CollectorPlace:
        """Make a task's collected results readable for the client, and return their address."""
        vertex_id, attempt = deployed.vertex.vertex_id, deployed.task.attempt_number
        place = CollectorPlace(
            self._endpoint.address,
            JobPartition(
                deployed.job.job_id,
                ResultPartitionID(
                    deployed.graph_id,
                    IntermediateDataSetID.from_hex(vertex_id.hex()),
                    deployed.task.subtask_index,
                    attempt,
                ),
            ),
            results.restored if deployed.job.takes_checkpoints else None,
            results.first,
        )
        self._read.add(place.partition, partition)
        return place

    def collected(self, place: CollectorPlace) -> None:
        """Make the results at *place* unreadable for the client, because their task has ended."""
        self._read.remove(place.partition)

    async def close(self) -> None:
        """Close all channels of the process."""
        self.runtime.close()
        network = self._network
        if network is not None:
            await self._endpoint.rpc_service.run_blocking(network.close)

    def abandon(self) -> None:
        """Close the channels of a simulated process that has ended.
        Otherwise its threads would run on.
        """
        self.runtime.close()
        if self._network is not None:
            self.runtime.abandon(self._network.close)


class StreamTaskResources:
    """Channels, files, state and connections of one attempt of a stream task."""

    def __init__(
        self,
        tasks: StreamTasks,
        endpoint: RpcEndpoint,
        deployed: DeployedTask,
        partitions: list[tuple[ProducedPartition, ResultPartition]],
    ) -> None:
        self._tasks = tasks
        self._endpoint = endpoint
        self._deployed = deployed
        self._partitions = partitions
        self._gate: NetworkInputGate | None = None
        self._reads_channels = bool(deployed.inputs_of(ResultMedium.CHANNELS))
        has_channels = self._reads_channels or bool(partitions)
        self._signal = tasks.runtime.signal(tasks.network() if has_channels else None)
        self._files = tasks.files_of(deployed)
        self._clients = CoordinatorClients(endpoint.rpc_service, deployed)
        self._responder = TaskCheckpointResponder(
            deployed.job.job_id,
            deployed.attempt_id,
            self._inline_threshold(),
            tasks.runtime.submit,
            self._on_loop,
            tasks.report,
            self._clients.checkpointed,
            had_finished=self.has_finished,
        )
        reads_source = None if self.has_finished else self._clients.splits
        self.checkpoint_orders = TaskCheckpointOrders(self._responder, self._on_loop, reads_source)
        self._results: CollectedResults | None = None
        self._printed = self._printed_lines()
        self._place: CollectorPlace | None = None
        self._global_aggregates: GlobalAggregateClient | None = None
        self._metrics: MetricGroup | None = None
        self._announcing: asyncio.Task[None] | None = None

    @property
    def has_finished(self) -> bool:
        restored = self._deployed.task.restored
        return restored is not None and restored.state is not None and restored.state.is_finished

    def _inline_threshold(self) -> int:
        of_job = self._deployed.job.inline_threshold
        return self._tasks.inline_threshold if of_job is None else of_job

    def _on_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the process ends
            self._endpoint.rpc_service.loop.call_soon_threadsafe(function)

    def _printed_lines(self) -> PrintedLinesOutput | None:
        """Return the output for lines that are printed for the client.
        None if the task prints none.
        """
        deployed = self._deployed
        if deployed.vertex.invokable.configuration.get(PRINTED_LINES) != TO_CLIENT:
            return None
        return PrintedLinesOutput(
            self._endpoint.rpc_service,
            stream_coordinator_address(deployed.job.job_id, deployed.coordinator_owner),
            deployed.coordinator_owner,
            str(deployed.attempt_id),
            self._signal.set,
        )

    async def open(self, cancellation: Cancellation) -> StreamTaskRun:
        """Connect the task's inputs, and return the function for the task's thread."""
        deployed = self._deployed
        cancellation.listen(self._signal.set)
        sources: list[list[ChannelSource]] = []
        if self._reads_channels:
            sources, self._gate = await self._tasks.gate_of(deployed)
        read = HeldPartition(1, is_pipelined=True)
        restored = deployed.task.restored
        self._results = CollectedResults(
            read,
            self._signal.set,
            lambda: self._announce(read),
            is_foreign=restored is not None and restored.is_foreign,
        )
        self._global_aggregates = GlobalAggregateClient(
            self._endpoint.rpc_service, deployed, self._tasks.runtime.signal(), cancellation
        )
        context = StreamTaskContext(
            deployed=deployed,
            sources=sources,
            gate=self._gate,
            partitions=[partition for _, partition in self._partitions],
            files=self._files,
            clients=self._clients,
            services=ClusterTaskServices(
                self._files,
                self._results,
                self._printed,
                self._endpoint.rpc_service.devices,
                partial(self._tasks.replicas, deployed),
            ),
            global_aggregates=self._global_aggregates,
            kv_states=self._tasks.kv_states.task_registry(
                deployed.job.job_id, deployed.attempt_id, self._endpoint.address
            ),
            responder=self._responder,
            orders=self.checkpoint_orders,
            signal=self._signal,
            check_cancelled=self._tasks.runtime.between_steps(cancellation.check),
            clock=self._tasks.runtime.clock,
            cached_files=self._tasks.cached_files(deployed.job.job_id),
            configuration=self._tasks.configuration,
        )
        self._metrics = context.metrics
        self._tasks.metrics.begun(self._shown_as(), context.metrics)
        return StreamTaskRun(context, self._printed)

    def _shown_as(self) -> ShownAs:
        job, vertex, task = self._deployed.job, self._deployed.vertex, self._deployed.task
        return ShownAs(vertex.vertex_id, task.subtask_index, job.job_id, job.job_name, vertex.name)

    def _announce(self, read: HeldPartition) -> None:
        assert self._results is not None
        self._place = self._tasks.collect(self._deployed, read, self._results)
        self._announcing = asyncio.ensure_future(
            announce(self._endpoint.rpc_service, self._deployed.coordinator_owner, self._place)
        )

    async def finish(self) -> None:
        """Wait for reports and snapshots after the thread has returned, and finish the outputs."""
        self.checkpoint_orders.ended()
        await self._responder.close(is_given_up=False)
        await self._clients.flush()
        for output in self._files.outputs.values():
            await output.finish()

    async def settle(self) -> None:
        self.checkpoint_orders.ended()
        await self._responder.close(is_given_up=True)

    def io_metrics(self) -> IOMetrics | None:
        if self._metrics is None:
            return None
        return io_metrics_of(
            self._metrics, reads=self._reads_channels, writes=bool(self._partitions)
        )

    def ended(self, state: TaskExecutionState) -> None:
        """Release all resources, because the attempt has ended with *state*."""
        reason = None
        if state.state is not ExecutionState.FINISHED:
            reason = f"it failed: {state.failure}" if state.failure else "it was cancelled"
        if self._metrics is not None:
            self._tasks.metrics.ended(self._shown_as(), self._metrics)
        self._clients.close()
        if self._announcing is not None:
            self._announcing.cancel()
        if self._results is not None:
            self._results.close()
        if self._place is not None:
            self._tasks.collected(self._place)
        if self._printed is not None:
            self._printed.close()
        if self._global_aggregates is not None:
            self._global_aggregates.close()
        self._tasks.ended(self._deployed.attempt_id, self._partitions, reason)
        for output in self._files.outputs.values():
            output.ended(state)
        if self._gate is not None:
            self._gate.close(reason or "the consumer ended")


async def announce(rpc_service: RpcService, owner: JobMasterId, place: CollectorPlace) -> None:
    """Tell the coordinator where the job's results are collected, repeatedly until it answers.
    *owner* is the JobMaster that has started the coordinator. Ends without effect if the
    coordinator belongs to another JobMaster.
    """
    address = stream_coordinator_address(place.partition.job_id, owner)
    while True:
        try:
            coordinator = await rpc_service.connect(address, StreamCoordinatorGateway)
            await coordinator.results_are_at(owner, place)
            return
        except CoordinatorReplacedError as error:
            log.info("%s is not told where results are: %s", address, error)
            return
        except FlinkRayError as error:
            log.info("%s cannot be told yet where results are: %s", address, error)
            await rpc_service.pause(_ANNOUNCE_PAUSE)
