"""Writer of a file sink: writes the files of one subtask, one at a time in each bucket."""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from flinkray.core import disk
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns, Records
from flinkray.streaming.sinks.file_formats import FileFormat, OtherColumnsError, PartFile
from flinkray.streaming.sinks.file_policies import BucketAssigner, BucketContext, RollingPolicy
from flinkray.streaming.sinks.sink import (
    CommitRequest,
    Committer,
    SinkError,
    SinkUnavailableError,
    SinkWriter,
    WriterContext,
)
from flinkray.streaming.time.time_service import ScheduledCallback

logger = logging.getLogger(__name__)


_IN_PROGRESS = ".inprogress"
_PENDING = ".pending"
"""With ``_IN_PROGRESS``: ends of the names of hidden files.
No checkpoint or savepoint refers to a file in progress. One may refer to a pending file."""


class Rename(NamedTuple):
    """The committable of a file sink: a finished file and its final name."""

    hidden: str
    visible: str


class _Names(NamedTuple):
    in_progress: str
    pending: str
    visible: str


class _Attempt(NamedTuple):
    """Identifies the attempt of a subtask that writes a file. While the file is in progress, its
    name contains this."""

    job_id: str
    operator_id: str
    subtask_index: int
    restored_checkpoint_id: int
    attempt_number: int

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @staticmethod
    def of(context: WriterContext) -> _Attempt:
        return _Attempt(
            context.job_id,
            context.operator_id,
            context.subtask_index,
            context.restored_checkpoint_id,
            context.attempt_number,
        )

    @staticmethod
    def in_name(name: str) -> _Attempt | None:
        """Return the attempt that is stated in *name*, the name of a file in progress. None: *name*
        is of another form."""
        if not (name.startswith(".") and name.endswith(_IN_PROGRESS)):
            return None
        found = re.fullmatch(
            r"([0-9a-f]{32})-([0-9a-f]{32})-(\d+)-(\d+)-(\d+)",
            name.removesuffix(_IN_PROGRESS).rpartition(".")[2],
        )
        if found is None:
            return None
        job_id, operator_id, *numbers = found.groups()
        return _Attempt(job_id, operator_id, *map(int, numbers))

    def comes_after(self, other: _Attempt, parallelism: int) -> bool:
        """Return whether *other* is an earlier attempt of this subtask, or of a subtask that no
        longer exists and that this subtask replaces. Then the files in progress of *other* may be
        removed. In one case the result is wrong: *other* hangs before it begins, while another
        JobMaster restarts its job from the same checkpoint. The restarted attempt then misses its
        file, and fails."""
        is_mine = other.subtask_index % parallelism == self.subtask_index
        return is_mine and other[:2] == self[:2] and other[3:] < self[3:]


@dataclass
class _OpenFile:
    part: PartFile
    names: _Names
    begun: int
    written: int
    """Time of the last write. Both times are in milliseconds."""


@dataclass(frozen=True)
class FileSettings:
    """Settings that all writers of a sink share."""

    directory: str
    file_format: FileFormat
    rolling_policy: RollingPolicy
    bucket_assigner: BucketAssigner
    bucket_check_interval: int
    prefix: str
    suffix: str


class FileWriter(SinkWriter[Rename]):
    """Writer of a file sink. File names are random, so no attempt or run overwrites a file of
    another."""

    def __init__(self, settings: FileSettings, context: WriterContext) -> None:
        self._settings = settings
        self._format = settings.file_format.of_type(context.type_info)
        self._context = context
        self._directory = Path(settings.directory)
        self._uid = uuid.uuid4().hex[:12]
        self._number = 0
        self._open: dict[str, _OpenFile] = {}
        self._finished: list[_Names] = []
        self._check: ScheduledCallback | None = None
        self._directory.mkdir(parents=True, exist_ok=True)
        self._attempt = _Attempt.of(context)
        if context.attempt_number or context.restored_checkpoint_id:
            self._remove_left_over(self._directory)
        if settings.rolling_policy.looks_at_time:
            self._schedule_check()

    # --- records ------------------------------------------------------------------------------

    def _bucket_context(self) -> BucketContext:
        return BucketContext(self._context.time_service.now(), self._context.current_watermark)

    def write(self, block: Block) -> None:
        context, assigner = self._bucket_context(), self._settings.bucket_assigner
        bucket = assigner.bucket_of_batch(context)
        if bucket is not None:
            self._write(bucket, block)
            return
        for bucket, part in self._divided(block, context):
            self._write(bucket, part)

    def _divided(self, block: Block, context: BucketContext) -> list[tuple[str, Block]]:
        bucket_of = self._settings.bucket_assigner.get_bucket_id
        times = block.timestamps
        places: dict[str, list[int]] = {}
        for place, value in enumerate(block.values):
            timestamp = None if times is None else times[place]
            places.setdefault(bucket_of(value, context.at(timestamp)), []).append(place)
        return [(bucket, block.take(mine)) for bucket, mine in places.items()]

    def write_columns(self, columns: Columns) -> None:
        bucket = self._settings.bucket_assigner.bucket_of_batch(self._bucket_context())
        if bucket is None:
            self.write(columns.to_block())
            return
        self._write(bucket, columns)

    def _write(self, bucket: str, records: Records) -> None:
        try:
            self._write_to(self._file(bucket), records)
        except OtherColumnsError:
            earlier = self._open[bucket].part
            self._finish(bucket)
            file = self._file(bucket)
            file.part.go_on_from(earlier)
            self._write_to(file, records)
        self._written(bucket, self._open[bucket])

    @staticmethod
    def _write_to(file: _OpenFile, records: Records) -> None:
        with _failures_named(file):
            if isinstance(records, Columns):
                file.part.write_columns(records)
            else:
                file.part.write(records)

    # --- files --------------------------------------------------------------------------------

    def _file(self, bucket: str) -> _OpenFile:
        file = self._open.get(bucket)
        if file is None:
            folder = self._folder(bucket)
            settings = self._settings
            name = f"{settings.prefix}-{self._uid}-{self._number}"
            self._number += 1
            names = _Names(
                str(folder / f".{name}.{self._attempt}{_IN_PROGRESS}"),
                str(folder / f".{name}{_PENDING}"),
                str(folder / f"{name}{settings.suffix}"),
            )
            now = self._context.time_service.now()
            file = _OpenFile(self._format.open(Path(names.in_progress)), names, now, now)
            self._open[bucket] = file
        return file

    def _folder(self, bucket: str) -> Path:
        relative = PurePosixPath(bucket)
        if relative.is_absolute() or ".." in relative.parts:
            raise StreamError(
                f"a bucket is a folder below {self._directory}, named by a relative path, "
                f"got {bucket!r}"
            )
        folder = self._directory / relative
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _written(self, bucket: str, file: _OpenFile) -> None:
        file.written = self._context.time_service.now()
        with _failures_named(file):
            size = file.part.size()
        if self._settings.rolling_policy.is_full(size):
            self._finish(bucket)

    def _finish(self, bucket: str) -> None:
        file = self._open[bucket]
        with _failures_named(file):
            file.part.finish()
        del self._open[bucket]
        self._finished.append(file.names)

    def _schedule_check(self) -> None:
        service = self._context.time_service
        due = service.now() + self._settings.bucket_check_interval
        self._check = service.schedule(due, self._on_check)

    def _on_check(self, _: int) -> None:
        policy, now = self._settings.rolling_policy, self._context.time_service.now()
        for bucket, file in list(self._open.items()):
            if policy.is_due(now - file.begun, now - file.written):
                self._finish(bucket)
        self._schedule_check()

    # --- commits ------------------------------------------------------------------------------

    def prepare_commit(self, end_of_input: bool) -> list[Rename]:
        for bucket in list(self._open):
            self._finish(bucket)
        finished = self._finished
        for names in finished:
            os.rename(names.in_progress, names.pending)
        # Parent folders, too: each may be new, and the attempt that created it may have died since.
        disk.sync_names_to_root({os.path.dirname(names.pending) for names in finished})
        self._finished = []
        return [Rename(names.pending, names.visible) for names in finished]

    def _remove_left_over(self, directory: Path) -> None:
        for folder, _, files in os.walk(directory):
            for name in files:
                other = _Attempt.in_name(name)
                if other is not None and self._attempt.comes_after(
                    other, self._context.parallelism
                ):
                    path = os.path.join(folder, name)
                    logger.info("%s was left over by an attempt that died, and is removed", path)
                    Path(path).unlink(missing_ok=True)

    def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
        for bucket in list(self._open):
            file = self._open.pop(bucket)
            self._finished.append(file.names)
            try:
                file.part.abandon()
            except OSError as error:  # perhaps for the same reason as the failure before
                logger.info("%s is given up: %s", file.names.in_progress, error)
        while self._finished:
            names = self._finished.pop()
            Path(names.in_progress).unlink(missing_ok=True)
            Path(names.pending).unlink(missing_ok=True)


@contextmanager
def _failures_named(file: _OpenFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise SinkUnavailableError(
            f"cannot write {file.names.in_progress}: {error.strerror or error}"
        ) from error


class RenamingCommitter(Committer[Rename]):
    """Committer of a file sink: gives pending files their visible names. A rename that the storage
    refuses is retried. If only the visible file exists, an earlier attempt has renamed it. If
    neither exists, the task fails, unless *visible_files_may_go*: other programs may have moved or
    deleted the visible file."""

    def __init__(self, visible_files_may_go: bool = False) -> None:
        self._visible_files_may_go = visible_files_may_go

    def commit(self, requests: Sequence[CommitRequest[Rename]]) -> None:
        renamed: dict[str, list[CommitRequest[Rename]]] = {}
        for request in requests:
            hidden, visible = request.committable
            try:
                self._rename(request)
            except FileNotFoundError:
                if self._visible_files_may_go:
                    request.signal_already_committed()
                else:
                    request.signal_failed_with_unknown_reason(
                        SinkError(
                            f"a checkpoint refers to {hidden}, which is to become {visible}, and "
                            "neither file is there.  Its records are lost if nobody has moved or "
                            "deleted the visible file.  If other programs take visible files away, "
                            "say so: FileSink(…, visible_files_may_go=True)"
                        )
                    )
            except OSError as error:
                request.retry_later(error)
            else:
                renamed.setdefault(os.path.dirname(visible), []).append(request)
        for folder, done in renamed.items():
            try:
                disk.sync_names(folder)
            except OSError as error:
                for request in done:
                    request.retry_later(error)

    @staticmethod
    def _rename(request: CommitRequest[Rename]) -> None:
        """Rename a pending file.
        Raises FileNotFoundError if neither pending nor visible file exists."""
        hidden, visible = request.committable
        try:
            os.replace(hidden, visible)
        except FileNotFoundError:
            os.lstat(visible)
            request.signal_already_committed()
