"""StreamExecutionEnvironment: the beginning of every program."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

import flinkray.client.process_end  # noqa: F401 - before the main thread can have ended
from flinkray.client.job_result import JobExecutionResult
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import IntermediateDataSetID, JobID
from flinkray.core.job_options import (
    CHECKPOINTING_DIR,
    CHECKPOINTING_RETENTION,
    RESTART_STRATEGY,
    SAVEPOINT_DIR,
    STATE_RECOVERY_PATH,
)
from flinkray.core.resources import parse_memory_size
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.common.configuration import Configuration
from flinkray.datastream.common.job_client import JobClient
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.keyed_stream import KeyedStream
from flinkray.datastream.local_execution import (
    LocalJobClient,
    LocalResults,
    unpacked_archives,
    warn_of_archive,
)
from flinkray.datastream.stream import DataStream, StreamProgram
from flinkray.datastream.type_variables import U
from flinkray.streaming.columnar.conversion import batch_of_type
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.signatures import refuse_coroutines, refuse_signatures
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.execution_target import execution_target
from flinkray.streaming.program.graph import StreamGraph
from flinkray.streaming.program.transformations import (
    GraphSettings,
    OperatorTransformation,
    build_graph,
)
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.type_inference import type_of_schema
from flinkray.streaming.records.typeinfo import TypeInformation, expect_type
from flinkray.streaming.records.widening import as_one_table, without_views
from flinkray.streaming.sinks.result_files import ResultFilesOperator
from flinkray.streaming.sinks.simple import CollectOperator, CollectSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.sources.collection import (
    ArrowSource,
    CollectionSource,
    NumberSequenceSource,
)
from flinkray.streaming.sources.files import FileSource
from flinkray.streaming.sources.generated import SocketSource
from flinkray.streaming.sources.input_format import InputFormat, InputFormatSource
from flinkray.streaming.sources.source import Boundedness, Source
from flinkray.streaming.sources.spark import SparkSource
from flinkray.streaming.sources.spark_stream import SparkEpochsSource, SparkStreamSource
from flinkray.streaming.time.time_service import WaitingClock
from flinkray.streaming.time.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    import ray.data
    from pyspark.sql import DataFrame, SparkSession

    from flinkray.client.cluster_client import ClusterClient
    from flinkray.datastream.spark_table import SparkTable
    from flinkray.scheduler.graph.job_graph import JobFile, JobGraph, JobVertex


logger = logging.getLogger(__name__)


class StreamExecutionEnvironment(StreamProgram):
    """Environment that builds programs and runs them, in this process or on a cluster.

    Args:
        configuration: settings by their names in Flink (see :meth:`configure`).
        clock: clock for processing time, for a program in this process. None: the machine's clock.
        cluster: the cluster that runs programs (:func:`flinkray.connect`). None: programs run in
            this process, even under ``flinkray run``. To run them on the cluster of ``flinkray
            run``, use :meth:`get_execution_environment`.

    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> _ = env.from_collection(["a", "b"]).map(str.upper).print()
    >>> _ = env.execute("demo")
    A
    B
    """

    def __init__(
        self,
        configuration: Configuration | None = None,
        clock: WaitingClock | None = None,
        cluster: ClusterClient | None = None,
    ) -> None:
        super().__init__()
        if cluster is not None and not hasattr(cluster, "submit"):
            raise TypeError(
                f"cluster is a client as flinkray.connect() returns it, got {cluster!r}"
            )
        self._clock = clock
        self._cluster = cluster
        if configuration is not None:
            self.configure(configuration)

    @staticmethod
    def get_execution_environment(
        configuration: Configuration | None = None, cluster: ClusterClient | None = None
    ) -> StreamExecutionEnvironment:
        """Return a new environment. Programs of the environment run in the slots of *cluster*
        (:func:`flinkray.connect`). None: the cluster that ``flinkray run`` has connected to;
        without ``flinkray run``, this process."""
        target = execution_target()
        env = StreamExecutionEnvironment(cluster=cluster or target.cluster)
        if target.cluster is not None:
            target.environments.append(env)
        if target.parallelism is not None:
            env.set_parallelism(target.parallelism)
        env.configure(Configuration.from_dict(target.configuration))
        return env if configuration is None else env.configure(configuration)

    # --- sources --------------------------------------------------------------------------------

    @overload
    def from_collection(self, collection: Iterable[U], type_info: None = None) -> DataStream[U]: ...
    @overload
    def from_collection(
        self, collection: Iterable[Any], type_info: TypeInformation[U]
    ) -> DataStream[U]: ...
    def from_collection(
        self, collection: Iterable[Any], type_info: TypeInformation | None = None
    ) -> DataStream:
        """Make a stream of a collection's elements.

        One subtask reads them; a row type makes rows of tuples.

        Raises:
            TypeError: the collection is a table, whose elements are not its rows.
        """
        if isinstance(collection, pa.Table | pa.RecordBatch) or _is_data_frame(collection):
            raise TypeError(
                f"from_collection takes Python values, got a {_name_of(collection)}: "
                f"{_instead_of_table(collection)}"
            )
        convert = None if type_info is None else expect_type(type_info).converter()
        values = collection if convert is None else [convert(value) for value in collection]
        return self._source(
            "Source: Collection Source", CollectionSource(values), type_info, non_parallel=True
        )

    def from_sequence(self, start: int, end: int) -> DataStream[int]:
        """Make a stream of the integers from *start* to *end*, both included."""
        return self._source(
            "Source: Number Sequence Source", NumberSequenceSource(start, end), None
        )

    def from_arrow(
        self,
        data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
        batch_rows: int = 1 << 16,
    ) -> DataStream[Row]:
        """Make a stream of the rows of Arrow data, in batches of at most *batch_rows* rows.

        Functions of records are given rows with field names. A column has the type that holds the
        values of all batches.

        Raises:
            ValueError: there is no batch, or no column, or two columns have one name.
            StreamError: no type holds the values that batches have in a column.
            TypeError: *data* is no Arrow data.
        """
        if _is_data_frame(data):
            raise TypeError(
                f"from_arrow takes Arrow data, got a {_name_of(data)}: {_instead_of_table(data)}"
            )
        if isinstance(data, pa.Table):
            table = data
        else:
            batches = [data] if isinstance(data, pa.RecordBatch) else list(data)
            if not batches:
                raise ValueError(
                    "from_arrow was given no batch, so that nobody knows its columns: give an "
                    "empty one, such as schema.empty_table()"
                )
            table = as_one_table(batches, may_round=False)
        if not table.num_columns:
            raise ValueError("from_arrow was given rows without a column: select one at least")
        table = without_views(table)
        return self._source(
            "Source: Arrow", ArrowSource(table, batch_rows), type_of_schema(table.schema)
        )

    def from_dataset(self, dataset: ray.data.Dataset) -> DataStream[Row]:
        """Make a bounded stream of the rows of a Ray Data dataset, in columns.

        The dataset is executed by this call. Its blocks stay in Ray's object store as long as this
        process runs, and the subtasks of the source read them there, each block once. Checkpoints
        hold which blocks and rows were read. Tensors are lists in the stream.

        Raises:
            TypeError: *dataset* is no ``ray.data.Dataset``.
            ValueError: the dataset has no columns.
            StreamError: the blocks have no common type, or hold Python objects.
        """
        import ray.data

        from flinkray.streaming.sources.ray_dataset import RayDatasetSource

        if not isinstance(dataset, ray.data.Dataset):
            raise TypeError(
                f"from_dataset takes a ray.data.Dataset, got a {type(dataset).__name__}"
            )
        source = RayDatasetSource(dataset)
        return self._source("Source: Ray Dataset", source, source.get_produced_type())

    @overload
    def from_source(
        self,
        source: Source[U],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "source",
        type_info: None = None,
    ) -> DataStream[U]: ...
    @overload
    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "source",
        *,
        type_info: TypeInformation[U],
    ) -> DataStream[U]: ...
    @overload
    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy | None,
        source_name: str,
        type_info: TypeInformation[U],
    ) -> DataStream[U]: ...
    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "source",
        type_info: TypeInformation | None = None,
    ) -> DataStream:
        """Make a stream of a Source's records. A strategy adds timestamps and watermarks.

        Args:
            watermark_strategy: becomes part of the source. None: records keep the source's
                timestamps, and there are no watermarks before the end.
            type_info: type of the records; None: the source's own.
        """
        if not isinstance(source, Source):
            raise TypeError(f"from_source takes a Source, got {source!r}")
        return self._source(
            f"Source: {source_name}",
            source,
            type_info or source.get_produced_type(),
            strategy=watermark_strategy,
        )

    @overload
    def create_input(
        self, input_format: InputFormat[U], type_info: None = None
    ) -> DataStream[U]: ...
    @overload
    def create_input(
        self, input_format: InputFormat, type_info: TypeInformation[U]
    ) -> DataStream[U]: ...
    def create_input(
        self, input_format: InputFormat, type_info: TypeInformation | None = None
    ) -> DataStream:
        """Make a stream of the records of an InputFormat.

        Args:
            type_info: type of the records; None: the format's own.
        """
        if not isinstance(input_format, InputFormat):
            raise TypeError(f"create_input takes an InputFormat, got {input_format!r}")
        refuse_coroutines(input_format)
        refuse_signatures(input_format)
        source = InputFormatSource(input_format)
        name = f"Source: {type(input_format).__name__}"
        return self._source(name, source, type_info or source.get_produced_type())

    def from_spark(
        self,
        function: Callable[[SparkSession], DataFrame],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Spark",
        type_info: TypeInformation[Row] | None = None,
        *,
        executors: int = 1,
        cpu: float = 1,
        memory: int | str = "1g",
        spark_conf: Mapping[str, object] | None = None,
        session: str | None = None,
    ) -> DataStream[Row]:
        """Make a stream of the rows of a Spark DataFrame, in batches of columns.

        ``function(spark)`` returns the DataFrame.

        Functions of records are given rows with the DataFrame's field names. The function runs in
        the slots of the job, beside the program. The stream reads a partition when Spark has
        computed it, partitions in their order; see docs/spark.md.

        Args:
            type_info: type of the rows, if it differs from the columns' types.
            executors: Spark executors, each in a slot of its own.
            cpu: cores of each of these slots.
            memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
            spark_conf: Spark properties; properties that flinkray sets itself are refused.
            session: name of a Spark session that stages and jobs share, which has these executors;
                see :func:`flinkray.spark_job`.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
        """
        from flinkray.client.spark_stages import ExecutorSlots, published_spark_stage

        slots = ExecutorSlots(executors, cpu, memory, spark_conf, session)
        stage = published_spark_stage(function, source_name, slots)
        return self._from_stage(SparkSource, stage, watermark_strategy, source_name, type_info)

    def from_spark_stream(
        self,
        function: Callable[[SparkSession], DataFrame],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "Spark",
        type_info: TypeInformation[Row] | None = None,
        *,
        trigger: Mapping[str, object] | None = None,
        output_mode: str = "append",
        executors: int = 1,
        cpu: float = 1,
        memory: int | str = "1g",
        spark_conf: Mapping[str, object] | None = None,
    ) -> DataStream[Row]:
        """Make a stream of the rows of a streaming Spark DataFrame (``spark.readStream``).

        ``function(spark)`` returns the DataFrame.

        Rows come in batches of columns; functions of records are given rows with the DataFrame's
        field names. The query runs in the slots of the job, beside the program, until it or the
        program ends. The stream reads a micro-batch when Spark has computed it, micro-batches in
        their order; see docs/spark.md.

        Args:
            type_info: type of the rows, if it differs from the columns' types.
            trigger: when Spark computes a micro-batch, in the form of ``DataStreamWriter.trigger``:
                ``{"processingTime": "1 second"}``, or ``{"availableNow": True}`` for a query that
                ends; None: as soon as there are rows and the last micro-batch is published.
            output_mode: ``"append"``, or ``"update"`` for the changed rows of an aggregation.
            executors: Spark executors, each in a slot of its own.
            cpu: cores of each of these slots.
            memory: memory of each slot, as ``"1500m"``, ``"2g"`` or bytes.
            spark_conf: Spark properties; properties that flinkray sets itself are refused.

        Raises:
            ConfigurationError: an argument is not acceptable; the text names it.
            UserCodeError: the function cannot be sent to the cluster.
        """
        from flinkray.client.spark_stages import ExecutorSlots, streaming_spark_stage

        slots = ExecutorSlots(executors, cpu, memory, spark_conf)
        stage = streaming_spark_stage(function, source_name, slots, trigger, output_mode)
        return self._from_stage(
            SparkStreamSource, stage, watermark_strategy, source_name, type_info
        )

    def partition(self, stream: DataStream[U], keys: Keys) -> KeyedStream[U, Any]:
        return KeyedStream(stream, keys)

    def from_stage_of_epochs(
        self,
        stage: JobVertex,
        watermark_strategy: WatermarkStrategy | None,
        name: str,
        type_info: TypeInformation[Row] | None,
    ) -> DataStream[Row]:
        return self._from_stage(SparkEpochsSource, stage, watermark_strategy, name, type_info)

    def _from_stage(
        self,
        source: type[SparkSource],
        stage: JobVertex,
        watermark_strategy: WatermarkStrategy | None,
        name: str,
        type_info: TypeInformation[Row] | None,
    ) -> DataStream[Row]:
        self.add_spark_stage(stage)
        if type_info is None:
            reads = source(stage.vertex_id, name)
        else:
            convert = partial(batch_of_type, type_info=type_info)
            reads = source(stage.vertex_id, name, type_info, convert)
        return self.from_source(reads, watermark_strategy, name)

    def from_table(self, table: SparkTable) -> DataStream[Row]:
        stream = self._tables.get(table)
        if stream is None:
            self.add_spark_stage(table.stage)
            source = SparkSource(table.stage.vertex_id, table.name, is_needed_whole=True)
            stream = self._tables[table] = self.from_source(source, None, table.name)
            if table.uid is not None:
                stream.uid(table.uid)
        return stream

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream[str]:
        """Make a stream of the lines of a file, or of all files in a directory.

        Args:
            charset_name: the encoding of files without a byte order mark.

        Raises:
            StreamError: there is no such encoding.
        """
        source: FileSource[str] = FileSource(file_path, encoding=charset_name)
        return self.from_source(source, None, "Text File")

    def socket_text_stream(
        self, hostname: str, port: int, delimiter: str = "\n"
    ) -> DataStream[str]:
        """Make a stream of lines from a TCP server."""
        stream = self.from_source(SocketSource(hostname, port, delimiter), None, "Socket Stream")
        stream._transformation.non_parallel = True
        return stream

    def _source(
        self,
        name: str,
        source: Source[Any],
        type_info: TypeInformation | None,
        non_parallel: bool = False,
        strategy: WatermarkStrategy | None = None,
    ) -> DataStream:
        return self.add(
            OperatorTransformation(
                name,
                None if type_info is None else expect_type(type_info),
                operator=SourceOperator(source, strategy=strategy),
                batch_operator=SourceOperator(source, strategy=strategy, progressive=False),
                kind="Data Source",
                non_parallel=non_parallel,
            )
        )

    # --- execution ------------------------------------------------------------------------------

    def get_stream_graph(self, job_name: str | None = None, clear: bool = False) -> StreamGraph:
        """Return the operators that were added, as a graph. With *clear*, the environment begins a
        new program."""
        return self._stream_graph(job_name, clear, is_on_cluster=self._is_on_cluster())

    def _stream_graph(self, job_name: str | None, clear: bool, is_on_cluster: bool) -> StreamGraph:
        batch = self._is_batch()
        max_parallelism = self._config.get_max_parallelism()
        settings = GraphSettings(
            job_name=job_name or self._configuration.get_string("pipeline.name", "Flink Job"),
            max_parallelism=None if max_parallelism < 0 else max_parallelism,
            chaining_enabled=self._chaining,
            auto_watermark_interval=self._config.get_auto_watermark_interval(),
            object_reuse=self._config.is_object_reuse_enabled(),
            state_options=self._state_options(),
            buffer_timeout=self._buffer_timeout if is_on_cluster else self.get_buffer_timeout(),
            batch=batch,
            auto_generated_uids=self._config.has_auto_generated_uids_enabled(),
            sort_memory=parse_memory_size(
                self._configuration.get_string("execution.sorted-inputs.memory", "128mb")
            ),
            job_parameters=self._config.get_global_job_parameters(),
            takes_checkpoints=is_on_cluster and not batch,
            cached_files={name: path for name, (path, _) in self._cached_files.items()},
        )
        graph = build_graph(self._transformations, settings)
        if clear:
            self._transformations = []
        return graph

    def _is_batch(self) -> bool:
        bounded = self.is_bounded
        batch = self._runtime_mode is RuntimeExecutionMode.BATCH or (
            self._runtime_mode is RuntimeExecutionMode.AUTOMATIC and bounded
        )
        if batch and not bounded:
            raise StreamError("batch mode needs bounded sources; set the runtime mode STREAMING")
        return batch

    def _is_on_cluster(self) -> bool:
        """Return whether the program runs as a job of a cluster.
        True if the environment has a cluster. If not, True for a streaming program that has
        checkpoints, restarts or a savepoint to start from (then on a cluster of threads of this
        process), unless the program has a clock of its own or Spark stages."""
        if self._cluster is not None:
            return True
        if self._clock is not None or self._spark_stages or self._is_batch():
            return False
        strategy = self._configuration.to_dict().get(RESTART_STRATEGY.key)
        return (
            self._checkpoint_config.is_checkpointing_enabled()
            or self._savepoint_to_start_from() is not None
            or (strategy is not None and RESTART_STRATEGY.read(strategy) != "none")
        )

    def get_execution_plan(self) -> str:
        """Return the program as JSON: the operators with their parallelism, and how records travel
        between them."""
        return self._checked_graph(None, False).execution_plan()

    def _checked_graph(self, job_name: str | None, clear: bool) -> StreamGraph:
        if not self._transformations:
            raise StreamError("No operators defined in streaming topology. Cannot execute.")
        are_committed = self._is_on_cluster() and self._checkpoint_config.is_checkpointing_enabled()
        graph = self.get_stream_graph(job_name, clear)
        if clear and not are_committed:
            _warn_of_sinks_that_show_nothing(graph)
        return graph

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the program to its end, and return its result.

        Raises:
            OperatorError: a function failed; the error has its traceback, the record and the
                operator.
            JobExecutionError: a function failed in a program that runs as a job: on a cluster, or
                in this process with checkpoints or restarts. The error's text has the same.
            StreamError, JobSubmissionError: the program cannot run on the cluster.
        """
        is_on_cluster = self._is_on_cluster()
        graph = self._checked_graph(job_name, True)
        if is_on_cluster:
            from flinkray.datastream import cluster_execution

            settings = self._configuration.to_dict()
            return cluster_execution.run(self._cluster, self._job(graph), settings)
        job = self._local_job(graph)
        begun = job.clock.monotonic()
        job.run()
        runtime = job.clock.monotonic() - begun
        return JobExecutionResult.of_program(JobID.generate(), graph.job_name, runtime)

    def execute_async(self, job_name: str = "Flink Streaming Job") -> JobClient:
        """Start the program, on the cluster or in a thread, and return its client.

        Raises:
            StreamError, JobSubmissionError: the program cannot run on the cluster.
        """
        is_on_cluster = self._is_on_cluster()
        graph = self._checked_graph(job_name, True)
        if is_on_cluster:
            from flinkray.datastream import cluster_execution

            return cluster_execution.start(self._cluster, self._job(graph))
        return LocalJobClient(JobID.generate(), graph.job_name, partial(self._local_job, graph))

    def collect_results(
        self, stream: DataStream[U], job_name: str | None, limit: int | None
    ) -> CloseableIterator[U] | list[U]:
        if limit is not None and limit < 0:
            raise ValueError(f"a limit of records must not be negative, got {limit}")
        iterator = self._collect(stream, job_name)
        if limit is None:
            return iterator
        with iterator:
            return list(islice(iterator, limit))  # asks for no more than these results

    def _collect(self, stream: DataStream[U], job_name: str | None) -> CloseableIterator[U]:
        name = "Data stream collect sink"
        if self._is_on_cluster():
            from flinkray.datastream.cluster_execution import ClusterResults

            collector = stream.end_with(name, CollectOperator()).set_parallelism(1).uid(name)
            collector._transformation.non_parallel = True
            graph = self._checked_graph(job_name, True)
            return ClusterResults(self._cluster, self._job(graph))
        results: CollectSink[U] = CollectSink()
        stream.sink_to(results).name(name).set_parallelism(1).uid(name)
        return LocalResults(self._local_job(self._checked_graph(job_name, True)), results)

    def _local_job(self, graph: StreamGraph) -> LocalJob:
        savepoint = self._savepoint_to_start_from()
        if savepoint is not None:
            if graph.batch:
                reason = "runs in batch mode"
            elif self._clock is not None:
                reason = "has a clock of its own"
            else:
                reason = (
                    "has Spark stages, which need a cluster: "
                    "get_execution_environment(cluster=flinkray.connect())"
                )
            raise ConfigurationError(
                f"the program is to start from {savepoint}, which it cannot, since it {reason}"
            )
        if graph.batch or self._clock is not None:
            self._warn_of_settings_without_effect_here()
        graph.cached_files.update(unpacked_archives(self._archives))
        return LocalJob(graph, self._clock)

    def _job(self, graph: StreamGraph) -> JobGraph:
        from flinkray.datastream.cluster_execution import job_of

        settings, files = self._job_settings(), self._job_files()
        if self._cluster is None:
            self._warn_of_differences_here(settings)
        return job_of(
            graph,
            self._slot_sharing_groups,
            settings,
            files,
            self._spark_stages,
            runs_here=self._cluster is None,
        )

    def _warn_of_differences_here(self, settings: Mapping[str, str]) -> None:
        for name, path in self._archives.items():
            warn_of_archive(os.path.abspath(path), name)
        retention = settings.get(CHECKPOINTING_RETENTION.key)
        none_stay = CHECKPOINTING_RETENTION.default
        keeps = retention is not None and CHECKPOINTING_RETENTION.read(retention) != none_stay
        if keeps and CHECKPOINTING_DIR.key not in settings:
            logger.warning(
                "%s has no effect without %s: the checkpoints of a program in one process are "
                "deleted at its end.",
                CHECKPOINTING_RETENTION.key,
                CHECKPOINTING_DIR.key,
            )

    def _job_settings(self) -> dict[str, str]:
        settings = {
            **self._configuration.to_dict(),
            **self._config.task_cancellation_settings(),
            **self._checkpoint_config.job_settings(),
        }
        if self._savepoint_directory is not None:
            settings[SAVEPOINT_DIR.key] = self._savepoint_directory
        return settings

    def _savepoint_to_start_from(self) -> str | None:
        settings = self._configuration.to_dict()
        keys = (STATE_RECOVERY_PATH.key, *STATE_RECOVERY_PATH.aliases)
        return next((settings[key] for key in keys if settings.get(key)), None)

    def as_stage(
        self,
        name: str,
        owner: str,
        returned: DataStream | None,
        result: IntermediateDataSetID | None,
    ) -> tuple[tuple[JobVertex, ...], tuple[JobFile, ...]]:
        """Return the program as vertices of a batch job, and the files that it needs.

        The environment then begins a new program.

        Args:
            owner: hex id from which the vertex ids are made: another owner gives other vertex ids.
            returned: the stream that becomes *result*, which the last vertex writes.

        Raises:
            ConfigurationError: the program sets something that belongs to the whole job or the mode
                STREAMING, or has neither a result nor a sink.
            StreamError: a part of the program cannot be sent to the cluster.
        """
        from flinkray.datastream.cluster_execution import vertices_of

        if returned is not None:
            if returned.get_execution_environment() is not self:
                raise ConfigurationError(
                    f"{name!r} returned a stream of another environment: build it with the one "
                    "that the program is given"
                )
            assert result is not None
            sink = returned.end_with("Result", ResultFilesOperator(result, returned.get_type()))
            sink.uid("Result")
        graph = self._stream_graph(name, clear=True, is_on_cluster=True)
        if not graph.batch:
            raise ConfigurationError(
                f"{name!r} sets the runtime mode STREAMING: a stage runs in batch mode, since all "
                "that it reads is there when it begins"
            )
        if not any(node.kind == "Data Sink" for node in graph.nodes):
            raise ConfigurationError(
                f"{name!r} returned None and ends in no sink: let it return the stream that is its "
                "result"
            )
        settings = self._job_settings()
        return vertices_of(graph, self._slot_sharing_groups, settings, owner), self._job_files()

    def close(self) -> None:
        """Do nothing: an environment keeps nothing open."""


def _is_data_frame(data: object) -> bool:
    """Return whether *data* is a DataFrame of pandas, Spark or another library."""
    return type(data).__name__ == "DataFrame"


def _name_of(data: object) -> str:
    return f"{type(data).__module__.partition('.')[0]} {type(data).__name__}"


def _instead_of_table(data: object) -> str:
    library = type(data).__module__.partition(".")[0]
    if library == "pandas":
        return "env.from_arrow(pyarrow.Table.from_pandas(data)) reads its rows"
    if library == "pyspark":
        return "env.from_spark(function), with a function that returns it, reads its rows"
    return "env.from_arrow(…) reads the rows of Arrow tables"


def _warn_of_sinks_that_show_nothing(graph: StreamGraph) -> None:
    """Log a warning for each sink that will never show results: the sink commits at the end of the
    program, but a source has no end."""
    if graph.batch:
        return
    for node in graph.nodes:
        operator = node.operator
        if not isinstance(operator, SinkWriterOperator):
            continue
        if not operator.sink.has_committer:
            continue
        for source in graph.upstream_of(node):
            if isinstance(source.operator, SourceOperator) and _is_endless(source.operator.source):
                logger.warning(
                    "%s (%s) will show nothing of what it writes: that becomes visible with "
                    "checkpoints, or at the end of the input, and %s has no end. Enable "
                    "checkpoints (env.enable_checkpointing), read a source that ends, or write "
                    "with a sink that commits nothing, such as a CallbackSink.",
                    node.name,
                    type(operator.sink).__name__,
                    source.name,
                )
                break


def _is_endless(source: Source[Any]) -> bool:
    return source.get_boundedness() is Boundedness.CONTINUOUS_UNBOUNDED
