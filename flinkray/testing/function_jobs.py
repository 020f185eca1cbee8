"""Builder of job graphs of Python functions that run in slots and read each other's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flinkray.core.config import WrittenConfiguration, values_of
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.resources import parse_memory_size, slot_resources
from flinkray.scheduler.graph.job_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    PYTHON,
    DistributionPattern,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobGraph,
    JobType,
    JobVertex,
    RestartStrategy,
    ResultPartitionType,
    SchedulerMode,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.user_code import dump_function

PythonFunction = Callable[[Any], Any]
"""Function that takes a :class:`flinkray.testing.function_tasks.TaskContext`; plain or async.

A coroutine function runs on its process's event loop. A plain function has a thread.
"""


@dataclass
class _Vertex:
    vertex: JobVertex
    results: list[IntermediateDataSet] = field(default_factory=list)
    inputs: list[JobEdge] = field(default_factory=list)


@dataclass(frozen=True)
class PythonVertex:
    """Handle of a vertex that was added to a :class:`PythonJobBuilder`."""

    vertex_id: JobVertexID
    name: str


class PythonJobBuilder:
    """Builder of a job: vertices are added first, then connected.

    A vertex's inputs and results have the order in which they were connected.
    """

    def __init__(
        self,
        name: str,
        *,
        job_type: JobType = JobType.STREAMING,
        scheduler_mode: SchedulerMode = SchedulerMode.DEFAULT,
        restart_strategy: RestartStrategy | None = None,
        restart_all: bool = False,
        configuration: WrittenConfiguration | Mapping[str, str] | None = None,
        job_id: JobID | None = None,
    ) -> None:
        """Create a builder without vertices.

        Args:
            restart_strategy: None: the configuration's.
            configuration: options of the job, over those of the cluster.
            job_id: None: a new one.
        """
        self._graph = JobGraph(
            job_id or JobID.generate(),
            name,
            (),
            restart_strategy,
            job_type,
            scheduler_mode,
            restart_all,
            configuration=values_of(configuration),
        )
        self._vertices: dict[JobVertexID, _Vertex] = {}

    def add(
        self,
        function: PythonFunction,
        *,
        name: str | None = None,
        parallelism: int = 1,
        min_parallelism: int = 1,
        max_parallelism: int | None = None,
        cpu: float = 0,
        memory: int | str = 0,
        slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP,
        co_location_group: str | None = None,
    ) -> PythonVertex:
        """Add a vertex whose subtasks call *function*, which is pickled here.

        Args:
            name: None: the function's own.
            cpu: cores of the vertex's slot; 0 and no memory: any slot.
            memory: memory of the slot, as ``"1500m"``, ``"2g"`` or bytes.

        Raises:
            ConfigurationError: an argument is not acceptable.
            UserCodeError: the function cannot be sent to the cluster.
        """
        if not callable(function):
            raise ConfigurationError(f"a vertex takes a function of a TaskContext: {function!r}")
        label = name or getattr(function, "__name__", None) or type(function).__name__
        try:
            profile = slot_resources(cpu, parse_memory_size(memory))
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"a slot of {cpu=!r}, {memory=!r}: {error}") from error
        vertex = JobVertex(
            JobVertexID.generate(),
            label,
            parallelism,
            profile,
            Invokable(PYTHON, dump_function(function)),
            max_parallelism,
            min_parallelism,
            slot_sharing_group,
            co_location_group,
        )
        self._vertices[vertex.vertex_id] = _Vertex(vertex)
        return PythonVertex(vertex.vertex_id, label)

    def connect(
        self,
        producer: PythonVertex,
        consumer: PythonVertex,
        *,
        pattern: DistributionPattern = DistributionPattern.ALL_TO_ALL,
        result_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
    ) -> None:
        """Add a result to *producer* that *consumer* reads."""
        result = IntermediateDataSet(IntermediateDataSetID.generate(), result_type)
        self._vertices[producer.vertex_id].results.append(result)
        self._vertices[consumer.vertex_id].inputs.append(JobEdge(result.data_set_id, pattern))

    def build(self) -> JobGraph:
        """Build the job graph. Raises JobSubmissionError if the job could never run."""
        vertices = tuple(
            replace(one.vertex, results=tuple(one.results), inputs=tuple(one.inputs))
            for one in self._vertices.values()
        )
        graph = replace(self._graph, vertices=vertices)
        validate(graph)
        return graph


def python_job(
    function: PythonFunction,
    *,
    name: str | None = None,
    parallelism: int = 1,
    cpu: float = 0,
    memory: int | str = 0,
    restart_strategy: RestartStrategy | None = None,
    configuration: WrittenConfiguration | Mapping[str, str] | None = None,
    job_id: JobID | None = None,
) -> JobGraph:
    """Make a job of one vertex; :class:`PythonJobBuilder` makes larger ones.

    Raises:
        ConfigurationError, JobSubmissionError: an argument is not acceptable; the text names it.
        UserCodeError: the function cannot be sent to the cluster.
    """
    label = name or getattr(function, "__name__", None) or type(function).__name__
    builder = PythonJobBuilder(
        label, restart_strategy=restart_strategy, configuration=configuration, job_id=job_id
    )
    builder.add(function, name=label, parallelism=parallelism, cpu=cpu, memory=memory)
    return builder.build()
