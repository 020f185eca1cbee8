"""Collects deployments, cancellations and releases, to send one message per TaskExecutor."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

from flinkray.core.config import ReadableConfig
from flinkray.core.config_option import ConfigOption
from flinkray.core.ids import ExecutionAttemptID, ResourceID, ResultPartitionID
from flinkray.core.job_options import (
    CHECKPOINTING_INLINE_THRESHOLD,
    MAX_WAITING_RECORDS,
    TASK_CANCELLATION_INTERVAL,
    TASK_CANCELLATION_TIMEOUT,
)
from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionGraph,
    ExecutionJobVertex,
    PartitionGroup,
)
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    ReleasePartitions,
)
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    ConsumerInformation,
    InputInformation,
    JobInformation,
    PartitionLocations,
    ResultInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    VertexInformation,
    pack_numbers,
)

_JOB_KEY = 0

T = TypeVar("T")

BulkAction = CancelTasks | ReleasePartitions | DeployTasks


class Deployments:
    """Collects the messages to TaskExecutors that an event leads to. Information that many
    deployments need (a shared part) is sent to each TaskExecutor once, so this object remembers
    what was sent. Keys of shared parts: 0 is the job's, then one per vertex, then one per group of
    partitions."""

    def __init__(
        self, graph: ExecutionGraph, *, epoch_offset: float, first_version: int = 0
    ) -> None:
        """Make an empty collection for *graph*. *epoch_offset*: wall clock minus monotonic clock,
        in seconds. *first_version*: first version of all shared parts; it must be above all
        versions that earlier JobMasters have sent."""
        self._graph = graph
        self._epoch_offset = epoch_offset
        self._first_version = first_version
        job = graph.job_graph
        self._job = SharedPart(_JOB_KEY, first_version, _job_information(job))
        self._vertices = [self._vertex_part(vertex, first_version) for vertex in graph.vertices]
        key = 1 + len(graph.vertices)
        self._first_key: list[int] = []
        """Edge -> key of the edge's first group."""
        for edge in graph.edges:
            self._first_key.append(key)
            key += len(edge.groups)
        self._groups: dict[int, SharedPart] = {}
        self._known: dict[ResourceID, tuple[WorkerLocation, dict[int, int]]] = {}
        """TaskExecutor -> (its location, key -> version of the parts that it was sent)."""
        self._deploy: dict[ResourceID, list[Execution]] = {}
        self._cancel: dict[ResourceID, tuple[WorkerLocation, list[ExecutionAttemptID]]] = {}
        self._cancel_again: dict[ResourceID, tuple[WorkerLocation, list[ExecutionAttemptID]]] = {}
        """Cancellations of attempts that the same event deploys."""
        self._release: dict[ResourceID, tuple[WorkerLocation, list[ResultPartitionID]]] = {}

    @staticmethod
    def _vertex_part(vertex: ExecutionJobVertex, version: int) -> SharedPart:
        return SharedPart(1 + vertex.index, version, _vertex_information(vertex))

    def max_parallelism_changed(self, vertices: Collection[ExecutionJobVertex]) -> None:
        """Make new versions of the shared parts that contain the max parallelism of these vertices:
        their own, and those of the vertices whose results they read."""
        changed = {vertex.index: vertex for vertex in vertices}
        for vertex in vertices:
            changed.update((e.result.producer.index, e.result.producer) for e in vertex.inputs)
        for index, vertex in changed.items():
            version = self._vertices[index].version + 1
            self._vertices[index] = self._vertex_part(vertex, version)

    def deploy(self, executions: Iterable[Execution]) -> None:
        """Collect deployments of attempts, each in the slot that it has."""
        for execution in executions:
            resource_id = _slot_of(execution).location.resource_id
            self._deploy.setdefault(resource_id, []).append(execution)

    def cancel(self, executions: Iterable[Execution]) -> None:
        """Collect cancellations. If the same event has deployed an attempt, the TaskExecutor gets
        the deployment first, then the cancellation."""
        for execution in executions:
            location = _slot_of(execution).location
            is_just_deployed = execution in self._deploy.get(location.resource_id, ())
            cancel = self._cancel_again if is_just_deployed else self._cancel
            entry = cancel.setdefault(location.resource_id, (location, []))
            entry[1].append(execution.attempt_id)

    def release(self, partitions: Iterable[tuple[WorkerLocation, ResultPartitionID]]) -> None:
        """Collect releases of partitions that are no longer needed."""
        for location, partition in partitions:
            self._release.setdefault(location.resource_id, (location, []))[1].append(partition)

    def task_executor_lost(self, transition: t.TaskExecutorLost, now: float) -> Steps:
        self.forget(transition.resource_id)
        return ()

    def deployments_failed(self, transition: t.DeploymentsFailed, now: float) -> Steps:
        """Forget which shared parts the TaskExecutor has, because the message that could not be
        sent may have contained some."""
        self.forget(transition.resource_id)
        return ()

    def forget(self, resource_id: ResourceID) -> None:
        """Forget which shared parts a TaskExecutor has: it is gone, or may not have received them.
        They are sent again with the next deployment."""
        self._known.pop(resource_id, None)

    @property
    def task_executors(self) -> tuple[ResourceID, ...]:
        """The TaskExecutors that have received shared parts."""
        return tuple(self._known)

    def take(self) -> list[BulkAction]:
        """Return and remove all collected actions, in the order in which they must be carried
        out."""
        actions: list[BulkAction] = []
        for location, attempts in self._cancel.values():
            actions.append(CancelTasks(location, tuple(attempts)))
        for location, partitions in self._release.values():
            actions.append(ReleasePartitions(location, tuple(partitions)))
        for executions in self._deploy.values():
            actions.append(self._deployments(executions))
        for location, attempts in self._cancel_again.values():
            actions.append(CancelTasks(location, tuple(attempts)))
        self._cancel, self._release, self._deploy = {}, {}, {}
        self._cancel_again = {}
        return actions

    def _deployments(self, executions: list[Execution]) -> DeployTasks:
        location = _slot_of(executions[0]).location
        known = self._known.get(location.resource_id)
        if known is None or known[0] != location:
            known = self._known[location.resource_id] = (location, {})
        parts: list[SharedPart] = []
        self._send((self._job,), known[1], parts)
        tasks = []
        for execution in executions:
            vertex = execution.vertex.job_vertex
            subtask = execution.vertex.subtask_index
            inputs = tuple(
                self._group(edge.group_of_consumer(subtask), known[1], parts)
                for edge in vertex.inputs
                if edge.result.data_set_id is not None
            )
            self._send((self._vertices[vertex.index],), known[1], parts)
            tasks.append(
                TaskDeployment(
                    1 + vertex.index,
                    subtask,
                    execution.attempt_number,
                    _slot_of(execution).allocation_id,
                    inputs,
                    execution.restored,
                    vertex.coordinator_attempt,
                    self._graph.restores,
                    execution.entered[ExecutionState.DEPLOYING] + self._epoch_offset,
                )
            )
            execution.restored = None
        job_id, graph_id = self._graph.job_graph.job_id, self._graph.graph_id
        return DeployTasks(
            location, TaskDeployments(job_id, graph_id, _JOB_KEY, tuple(parts), tuple(tasks))
        )

    def _send(
        self, wanted: Iterable[SharedPart], known: dict[int, int], parts: list[SharedPart]
    ) -> None:
        for part in wanted:
            if known.get(part.key) != part.version:
                known[part.key] = part.version
                parts.append(part)

    def _group(self, group: PartitionGroup, known: dict[int, int], parts: list[SharedPart]) -> int:
        key = self._first_key[group.edge.index] + group.index
        version = self._first_version + group.version
        if known.get(key) != version:
            part = self._groups.get(key)
            if part is None or part.version != version:
                locations = partition_locations(self._graph, group)
                part = SharedPart(key, version, locations)
                self._groups[key] = part
            self._send((part,), known, parts)
        return key


def partition_locations(graph: ExecutionGraph, group: PartitionGroup) -> PartitionLocations:
    """Return the locations of a group's partitions, with the attempts that produce them."""
    ordinals = group.producer_ordinals
    places: dict[ResourceID, int] = {}
    locations: list[WorkerLocation] = []
    place_of, attempts = [], []
    for subtask in graph.subtasks[ordinals.start : ordinals.stop]:
        location = _slot_of(subtask.current).location
        place = places.setdefault(location.resource_id, len(locations))
        if place == len(locations):
            locations.append(location)
        place_of.append(place)
        attempts.append(subtask.current.attempt_number)
    result = group.edge.result
    assert result.data_set_id is not None
    return PartitionLocations(
        graph.graph_id,
        result.data_set_id,
        group.partitions.start,
        tuple(locations),
        pack_numbers(place_of),
        pack_numbers(attempts),
        result.producer.coordinator_attempt,
    )


def _slot_of(execution: Execution) -> AllocatedSlot:
    if execution.slot is None:
        raise execution.illegal("be named in a deployment: it has no slot")
    return execution.slot


def _job_information(job: JobGraph) -> JobInformation:
    configuration = ReadableConfig(job.configuration)
    is_exactly_once = job.checkpoints is None or job.checkpoints.is_exactly_once

    def own(option: ConfigOption[T]) -> T | None:
        return configuration.get(option) if configuration.is_set(option) else None

    return JobInformation(
        job.job_id,
        job.name,
        job.files,
        own(TASK_CANCELLATION_INTERVAL),
        own(TASK_CANCELLATION_TIMEOUT),
        job.checkpoints is not None and job.checkpoints.interval is not None,
        is_exactly_once,
        own(CHECKPOINTING_INLINE_THRESHOLD),
        own(MAX_WAITING_RECORDS),
        job.has_stream_sources,
    )


def _vertex_information(vertex: ExecutionJobVertex) -> VertexInformation:
    inputs = tuple(
        InputInformation(
            edge.result.data_set_id,
            edge.result.result_type,
            edge.pattern,
            edge.result.producer.vertex.vertex_id,
            edge.result.producer.parallelism,
            edge.result.medium,
            edge.result.producer.is_coordinated,
        )
        for edge in vertex.inputs
        if edge.result.data_set_id is not None
    )
    results = tuple(
        ResultInformation(
            result.data_set_id,
            result.result_type,
            tuple(
                ConsumerInformation(e.pattern, e.consumer.parallelism, e.consumer.max_parallelism)
                for e in result.edges
            ),
            result.medium,
        )
        for result in vertex.results
        if result.data_set_id is not None
    )
    return VertexInformation(
        vertex.vertex.vertex_id,
        vertex.vertex.name,
        vertex.parallelism,
        vertex.max_parallelism,
        vertex.vertex.invokable,
        inputs,
        results,
    )
