"""Batch jobs of Spark stages, Python stages and DataStream programs.

Stages read each other's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flinkray.client.spark_jobs import check_spark_stage, slot_profile, spark_properties
from flinkray.client.stream_job import stream_vertices
from flinkray.core.arguments import whole_number
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID
from flinkray.core.key_group_ranges import default_max_parallelism
from flinkray.core.resources import ResourceProfile
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.stream import DataStream
from flinkray.datastream.stream_execution_environment import StreamExecutionEnvironment
from flinkray.scheduler.graph.job_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    SPARK,
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
from flinkray.spark.session_requests import GUEST_PROFILE, guest_configuration
from flinkray.streaming.functions.signatures import refuse_coroutines, refuse_signatures
from flinkray.streaming.operators.python_stage import BatchFunction, BatchFunctionOperator
from flinkray.streaming.program.graph import StreamGraph, StreamNode
from flinkray.streaming.sources.result_files import ResultFilesSource
from flinkray.user_code import dump_function

SparkStageFunction = Callable[..., Any]
"""Function of a SparkSession and a DataFrame for each input. It returns a DataFrame or None."""

StreamStageProgram = Callable[..., DataStream | None]
"""Function that takes a StreamExecutionEnvironment and a DataStream for each input.
The function returns a DataStream, or None if the program ends in sinks."""


@dataclass(frozen=True)
class Stage:
    """Handle of a stage in a :class:`BatchJob`, for the argument *inputs* of later stages."""

    name: str
    vertex_id: JobVertexID


@dataclass
class _Part:
    """The vertices of a stage in the job graph, and the result of the stage that other stages may
    read."""

    vertices: tuple[JobVertex, ...]
    result: IntermediateDataSetID | None
    """Data set that readers of the stage read.
    None: the stage is a program that has ended in sinks."""
    is_program: bool = False
    """Whether the stage is a DataStream program."""
    is_read: bool = False

    def built(self) -> tuple[JobVertex, ...]:
        """Return the stage's vertices for the job graph.
        Results that no other stage reads are left out, so they are not written."""
        if self.is_program or self.is_read:
            return self.vertices
        return tuple(replace(vertex, results=()) for vertex in self.vertices)


@dataclass
class BatchJob:
    """Builder of a batch job; each stage reads results of stages that were added before.

    A stage begins when all stages whose results it reads have finished.  Results are Parquet files
    in the cluster's storage until the job ends.  A result that is lost is produced again.  The
    result of the job is the DataFrame that the last Spark stage returns; no stage reads it.

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
    _parts: dict[Stage, _Part] = field(default_factory=dict, init=False, repr=False)
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

        ``function(spark, *frames)`` gets a DataFrame for each input. It returns the DataFrame that
        is the stage's result, or None if there is no result.

        Stages of equal parallelism, *cpu* and *memory* run in the same slots, one after the other.

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
        stage_name = _name_of(function, name)
        parallelism = _checked_parallelism(parallelism, stage_name)
        profile = slot_profile(cpu, memory)
        code = dump_function(function)
        properties = spark_properties(spark_conf)
        check_spark_stage(profile, properties)
        if session is not None:
            properties = guest_configuration(session, parallelism, profile, properties)
            parallelism, profile = 1, GUEST_PROFILE
        groups = self._spark_groups
        group = groups.setdefault((parallelism, profile), f"spark-{len(groups)}")
        result = IntermediateDataSetID.generate()
        pattern = DistributionPattern.ALL_TO_ALL
        vertex = JobVertex(
            JobVertexID.generate(),
            stage_name,
            parallelism,
            profile,
            Invokable(SPARK, code, properties),
            slot_sharing_group=group,
            inputs=tuple(JobEdge(read, pattern) for read in self._read(inputs, stage_name)),
            results=(
                IntermediateDataSet(result, ResultPartitionType.BLOCKING, ResultMedium.FILES),
            ),
        )
        return self._add(Stage(stage_name, vertex.vertex_id), _Part((vertex,), result))

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

        *batches* has an iterator of ``pyarrow.RecordBatch`` for each input. The tasks divide the
        rows of each input: each row is read by exactly one task, which may be any. The function is
        a generator function, or returns an iterable of record batches and tables. If it returns
        None, the result has no rows.

        Args:
            parallelism: number of tasks. Each task calls the function once.
            cpu: cores of a task's slot. If *cpu* and *memory* are 0, tasks run in any slots.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
        """
        if not callable(function):
            raise ConfigurationError(f"a stage takes a function of record batches: {function!r}")
        stage_name = _name_of(function, name)
        parallelism = _checked_parallelism(parallelism, stage_name)
        data_sets, result = self._read(inputs, stage_name), IntermediateDataSetID.generate()
        try:
            refuse_coroutines(function)
            refuse_signatures(function, values=len(data_sets))
        except TypeError as error:
            raise ConfigurationError(
                f"the function of {stage_name!r} takes an iterator of record batches for each "
                f"input, of which there are {len(data_sets)}: {error}"
            ) from None
        profile = slot_profile(cpu, memory)
        # slots of one group have one profile
        group = DEFAULT_SLOT_SHARING_GROUP if profile.is_zero() else f"python-{profile}"
        node = StreamNode(
            0,
            stage_name,
            BatchFunctionOperator(function, data_sets, result),
            parallelism,
            default_max_parallelism(parallelism),
            kind="Data Source",
            slot_sharing_group=group,
        )
        dump_function(function)  # its error says what a function without open() can do
        vertices = stream_vertices(
            StreamGraph(stage_name, [node], batch=True), self._next_owner(), {group: profile}
        )
        return self._add(Stage(stage_name, vertices[0].vertex_id), _Part(vertices, result))

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
        parallelism = _checked_parallelism(parallelism, stage_name)
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
        vertices, files = env.as_stage(stage_name, self._next_owner(), returned, result)
        self._take_along(files, stage_name)
        part = _Part(vertices, result, is_program=True)
        return self._add(Stage(stage_name, vertices[-1].vertex_id), part)

    def build(self) -> JobGraph:
        """Build the job graph, ready to be submitted.

        Raises:
            ConfigurationError: a program's result has no reader.
            JobSubmissionError: the job could not run.
        """
        for stage, part in self._parts.items():
            if part.is_program and part.result is not None and not part.is_read:
                raise ConfigurationError(
                    f"nobody reads the result of {stage.name!r}: let the program end in a "
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

    def _next_owner(self) -> str:
        """Return the hex id from which the ids of the next stage's vertices are derived."""
        return f"{self.job_id}{len(self._parts):08x}"

    def _add(self, stage: Stage, part: _Part) -> Stage:
        self._parts[stage] = part
        return stage

    def _read(self, stages: Sequence[Stage], reader: str) -> list[IntermediateDataSetID]:
        """Note that *reader* reads the results of *stages*, and return the ids of these results."""
        if not isinstance(stages, Sequence) or not all(isinstance(it, Stage) for it in stages):
            raise ConfigurationError(
                f"the inputs of {reader!r} are a list of stages, as spark(), python() and stream() "
                f"return them, not {stages!r}"
            )
        results = []
        for stage in stages:
            part = self._parts.get(stage)
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


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    return name or getattr(function, "__name__", None) or type(function).__name__


def _checked_parallelism(parallelism: int, stage_name: str) -> int:
    what = f"the parallelism of {stage_name!r}"
    try:
        number = whole_number(parallelism, what)
    except TypeError as error:
        raise ConfigurationError(str(error)) from None
    if number < 1:
        raise ConfigurationError(f"{what} must be at least 1, got {number}")
    return number
