"""File sink for text, CSV, JSON lines and Parquet. Files become visible by being renamed.

A file of a bucket has three names in turn. The uid in the names is random and different for each
writer.

* ``.part-<uid>-<n>.<job>-<operator>-<...>.inprogress`` while the file is written, until the next
  barrier. No checkpoint refers to it.
* ``.part-<uid>-<n>.pending`` from then on: a checkpoint or a savepoint may refer to it.
* ``part-<uid>-<n><suffix>`` when it is committed.

So readers of the directory never see half a file, and a failed attempt leaves only hidden files.
The next attempt removes the files in progress. Pending files that were not committed stay, because
a savepoint may refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flinkray.core.arguments import path_of
from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.serialization import Encoder
from flinkray.streaming.sinks.file_formats import FORMATS, FileFormat
from flinkray.streaming.sinks.file_policies import (
    BUCKET_CHECK_INTERVAL,
    BasePathBucketAssigner,
    BucketAssigner,
    RollingPolicy,
)
from flinkray.streaming.sinks.file_writer import (
    FileSettings,
    FileWriter,
    Rename,
    RenamingCommitter,
)
from flinkray.streaming.sinks.sink import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    WriterContext,
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
    """Pattern of file names: prefix, the writer's random id and number, suffix."""

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


class FileSink(Sink[object, Rename]):
    """Writes a directory of files.

    Args:
        path: the directory. It is created if it does not exist.
        file_format: ``text``, ``csv``, ``json``, ``parquet``, or a FileFormat.
        rolling_policy: when a new file begins, in addition to every checkpoint. Default: after
            128 MB, a minute, or a minute without records.
        bucket_assigner: folder of each record. Default: the directory itself.
        bucket_check_interval: how often ages of files are checked. Default: a minute.
        prefix, suffix: beginning and end of file names, without a slash. Default: ``part`` and the
            suffix of the format.
        visible_files_may_go: other programs move or delete visible files while the job or its
            savepoints may still commit them again. A missing file then counts as committed. By
            default the job fails, since records may be lost.
    """

    def __init__(
        self,
        path: str | Path,
        file_format: str | FileFormat = "text",
        rolling_policy: RollingPolicy | None = None,
        bucket_assigner: BucketAssigner | None = None,
        bucket_check_interval: int | Duration | Time = BUCKET_CHECK_INTERVAL,
        prefix: str = "part",
        suffix: str | None = None,
        visible_files_may_go: bool = False,
    ) -> None:
        if isinstance(file_format, str):
            if file_format not in FORMATS:
                raise StreamError(
                    f"unknown file format {file_format!r}; there are {', '.join(FORMATS)}"
                )
            file_format = FORMATS[file_format]()
        if not isinstance(file_format, FileFormat):
            raise TypeError(
                f"file_format of a FileSink is one of {', '.join(map(repr, FORMATS))}, or a "
                f"FileFormat, got {file_format!r}"
            )
        interval = milliseconds(bucket_check_interval)
        if interval <= 0:
            raise StreamError(f"a bucket check interval must be positive, got {interval} ms")
        for what, text in (("prefix", prefix), ("suffix", suffix or "")):
            if "/" in text:
                raise StreamError(
                    f"the {what} of a file's name has no slash, got {text!r}: folders are those of "
                    "a bucket assigner"
                )
        self._settings = FileSettings(
            path_of(path, "a FileSink"),
            file_format,
            rolling_policy or RollingPolicy.default_rolling_policy(),
            bucket_assigner or BasePathBucketAssigner(),
            interval,
            prefix,
            f".{file_format.suffix}" if suffix is None else suffix,
        )
        self._visible_files_may_go = visible_files_may_go

    def create_writer(self, context: WriterContext) -> SinkWriter[Rename]:
        return FileWriter(self._settings, context)

    def create_committer(self, context: CommitterContext) -> Committer[Rename]:
        return RenamingCommitter(self._visible_files_may_go)

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
