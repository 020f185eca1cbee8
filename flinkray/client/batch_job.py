"""Batch jobs of Spark stages and Python stages, which read each other's results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from flinkray.client.job_builder import slot_profile, spark_properties
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    PYTHON,
    SPARK,
    DistributionPattern,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobGraph,
    JobType,
    JobVertex,
    RestartStrategy,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.user_code import dump_function

SparkStageFunction = Callable[..., Any]
"""Takes the SparkSession and a DataFrame for each input; returns a DataFrame, or None."""

BatchFunction = Callable[..., Iterable[pa.RecordBatch]]
"""Takes an iterator of record batches for each input, and yields record batches."""


@dataclass(frozen=True)
class Stage:
    """A stage of the job that is being built: what later ones read."""

    name: str
    vertex_id: JobVertexID


@dataclass
class _Vertex:
    vertex: JobVertex
    inputs: tuple[Stage, ...]
    result: IntermediateDataSetID | None = None


@dataclass
class BatchJob:
    """Stages are added in their order; each reads results of earlier ones.

    A stage begins when all that it reads is finished.  Results lie as Parquet files in the
    cluster's storage until the job ends; one that is lost is produced again.  The DataFrame that
    the last Spark stage returns, which nobody reads, is the job's result.

    Example::

        job = BatchJob("flights")
        flights = job.spark(clean, parallelism=2, memory="1g")
        delays = job.python(predict, inputs=[flights], parallelism=4)
        job.spark(summarise, inputs=[delays], parallelism=2, memory="1g")
        client.submit(job.build()).result().to_pandas()
    """

    name: str
    restart_strategy: RestartStrategy | None = None
    """None: the cluster's."""
    job_id: JobID = field(default_factory=JobID.generate)
    _vertices: dict[JobVertexID, _Vertex] = field(default_factory=dict, init=False, repr=False)
    _spark_groups: dict[tuple[int, ResourceProfile], str] = field(
        default_factory=dict, init=False, repr=False
    )

    def spark(
        self,
        function: SparkStageFunction,
        *,
        inputs: Sequence[Stage] = (),
        name: str | None = None,
        parallelism: int = 1,
        cpu: float = 1,
        memory: int | str = "1g",
        spark_conf: Mapping[str, object] | None = None,
    ) -> Stage:
        """Add a stage that runs PySpark: ``function(spark, *frames)``, a DataFrame for each input.

        Stages of the same parallelism and profile run in the same slots, one after the other.

        Args:
            parallelism: number of slots = number of Spark executors.
            cpu: cores of each slot.
            memory: of each slot, as ``"1500m"``, ``"2g"`` or bytes.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
        """
        profile = slot_profile(cpu, memory)
        code = dump_function(function)
        invokable = Invokable(SPARK, code, spark_properties(spark_conf))
        groups = self._spark_groups
        group = groups.setdefault((parallelism, profile), f"spark-{len(groups)}")
        return self._add(_name_of(function, name), parallelism, profile, invokable, group, inputs)

    def python(
        self,
        function: BatchFunction,
        *,
        inputs: Sequence[Stage] = (),
        name: str | None = None,
        parallelism: int = 1,
        cpu: float = 0,
        memory: int | str = 0,
    ) -> Stage:
        """Add a stage of Python tasks: ``function(*batches)``, an iterator of
        ``pyarrow.RecordBatch`` for each input.  It yields the record batches of its result.

        The tasks share the rows of each input: every row is read by one of them, and which one has
        no meaning.

        Args:
            cpu: cores of a task's slot; 0 with no memory: whatever a slot has.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
        """
        if not callable(function):
            raise ConfigurationError(f"a stage takes a function of record batches: {function!r}")
        code = dump_function(_task_of(function))
        invokable, profile = Invokable(PYTHON, code), slot_profile(cpu, memory)
        # slots of one group have one profile
        group = DEFAULT_SLOT_SHARING_GROUP if profile.is_zero() else f"python-{profile}"
        return self._add(_name_of(function, name), parallelism, profile, invokable, group, inputs)

    def build(self) -> JobGraph:
        """The job, to be submitted.

        Raises:
            JobSubmissionError: it could not run.
        """
        graph = JobGraph(
            self.job_id,
            self.name,
            tuple(map(self._with_edges, self._vertices.values())),
            self.restart_strategy,
            JobType.BATCH,
        )
        validate(graph)
        return graph

    def _add(
        self,
        name: str,
        parallelism: int,
        profile: ResourceProfile,
        invokable: Invokable,
        group: str,
        inputs: Sequence[Stage],
    ) -> Stage:
        for stage in inputs:
            producer = self._vertices.get(stage.vertex_id)
            if producer is None:
                raise ConfigurationError(f"{name!r} reads {stage.name!r}, a stage of another job")
            if producer.result is None:
                producer.result = IntermediateDataSetID.generate()
        vertex_id = JobVertexID.generate()
        vertex = JobVertex(
            vertex_id, name, parallelism, profile, invokable, slot_sharing_group=group
        )
        self._vertices[vertex_id] = _Vertex(vertex, tuple(inputs))
        return Stage(name, vertex_id)

    def _with_edges(self, built: _Vertex) -> JobVertex:
        read = (self._vertices[stage.vertex_id].result for stage in built.inputs)
        results = () if built.result is None else (_result(built.result),)
        pattern = DistributionPattern.ALL_TO_ALL
        inputs = tuple(JobEdge(result, pattern) for result in read if result is not None)
        return replace(built.vertex, inputs=inputs, results=results)


def _result(data_set_id: IntermediateDataSetID) -> IntermediateDataSet:
    return IntermediateDataSet(data_set_id, ResultPartitionType.BLOCKING, ResultMedium.FILES)


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    return name or getattr(function, "__name__", None) or type(function).__name__


def _task_of(function: BatchFunction) -> Callable[[Any], None]:
    """The function of a TaskContext that does it."""

    def run(context: Any) -> None:
        inputs: list[Iterator[pa.RecordBatch]] = [one.batches() for one in context.file_inputs]
        produced = function(*inputs)
        if produced is None:
            return
        for batch in produced:
            for output in context.file_outputs:
                context.wait_for(output.write(batch))

    return run
