"""Files of text, CSV, JSON lines or Parquet, which become visible by being renamed.

A file of a bucket has three names, and the uid in them is random and each writer's own:

* ``.part-<uid>-<n>.<job>-<operator>-<...>.inprogress`` while it is written, and until the next
  barrier.  No checkpoint refers to it.
* ``.part-<uid>-<n>.pending`` from then on: a checkpoint or a savepoint may refer to it.
* ``part-<uid>-<n><suffix>`` when it is committed.

So a reader of the directory never sees half a file, and a failed attempt leaves only hidden ones.
Those that it had in progress are removed by the next attempt.  Pending ones stay that nobody has
committed: a savepoint may have been taken that refers to them, and nobody here knows.
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


class FileSink(Sink[Rename]):
    """Writes a directory of files.

    Args:
        path: the directory; made if it is not there.
        file_format: ``text``, ``csv``, ``json``, ``parquet``, or a FileFormat.
        rolling_policy: when a file is followed by a new one; by default after 128 MB, a minute, or
            a minute without records, besides every checkpoint.
        bucket_assigner: the folder of each record; by default the directory itself.
        bucket_check_interval: how often ages of files are looked at; a minute by default.
        prefix, suffix: of the files' names, without a slash; by default ``part`` and the format's
            own.
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

    def create_writer(self, context: WriterContext) -> SinkWriter[Rename]:
        return FileWriter(self._settings, context)

    def create_committer(self, context: CommitterContext) -> Committer[Rename]:
        return RenamingCommitter()
