"""StreamExecutionEnvironment: where programs begin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flinkray.core.ids import JobID
from flinkray.core.resources import parse_memory_size
from flinkray.datastream.data_stream import DataStream
from flinkray.datastream.flink_settings import FLINK_SETTINGS
from flinkray.datastream.job_client import (
    CloseableIterator,
    JobClient,
    JobExecutionResult,
    LocalJobClient,
    LocalResults,
)
from flinkray.datastream.settings import (
    CheckpointConfig,
    CheckpointingMode,
    Configuration,
    ExecutionConfig,
    RuntimeExecutionMode,
    TimeCharacteristic,
)
from flinkray.datastream.slot_sharing_group import SlotSharingGroup
from flinkray.streaming.errors import StreamError
from flinkray.streaming.graph import StreamGraph
from flinkray.streaming.local_job import LocalJob, WaitingClock
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.sinks.collect import CollectOperator
from flinkray.streaming.sinks.simple import CollectSink
from flinkray.streaming.sources.collection import (
    ArrowSource,
    CollectionSource,
    NumberSequenceSource,
)
from flinkray.streaming.sources.files import FileSource
from flinkray.streaming.sources.generated import SocketSource
from flinkray.streaming.sources.source import Boundedness, Source
from flinkray.streaming.transformations import (
    GraphSettings,
    OperatorTransformation,
    Transformation,
    build_graph,
)
from flinkray.streaming.type_inference import type_of_schema
from flinkray.streaming.typeinfo import TypeInformation
from flinkray.streaming.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    from flinkray.client import ClusterClient, JobHandle

_default_local_parallelism = 1


class StreamExecutionEnvironment:
    """Builds programs and runs them, in this process or on a cluster.

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
        self._config = ExecutionConfig()
        self._checkpoint_config = CheckpointConfig()
        self._configuration = Configuration()
        self._clock = clock
        self._cluster = cluster
        self._parallelism = _default_local_parallelism
        self._buffer_timeout = 100
        self._chaining = True
        self._runtime_mode = RuntimeExecutionMode.STREAMING
        self._changelog: bool | None = None
        self._time_characteristic = TimeCharacteristic.EventTime
        self._slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        self._cached_files: dict[str, str] = {}
        self._python_files: list[str] = []
        self._python_archives: list[tuple[str, str | None]] = []
        self._python_requirements: tuple[str, str | None] | None = None
        self._python_executable: str | None = None
        self._transformations: list[Transformation] = []
        if configuration is not None:
            self.configure(configuration)

    @staticmethod
    def get_execution_environment(
        configuration: Configuration | None = None, cluster: ClusterClient | None = None
    ) -> StreamExecutionEnvironment:
        """A new environment, for programs that run in the slots of *cluster* (see
        :func:`flinkray.connect`); in this process when None."""
        return StreamExecutionEnvironment(configuration, cluster=cluster)

    # --- settings -------------------------------------------------------------------------------

    def get_config(self) -> ExecutionConfig:
        """Settings of the execution; may be changed."""
        return self._config

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """The number of subtasks of operators that have no parallelism of their own."""
        if parallelism < 1:
            raise ValueError(f"parallelism must be at least 1, got {parallelism}")
        self._config.set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        """The parallelism of operators that have none of their own."""
        return self._config.get_parallelism() or self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """The number of key groups."""
        if not 1 <= max_parallelism <= 1 << 15:
            raise ValueError(f"max parallelism must be 1 to 32768, got {max_parallelism}")
        self._config.set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """-1: by the parallelism."""
        return self._config.get_max_parallelism()

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """How long small batches may wait for more records on their way between tasks; 0: not at
        all, -1: until they are full."""
        if timeout_millis < -1:
            raise ValueError(f"a buffer time-out must be at least -1, got {timeout_millis}")
        self._buffer_timeout = timeout_millis
        return self

    def get_buffer_timeout(self) -> int:
        """Milliseconds; see :meth:`set_buffer_timeout`."""
        return self._buffer_timeout

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Streaming (the default), batch, or batch where all sources end."""
        self._runtime_mode = execution_mode
        return self

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """The parallelism of environments where none is set."""
        global _default_local_parallelism
        _default_local_parallelism = parallelism
        self._parallelism = parallelism

    def get_default_local_parallelism(self) -> int:
        """The parallelism of environments where none is set."""
        return _default_local_parallelism

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Every operator in a task of its own."""
        self._chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """False after :meth:`disable_operator_chaining`."""
        return self._chaining

    def get_checkpoint_config(self) -> CheckpointConfig:
        """When and how checkpoints are taken; may be changed."""
        return self._checkpoint_config

    def enable_checkpointing(
        self, interval: int, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """Take a checkpoint every *interval* milliseconds, on a cluster."""
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds; -1 means no checkpoints."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Exactly or at least once."""
        return self._checkpoint_config.get_checkpointing_mode()

    def enable_changelog_state_backend(self, enabled: bool) -> StreamExecutionEnvironment:
        """Whether checkpoints hold changes of state only, on a cluster."""
        self._changelog = enabled
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """None: not set."""
        return self._changelog

    def set_stream_time_characteristic(self, characteristic: TimeCharacteristic) -> None:
        """Kept for old programs; window assigners say by what time they go."""
        self._time_characteristic = characteristic

    def get_stream_time_characteristic(self) -> TimeCharacteristic:
        """Kept for old programs."""
        return self._time_characteristic

    def configure(self, configuration: Configuration) -> StreamExecutionEnvironment:
        """Take over settings by their names in Flink's configuration."""
        self._configuration.add_all(configuration)
        values = configuration.to_dict()
        for key, value in values.items():
            apply = FLINK_SETTINGS.get(key)
            if apply is not None:
                apply(self, value)
        return self

    def get_configuration(self) -> Configuration:
        """All options that :meth:`configure` was given."""
        return self._configuration

    def register_slot_sharing_group(
        self, slot_sharing_group: SlotSharingGroup
    ) -> StreamExecutionEnvironment:
        """What slots of a group hold."""
        self._slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """A file that tasks find under a name."""
        self._cached_files[name] = file_path

    def add_python_file(self, file_path: str) -> None:
        """A module, package or directory that functions import."""
        import sys

        self._python_files.append(file_path)
        folder = file_path.rpartition("/")[0] if file_path.endswith(".py") else file_path
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def set_python_requirements(
        self, requirements_file_path: str, requirements_cached_dir: str | None = None
    ) -> None:
        """Packages that functions need, as a requirements file; for clusters."""
        self._python_requirements = (requirements_file_path, requirements_cached_dir)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """An archive that is unpacked where functions run; for clusters."""
        self._python_archives.append((archive_path, target_dir))

    def set_python_executable(self, python_exec: str) -> None:
        """The interpreter that runs functions; for clusters."""
        self._python_executable = python_exec

    # --- sources --------------------------------------------------------------------------------

    def from_collection(
        self, collection: Iterable[Any], type_info: TypeInformation | None = None
    ) -> DataStream:
        """The elements of a collection, read by one subtask; a row type makes rows of tuples."""
        convert = None if type_info is None else type_info.converter()
        values = collection if convert is None else [convert(value) for value in collection]
        return self._source(
            "Source: Collection Source", CollectionSource(values), type_info, non_parallel=True
        )

    def from_sequence(self, start: int, end: int) -> DataStream:
        """The integers from *start* to *end*, both included."""
        return self._source(
            "Source: Number Sequence Source", NumberSequenceSource(start, end), None
        )

    def from_arrow(
        self,
        data: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
        batch_rows: int = 1 << 16,
    ) -> DataStream:
        """The rows of Arrow data, in batches of columns; functions of records are given rows with
        field names."""
        if isinstance(data, pa.Table):
            table = data
        else:
            batches = [data] if isinstance(data, pa.RecordBatch) else list(data)
            table = pa.Table.from_batches(batches)
        return self._source(
            "Source: Arrow", ArrowSource(table, batch_rows), type_of_schema(table.schema)
        )

    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "source",
        type_info: TypeInformation | None = None,
    ) -> DataStream:
        """The records of a Source, with timestamps and watermarks if a strategy is given."""
        if not isinstance(source, Source):
            raise TypeError(f"from_source takes a Source, got {source!r}")
        return self._source(
            f"Source: {source_name}", source, type_info, strategy=watermark_strategy
        )

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream:
        """The lines of a file, or of all files in a directory."""
        if charset_name.upper().replace("-", "") != "UTF8":
            raise StreamError(f"text files are read as UTF-8, not {charset_name}")
        return self.from_source(FileSource(file_path), None, "Text File")

    def socket_text_stream(self, hostname: str, port: int, delimiter: str = "\n") -> DataStream:
        """Lines from a TCP server."""
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
                type_info,
                operator=SourceOperator(source, strategy=strategy),
                batch_operator=SourceOperator(source, strategy=strategy, progressive=False),
                kind="Data Source",
                non_parallel=non_parallel,
            )
        )

    # --- execution ------------------------------------------------------------------------------

    def add(self, transformation: OperatorTransformation) -> DataStream:
        """Make an operator part of the program."""
        self._transformations.append(transformation)
        return DataStream(self, transformation)

    def get_stream_graph(self, job_name: str | None = None, clear: bool = False) -> StreamGraph:
        """The program as a graph; with *clear*, the environment begins a new one."""
        sources = [
            t.operator.source
            for t in self._transformations
            if isinstance(t, OperatorTransformation) and isinstance(t.operator, SourceOperator)
        ]
        bounded = all(s.get_boundedness() is Boundedness.BOUNDED for s in sources)
        batch = self._runtime_mode is RuntimeExecutionMode.BATCH or (
            self._runtime_mode is RuntimeExecutionMode.AUTOMATIC and bounded
        )
        if batch and not bounded:
            raise StreamError("batch mode needs bounded sources; set the runtime mode STREAMING")
        max_parallelism = self._config.get_max_parallelism()
        settings = GraphSettings(
            job_name=job_name or self._configuration.get_string("pipeline.name", "Flink Job"),
            parallelism=self.get_parallelism(),
            max_parallelism=None if max_parallelism < 0 else max_parallelism,
            chaining_enabled=self._chaining,
            auto_watermark_interval=self._config.get_auto_watermark_interval(),
            buffer_timeout=self._buffer_timeout,
            batch=batch,
            sort_memory=parse_memory_size(
                self._configuration.get_string("execution.sorted-inputs.memory", "128mb")
            ),
            job_parameters=self._config.get_global_job_parameters(),
        )
        graph = build_graph(self._transformations, settings)
        if clear:
            self._transformations = []
        return graph

    def get_execution_plan(self) -> str:
        """The program as JSON: nodes with parallelism, and how records travel between them."""
        return self._checked_graph(None, False).execution_plan()

    def _checked_graph(self, job_name: str | None, clear: bool) -> StreamGraph:
        if not self._transformations:
            raise StreamError("No operators defined in streaming topology. Cannot execute.")
        return self.get_stream_graph(job_name, clear)

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the program to its end.

        Raises:
            OperatorError: a function failed; its traceback, the record and the operator are told.
            JobExecutionError: the same on a cluster, in the error's text.
            StreamError, JobSubmissionError: it cannot run on the cluster.
        """
        graph = self._checked_graph(job_name, True)
        if self._cluster is not None:
            from flinkray.datastream import cluster_execution

            return cluster_execution.run(self._submit(self._cluster, graph))
        job = LocalJob(graph, self._clock)
        begun = job.clock.monotonic()
        job.run()
        return JobExecutionResult(JobID.generate(), job.clock.monotonic() - begun)

    def execute_async(self, job_name: str = "Flink Streaming Job") -> JobClient:
        """Begin to run the program: on the cluster, or in a thread."""
        graph = self._checked_graph(job_name, True)
        if self._cluster is not None:
            from flinkray.datastream.cluster_execution import ClusterJobClient

            return ClusterJobClient(self._cluster, self._submit(self._cluster, graph))
        return LocalJobClient(JobID.generate(), LocalJob(graph, self._clock))

    def collect_results(
        self, stream: DataStream, job_name: str | None, limit: int | None
    ) -> CloseableIterator | list[Any]:
        """See ``DataStream.execute_and_collect``."""
        iterator = self._collect(stream, job_name)
        if limit is None:
            return iterator
        with iterator:
            return [value for value, _ in zip(iterator, range(limit), strict=False)]

    def _collect(self, stream: DataStream, job_name: str | None) -> CloseableIterator:
        name = "Data stream collect sink"
        if self._cluster is not None:
            from flinkray.datastream.cluster_execution import ClusterResults

            stream.end_with(name, CollectOperator()).set_parallelism(1)
            graph = self._checked_graph(job_name, True)
            return ClusterResults(self._cluster, self._submit(self._cluster, graph))
        results = CollectSink()
        stream.sink_to(results).name(name).set_parallelism(1)
        return LocalResults(LocalJob(self._checked_graph(job_name, True), self._clock), results)

    def _submit(self, cluster: ClusterClient, graph: StreamGraph) -> JobHandle:
        from flinkray.datastream.cluster_execution import submit

        return submit(cluster, graph, self._slot_sharing_groups)

    def close(self) -> None:
        """Nothing is kept open."""
