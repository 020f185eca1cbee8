"""Batch jobs of Spark stages, Python stages and DataStream programs.

Stages read each other's results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from flinkray.client.spark_jobs import check_spark_stage, slot_profile, spark_properties
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.resources import ResourceProfile
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.stream import DataStream
from flinkray.datastream.stream_execution_environment import StreamExecutionEnvironment
from flinkray.scheduler.graph.job_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    PYTHON,
    SPARK,
    STREAM,
    DistributionPattern,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobFile,
    JobGraph,
    JobType,
    JobVertex,
    RestartStrategy,
    ResultMedium,
    ResultPartitionType,
)
from flinkray.scheduler.graph.validation import validate
from flinkray.spark.shared_session import GUEST_PROFILE, guest_configuration
from flinkray.streaming.sources.result_files import ResultFilesSource
from flinkray.user_code import dump_function

SparkStageFunction = Callable[..., Any]
"""Function of a SparkSession and a DataFrame for each input. It returns a DataFrame or None."""

BatchFunction = Callable[..., Iterable[pa.RecordBatch] | None]
"""Function that takes an iterator of record batches for each input, and yields record batches.
If the function returns None, the stage has no result."""

StreamStageProgram = Callable[..., DataStream | None]
"""Function that takes a StreamExecutionEnvironment and a DataStream for each input.
The function returns a DataStream, or None if the program ends in sinks."""


@dataclass(frozen=True)
class Stage:
    """Handle of a stage that was added to a :class:`BatchJob`; later stages may read its result."""

    name: str
    vertex_id: JobVertexID


@dataclass
class _Part:
    """A stage with its vertices in the job, and its result."""

    stage: Stage
    vertices: tuple[JobVertex, ...]
    result: IntermediateDataSetID | None
    """Data set that readers of the stage read.
    None: the stage is a program that has ended in sinks."""
    is_read: bool = False

    @property
    def is_program(self) -> bool:
        """Whether the stage is a DataStream program, whose vertices are complete."""
        return self.vertices[0].invokable.kind == STREAM

    def built(self) -> tuple[JobVertex, ...]:
        """Return the stage's vertices for the job graph.
        A result without a reader is not written."""
        if self.is_program or not self.is_read or self.result is None:
            return self.vertices
        return tuple(replace(vertex, results=(_result(self.result),)) for vertex in self.vertices)


@dataclass
class BatchJob:
    """Builder of a batch job; each stage reads results of stages that were added before.

    A stage begins when all that it reads is finished.  Results lie as Parquet files in the
    cluster's storage until the job ends; one that is lost is produced again.  The DataFrame that
    the last Spark stage returns, which nobody reads, is the job's result.

    Example::

        job = BatchJob("flights")
        flights = job.spark(clean, parallelism=2, memory="1g")
        delays = job.python(predict, inputs=[flights], parallelism=4)
        trips = job.stream(rotations, inputs=[delays], parallelism=2)
        job.spark(summarise, inputs=[trips], parallelism=2, memory="1g")
        client.submit(job.build()).result().to_pandas()
    """

    name: str
    restart_strategy: RestartStrategy | None = None
    """Restart strategy of the job. None: the cluster's."""
    job_id: JobID = field(default_factory=JobID.generate)
    _parts: dict[JobVertexID, _Part] = field(default_factory=dict, init=False, repr=False)
    _files: dict[str, JobFile] = field(default_factory=dict, init=False, repr=False)
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
        session: str | None = None,
    ) -> Stage:
        """Add a stage that runs PySpark.

        ``function(spark, *frames)`` is given a DataFrame for each input.

        Stages of equal parallelism and profile run in the same slots, one after the other.

        Args:
            parallelism: number of slots = number of Spark executors.
            cpu: cores of each slot.
            memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
            session: name of a Spark session that stages and jobs share
                (:func:`flinkray.spark_job`).

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
        """
        profile = slot_profile(cpu, memory)
        code = dump_function(function)
        properties = spark_properties(spark_conf)
        check_spark_stage(profile, properties)
        if session is not None:
            properties = guest_configuration(session, parallelism, profile, properties)
            parallelism, profile = 1, GUEST_PROFILE
        invokable = Invokable(SPARK, code, properties)
        groups = self._spark_groups
        group = groups.setdefault((parallelism, profile), f"spark-{len(groups)}")
        return self._add_vertex(
            _name_of(function, name), parallelism, profile, invokable, group, inputs
        )

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
        """Add a stage of Python tasks.

        ``function(*batches)`` yields the record batches of the stage's result.

        *batches* has an iterator of ``pyarrow.RecordBatch`` for each input. The tasks share the
        rows of each input: exactly one of them reads a row, and which one has no meaning.

        Args:
            cpu: cores of a task's slot; 0 and no memory: any slot.

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
        return self._add_vertex(
            _name_of(function, name), parallelism, profile, invokable, group, inputs
        )

    def stream(
        self,
        program: StreamStageProgram,
        *,
        inputs: Sequence[Stage] = (),
        name: str | None = None,
        parallelism: int = 1,
    ) -> Stage:
        """Add a stage that is a DataStream program in batch mode: ``program(env, *streams)``.

        The program is given an environment of its own and a DataStream of rows for each input. It
        returns the stream that is the stage's result, or None if it ends in sinks. Values become
        columns: rows, dictionaries and named tuples by their field names, others as ``value``. The
        program is not executed here, and sees no cluster.

        Args:
            parallelism: parallelism of operators that have none of their own.

        Raises:
            ConfigurationError: an argument is not acceptable, or the program sets something that
                belongs to the whole job; the text names it.
            StreamError: the program cannot run on a cluster.
        """
        stage_name = _name_of(program, name)
        env = StreamExecutionEnvironment()
        env.set_runtime_mode(RuntimeExecutionMode.BATCH).set_parallelism(parallelism)
        streams = [
            env.from_source(ResultFilesSource(data_set_id, stage.name), None, stage.name)
            for stage, data_set_id in zip(inputs, self._read(inputs, stage_name), strict=True)
        ]
        returned = program(env, *streams)
        if returned is not None and not isinstance(returned, DataStream):
            raise ConfigurationError(
                f"{stage_name!r} returned {returned!r}: a program returns the DataStream that is "
                "its result, or None if it ends in sinks"
            )
        result = None if returned is None else IntermediateDataSetID.generate()
        vertices, files = env.as_stage(
            stage_name, f"{self.job_id}{len(self._parts):08x}", returned, result
        )
        self._take_along(files, stage_name)
        return self._add(Stage(stage_name, vertices[-1].vertex_id), vertices, result)

    def build(self) -> JobGraph:
        """Build the job graph, ready to be submitted.

        Raises:
            ConfigurationError: a program's result has no reader.
            JobSubmissionError: the job could not run.
        """
        for part in self._parts.values():
            if part.is_program and part.result is not None and not part.is_read:
                raise ConfigurationError(
                    f"nobody reads the result of {part.stage.name!r}: let the program end in a "
                    "sink and return None, or let another stage read it"
                )
        graph = JobGraph(
            self.job_id,
            self.name,
            tuple(vertex for part in self._parts.values() for vertex in part.built()),
            self.restart_strategy,
            JobType.BATCH,
            files=tuple(self._files.values()),
        )
        validate(graph)
        return graph

    def _add_vertex(
        self,
        name: str,
        parallelism: int,
        profile: ResourceProfile,
        invokable: Invokable,
        group: str,
        inputs: Sequence[Stage],
    ) -> Stage:
        pattern = DistributionPattern.ALL_TO_ALL
        vertex = JobVertex(
            JobVertexID.generate(),
            name,
            parallelism,
            profile,
            invokable,
            slot_sharing_group=group,
            inputs=tuple(JobEdge(data_set_id, pattern) for data_set_id in self._read(inputs, name)),
        )
        result = IntermediateDataSetID.generate()
        return self._add(Stage(name, vertex.vertex_id), (vertex,), result)

    def _add(
        self, stage: Stage, vertices: tuple[JobVertex, ...], result: IntermediateDataSetID | None
    ) -> Stage:
        self._parts[stage.vertex_id] = _Part(stage, vertices, result)
        return stage

    def _read(self, stages: Sequence[Stage], reader: str) -> list[IntermediateDataSetID]:
        """Mark the results of stages as read, and return their ids."""
        results = []
        for stage in stages:
            part = self._parts.get(stage.vertex_id)
            if part is None:
                raise ConfigurationError(f"{reader!r} reads {stage.name!r}, a stage of another job")
            if part.result is None:
                raise ConfigurationError(
                    f"{reader!r} reads {stage.name!r}, whose program returned None: let it return "
                    "the stream that is its result"
                )
            part.is_read = True
            results.append(part.result)
        return results

    def _take_along(self, files: tuple[JobFile, ...], name: str) -> None:
        for file in files:
            if self._files.setdefault(file.name, file) != file:
                raise ConfigurationError(
                    f"{name!r} brings along {file.name!r}, and so does another stage, with other "
                    "content: give one of them another name"
                )


def _result(data_set_id: IntermediateDataSetID) -> IntermediateDataSet:
    return IntermediateDataSet(data_set_id, ResultPartitionType.BLOCKING, ResultMedium.FILES)


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    return name or getattr(function, "__name__", None) or type(function).__name__


def _task_of(function: BatchFunction) -> Callable[[Any], None]:
    """Make a function of a TaskContext that runs a stage's function."""

    def run(context: Any) -> None:
        inputs: list[Iterator[pa.RecordBatch]] = [one.batches() for one in context.file_inputs]
        produced = function(*inputs)
        if produced is None:
            return
        for batch in produced:
            for output in context.file_outputs:
                context.wait_for(output.write(batch))

    return run
