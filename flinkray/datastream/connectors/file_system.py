"""File sources and sinks with the builders of PyFlink's ``connectors.file_system``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from flinkray.core.durations import Duration
from flinkray.datastream.common.serialization import Encoder
from flinkray.datastream.type_variables import T, U
from flinkray.streaming.sinks import files as sinks
from flinkray.streaming.sinks.file_formats import FileFormat
from flinkray.streaming.sinks.file_policies import (
    BUCKET_CHECK_INTERVAL,
    BucketAssigner,
    RollingPolicy,
)
from flinkray.streaming.sources import files as sources
from flinkray.streaming.sources.file_input import check_encoding


@dataclass(frozen=True)
class StreamFormat(Generic[T]):
    """Format for reading files record by record of type T.

    >>> StreamFormat.text_line_format()
    StreamFormat(file_format='text', encoding='UTF-8')
    """

    file_format: str | sources.RecordFormat
    encoding: str | None = None
    """Character set of text files. A byte order mark in a file overrides it."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat[str]:
        """Return the format that gives a string for each line."""
        return StreamFormat("text", check_encoding(charset_name))


class FileSource(sources.FileSource[T]):
    """Reads files and directories; see :class:`flinkray.streaming.sources.files.FileSource`.

    >>> import pathlib, tempfile
    >>> from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
    >>> file = pathlib.Path(tempfile.mkdtemp(), "lines.txt")
    >>> _ = file.write_text("to be\\nor not\\n")
    >>> source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(file))
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> lines = env.from_source(
    ...     source.process_static_file_set().build(), WatermarkStrategy.no_watermarks(), "lines"
    ... )
    >>> lines.execute_and_collect(limit=2)
    ['to be', 'or not']
    """

    @staticmethod
    def for_record_stream_format(
        stream_format: StreamFormat[U], *paths: str
    ) -> FileSourceBuilder[U]:
        """Return the builder of a source that reads *paths* in that format."""
        return FileSourceBuilder(stream_format.file_format, paths, encoding=stream_format.encoding)


@dataclass(frozen=True)
class FileEnumeratorProvider:
    """Says how files are divided into splits.

    Here a split is always a whole file, so the value has no effect on the results.
    """

    splittable: bool

    @staticmethod
    def default_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Return the kind that divides large files in Flink; here a split is a whole file."""
        return FileEnumeratorProvider(splittable=True)

    @staticmethod
    def default_non_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Return the kind with a split for each file."""
        return FileEnumeratorProvider(splittable=False)


@dataclass(frozen=True)
class FileSplitAssignerProvider:
    """Says which split a subtask gets next.

    Here it is always the next split, because files are equally far from all subtasks.
    """

    @staticmethod
    def locality_aware_split_assigner() -> FileSplitAssignerProvider:
        """Return the only assigner that Flink has."""
        return FileSplitAssignerProvider()


@dataclass
class FileSourceBuilder(Generic[T]):
    """Builder of a :class:`FileSource`."""

    file_format: str | sources.RecordFormat
    paths: tuple[str, ...]
    interval: Duration | None = None
    encoding: str | None = None

    def monitor_continuously(self, discovery_interval: Duration) -> FileSourceBuilder[T]:
        """Look for new files at this interval, without end."""
        self.interval = discovery_interval
        return self

    def process_static_file_set(self) -> FileSourceBuilder[T]:
        """Read the files that exist at the start (the default)."""
        self.interval = None
        return self

    def set_file_enumerator(self, file_enumerator: FileEnumeratorProvider) -> FileSourceBuilder[T]:
        """Accept a setting that does not change the results (:class:`FileEnumeratorProvider`)."""
        return self

    def set_split_assigner(self, split_assigner: FileSplitAssignerProvider) -> FileSourceBuilder[T]:
        """Accept a setting that does not change the results.

        See :class:`FileSplitAssignerProvider`.
        """
        return self

    def build(self) -> FileSource[T]:
        """Build the source."""
        return FileSource(
            *self.paths,
            file_format=self.file_format,
            discovery_interval=self.interval,
            encoding=self.encoding,
        )


@dataclass
class OutputFileConfigBuilder:
    """Builder of an :class:`OutputFileConfig`."""

    prefix: str = "part"
    suffix: str = ""

    def with_part_prefix(self, prefix: str) -> OutputFileConfigBuilder:
        """Set the beginning of file names."""
        self.prefix = prefix
        return self

    def with_part_suffix(self, suffix: str) -> OutputFileConfigBuilder:
        """Set the end of file names, the dot included."""
        self.suffix = suffix
        return self

    def build(self) -> OutputFileConfig:
        """Build the configuration."""
        return OutputFileConfig(self.prefix, self.suffix)


class _Names:
    """Namespace for PyFlink's spelling ``OutputFileConfig.OutputFileConfigBuilder``."""

    OutputFileConfigBuilder = OutputFileConfigBuilder


@dataclass(frozen=True)
class OutputFileConfig(_Names):
    """Pattern of file names: prefix, the writer's random id and number, suffix.

    >>> OutputFileConfig.builder().with_part_prefix("words").with_part_suffix(".txt").build()
    OutputFileConfig(part_prefix='words', part_suffix='.txt')
    """

    part_prefix: str = "part"
    part_suffix: str = ""

    def get_part_prefix(self) -> str:
        """Return the beginning of file names."""
        return self.part_prefix

    def get_part_suffix(self) -> str:
        """Return the end of file names."""
        return self.part_suffix

    @staticmethod
    def builder() -> OutputFileConfigBuilder:
        """Return a builder with Flink's defaults: ``part`` and no suffix."""
        return OutputFileConfigBuilder()


class FileSink(sinks.FileSink):
    """Writes a directory of files; see :class:`flinkray.streaming.sinks.files.FileSink`.

    >>> import pathlib, tempfile
    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> directory = tempfile.mkdtemp()
    >>> sink = (
    ...     FileSink.for_row_format(directory, Encoder.simple_string_encoder())
    ...     .with_output_file_config(OutputFileConfig("words", ".txt"))
    ...     .with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1 << 20))
    ...     .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    ...     .with_bucket_check_interval(10_000)
    ...     .build()
    ... )
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> _ = env.from_collection(["a", "b"]).sink_to(sink)
    >>> _ = env.execute()
    >>> [file.read_text() for file in pathlib.Path(directory).glob("words-*-0.txt")]
    ['a\\nb\\n']
    """

    @staticmethod
    def for_row_format(base_path: str, encoder: Encoder) -> FileSinkBuilder:
        """Return the builder of a sink that writes record by record."""
        return FileSinkBuilder(base_path, encoder.file_format)

    @staticmethod
    def for_bulk_format(base_path: str, writer_factory: FileFormat) -> FileSinkBuilder:
        """Return the builder of a sink that writes batch by batch, as ``ParquetFormat`` does."""
        return FileSinkBuilder(
            base_path, writer_factory, policy=RollingPolicy.on_checkpoint_rolling_policy()
        )


@dataclass
class FileSinkBuilder:
    """Builder of a :class:`FileSink`."""

    base_path: str | Path
    file_format: str | FileFormat
    config: OutputFileConfig = OutputFileConfig()
    policy: RollingPolicy = field(default_factory=RollingPolicy.default_rolling_policy)
    assigner: BucketAssigner = field(default_factory=BucketAssigner.date_time_bucket_assigner)
    check_interval: int = BUCKET_CHECK_INTERVAL

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> FileSinkBuilder:
        """Set the names of files."""
        self.config = output_file_config
        return self

    def with_rolling_policy(self, rolling_policy: RollingPolicy) -> FileSinkBuilder:
        """Set the policy that decides when a new file begins."""
        self.policy = rolling_policy
        return self

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> FileSinkBuilder:
        """Set the assigner that decides on the folder of each record."""
        self.assigner = bucket_assigner
        return self

    def with_bucket_check_interval(self, interval: int) -> FileSinkBuilder:
        """Set the milliseconds between two checks of the files' ages."""
        self.check_interval = interval
        return self

    def build(self) -> FileSink:
        """Build the sink."""
        return FileSink(
            self.base_path,
            self.file_format,
            self.policy,
            self.assigner,
            self.check_interval,
            self.config.part_prefix,
            self.config.part_suffix,
        )


__all__ = [
    "BucketAssigner",
    "Encoder",
    "FileEnumeratorProvider",
    "FileSink",
    "FileSinkBuilder",
    "FileSource",
    "FileSourceBuilder",
    "FileSplitAssignerProvider",
    "OutputFileConfig",
    "OutputFileConfigBuilder",
    "RollingPolicy",
    "StreamFormat",
]
