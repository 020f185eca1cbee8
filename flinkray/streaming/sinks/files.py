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

from pathlib import Path

from flinkray.core.arguments import path_of
from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.errors import StreamError
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
