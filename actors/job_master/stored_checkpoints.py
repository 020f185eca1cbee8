"""The stored checkpoints of a JobMaster's job: ids, metadata, pointers, and their deletion."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any, TypeVar

from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotTaken
from flinkray.actors.shared.checkpoint_storage import checkpoint_storage_of
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.user_storage import UserStorage
from flinkray.checkpoint.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    IncompleteCheckpointError,
)
from flinkray.checkpoint.handles import FileState
from flinkray.checkpoint.layout import (
    delete_checkpoint,
    delete_directory,
    exclusive_files,
    metadata_path,
    remove_empty_directory,
    savepoint_directory,
)
from flinkray.checkpoint.metadata import CheckpointMetadata, SnapshotKind
from flinkray.checkpoint.metadata_file import read_metadata, read_whole, write_metadata
from flinkray.checkpoint.state_files import delete_state
from flinkray.core.errors import FlinkRayError, JobError
from flinkray.core.ids import JobMasterId
from flinkray.core.job_options import SAVEPOINT_DIR
from flinkray.core.locations import without_secrets
from flinkray.core.version import VERSION
from flinkray.ha import CheckpointStoreFencedError, CompletedCheckpointPointer, StoreError
from flinkray.rpc import FencedRpcEndpoint
from flinkray.scheduler.checkpoints.actions import (
    AddRestoredSavepoint,
    DiscardCheckpoint,
    DiscardDirectory,
    DiscardFiles,
    ForgetCheckpoint,
    PrepareCheckpoint,
    StoreCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import (
    CheckpointEvent,
    CheckpointIsNotStored,
    CheckpointIsStored,
    CheckpointNotPrepared,
    CheckpointPrepared,
)
from flinkray.scheduler.checkpoints.operators_with_state import operators_without_uid
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    checkpoint_of,
    savepoint,
)
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for which a failing storage operation is repeated.
After that, the checkpoint fails, or the file to be deleted stays.
"""

_RETRY_DELAY = 0.5
"""Seconds between two attempts of a storage operation."""

Discard = DiscardFiles | DiscardDirectory | DiscardCheckpoint | ForgetCheckpoint


class CheckpointsLostError(JobError):
    """Raised when the checkpoint that the job must recover from cannot be read."""


class StoredCheckpoints:
    """Stores and reads checkpoints on the JobMaster's main thread, with file access in threads.

    Only one JobMaster at a time may change the stored checkpoints: this one from :meth:`recover`
    on. When another JobMaster has taken them over, nothing is deleted any more, and unfinished
    writes are not reported.
    """

    def __init__(
        self,
        job_master: FencedRpcEndpoint[JobMasterId],
        services: ClusterServices,
        graph: JobGraph,
        *,
        told: Callable[[CheckpointEvent], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        """Create the object; :meth:`recover` must be called before anything else.
        *told* receives the result of each action. *on_fenced* is called with the reason when
        another JobMaster has taken over the stored checkpoints.
        """
        self._job_master = job_master
        self._service = job_master.rpc_service
        self._storage_of_users = UserStorage(self._service)
        self._graph = graph
        self._told = told
        self._on_fenced = on_fenced
        self._is_fenced = False
        self._storage = checkpoint_storage_of(services, graph)
        configuration = services.configuration.with_values(graph.configuration)
        self._savepoints = configuration.get(SAVEPOINT_DIR)
        self._of_job = checkpoint_of(graph.checkpoints or CheckpointConfiguration())
        owner = str(job_master.fencing_token)
        high_availability = services.high_availability
        self._pointers = high_availability.get_completed_checkpoint_store(graph.job_id, owner)
        self._ids = high_availability.get_checkpoint_id_counter(graph.job_id, owner)
        self._in_order = asyncio.Lock()
        """Held while checkpoint ids are taken or set.
        So new ids follow the id of a restored savepoint.
        """
        self._discards: deque[Discard] = deque()
        self._discarding: asyncio.Task[None] | None = None
        self._is_held = False
        self._is_released = False
        """Whether deletions are not held back any more, because the job's end is stored."""
        self._is_forgotten = False

    # --- the beginning ----------------------------------------------------------------------------

    async def recover(self) -> tuple[CompletedCheckpoint, ...]:
        """Take over the stored checkpoints from earlier JobMasters, and return their checkpoints by
        rising id.

        Waits for as long as the storage fails. Unreadable checkpoints before the last one stay.

        Raises:
            CheckpointsLostError: the last checkpoint cannot be read, or it is unknown which one is
                the last or which ids were given.
            CheckpointStoreFencedError: another JobMaster has taken over already.
        """
        try:
            await self._insist("take over the count of checkpoints", self._ids.start)
            found = await self._insist("take over the checkpoints", self._pointers.recover)
        except FlinkRayError as error:
            if isinstance(error, CheckpointStoreFencedError):
                raise
            raise CheckpointsLostError(self._graph.job_id, str(error)) from error
        if found.is_last_unreadable:
            raise CheckpointsLostError(
                self._graph.job_id,
                f"{found.unreadable[-1]}; it is the last one.  Start the job anew from a "
                f"checkpoint in {self._storage.directory}",
            )
        for unreadable in found.unreadable:
            log.warning("%s; the checkpoint is left alone", unreadable)
        recovered = []
        for pointer in found.records:
            is_last = pointer is found.records[-1]
            checkpoint = await self._read(pointer, is_last=is_last)
            if checkpoint is not None:
                recovered.append(checkpoint)
        if recovered:
            log.info("%s goes on from %s", self._graph.text, without_secrets(recovered[-1].path))
        return tuple(recovered)

    async def begun_after(self, checkpoint_id: int, most: int) -> dict[int, str]:
        """Return id -> directory of the checkpoints that earlier JobMasters began after
        *checkpoint_id*.

        At most the last *most* ids are included. Call this after :meth:`recover`.

        Raises:
            CheckpointsLostError: it cannot be read which ids were given.
            CheckpointStoreFencedError: another JobMaster has taken over already.
        """
        try:
            next_id = await self._insist("read the count of checkpoints", self._ids.get)
        except FlinkRayError as error:
            if isinstance(error, CheckpointStoreFencedError):
                raise
            raise CheckpointsLostError(self._graph.job_id, str(error)) from error
        first = max(checkpoint_id + 1, next_id - most)
        return {n: self._storage.checkpoint_directory(n) for n in range(first, next_id)}

    async def _read(
        self, pointer: CompletedCheckpointPointer, *, is_last: bool
    ) -> CompletedCheckpoint | None:
        async def read() -> CheckpointMetadata:
            return await self._service.run_blocking(read_metadata, pointer.path)

        try:
            metadata = await self._insist(f"read checkpoint {pointer.checkpoint_id}", read)
        except CheckpointStorageError as error:
            text = f"its checkpoint {pointer.checkpoint_id} cannot be read: {error}"
            if is_last:
                raise CheckpointsLostError(
                    self._graph.job_id,
                    f"{text}.  Start the job anew from another one in {self._storage.directory}",
                ) from error
            log.warning("%s: %s; it is left alone", self._graph.text, text)
            return None
        return CompletedCheckpoint(metadata, self._properties_of(metadata), pointer.path)

    def _properties_of(self, metadata: CheckpointMetadata) -> CheckpointProperties:
        is_own = metadata.kind is SnapshotKind.CHECKPOINT and metadata.job_id == self._graph.job_id
        return self._of_job if is_own else savepoint()

    def add_restored(self, action: AddRestoredSavepoint) -> None:
        """Begin to store the restored savepoint as the job's latest checkpoint.
        New checkpoint ids are taken only after this, and are greater than the savepoint's id.
        """
        self._create_task(self._add_restored(action.checkpoint), "keep the savepoint")

    async def read_savepoint(self, location: str) -> CompletedCheckpoint:
        """Read a savepoint, or another job's checkpoint, and check that all its files are complete.

        Raises:
            CheckpointStorageError: there is none, or it is incomplete, or its storage hangs.
        """

        async def read() -> CheckpointMetadata:
            return await self._storage_of_users.run(read_whole, location)

        metadata = await self._try(f"read {without_secrets(location)}", read, PATIENCE)
        return CompletedCheckpoint(metadata, savepoint(), metadata_path(location))

    async def _add_restored(self, checkpoint: CompletedCheckpoint) -> None:
        checkpoint_id = checkpoint.checkpoint_id
        async with self._in_order:
            what = f"keep savepoint {without_secrets(checkpoint.path)}"
            await self._insist(what, lambda: self._ids.set_count(checkpoint_id + 1))
            pointer = CompletedCheckpointPointer(self._graph.job_id, checkpoint_id, checkpoint.path)
            await self._insist(what, lambda: self._pointers.add(pointer))

    # --- a checkpoint -----------------------------------------------------------------------------

    def prepare(self, action: PrepareCheckpoint) -> None:
        """Begin to choose the id and the directory of a new checkpoint. Reports CheckpointPrepared
        or CheckpointNotPrepared."""
        self._create_task(self._prepare(action), "prepare a checkpoint")

    async def _prepare(self, action: PrepareCheckpoint) -> None:
        try:
            async with self._in_order:
                checkpoint_id = await self._try("take an id", self._ids.get_and_increment, PATIENCE)
        except CheckpointStoreFencedError:
            raise
        except FlinkRayError as error:
            self._told(CheckpointNotPrepared(action.number, str(error)))
            return
        directory = action.directory or self._storage.checkpoint_directory(checkpoint_id)
        self._told(CheckpointPrepared(action.number, checkpoint_id, directory))

    async def place_of_savepoint(
        self, request: SnapshotRequest, first: int = 1
    ) -> str | SnapshotTaken:
        """Return the directory into which the requested savepoint is to be written. The directories
        of the attempts before *first* are not looked at: their savepoints failed.

        Returns the savepoint instead if an earlier JobMaster has completed it for the same request.
        Not if the savepoint was to stop the job: the job has continued, and needs another
        savepoint.

        Raises:
            JobError: no directory is named, or the name is not a directory.
            CheckpointStorageError: the directory cannot be used.
        """
        for attempt in count(first):
            directory = self._savepoint_directory(request, attempt)

            async def read(directory: str = directory) -> CheckpointMetadata:
                return await self._storage_of_users.run(read_metadata, directory)

            try:
                metadata = await self._try(f"look for {without_secrets(directory)}", read, PATIENCE)
            except (CheckpointNotFoundError, IncompleteCheckpointError):
                return directory
            if not request.kind.stops_the_job:
                return SnapshotTaken(directory, operators_without_uid(metadata))
        raise AssertionError("unreachable")

    def _savepoint_directory(self, request: SnapshotRequest, attempt: int) -> str:
        target = request.target_directory or self._savepoints
        if target is None:
            raise JobError(
                self._graph.job_id,
                "it is not said where the savepoint is to be: name a directory, or set "
                f"{SAVEPOINT_DIR.key}",
            )
        name = request.trigger_id.hex()[:12]
        if attempt > 1:
            name += f"-{attempt}"
        try:
            return savepoint_directory(target, self._graph.job_id, name)
        except ValueError as error:
            raise JobError(self._graph.job_id, f"{target!r} is no directory: {error}") from error

    def store(self, action: StoreCheckpoint) -> None:
        """Begin to write a checkpoint's metadata and the pointer to it.
        Reports CheckpointIsStored or CheckpointIsNotStored.
        """
        self._create_task(self._store(action), "store a checkpoint")

    async def _store(self, action: StoreCheckpoint) -> None:
        metadata = replace(action.metadata, flinkray_version=VERSION)
        action = replace(action, metadata=metadata)

        async def write() -> str:
            return await self._service.run_blocking(write_metadata, action.directory, metadata)

        checkpoint_id = metadata.checkpoint_id
        what = f"store checkpoint {checkpoint_id}"
        try:
            path = await self._try(what, write, PATIENCE)
        except CheckpointStorageError as error:  # no pointer leads to it, now or later
            self._told(CheckpointIsNotStored(action, str(error)))
            return
        if action.properties.is_recovered_from:
            pointer = CompletedCheckpointPointer(self._graph.job_id, checkpoint_id, path)
            await self._insist(what, lambda: self._pointers.add(pointer))
        self._told(CheckpointIsStored(action, path))

    # --- what is not needed any more --------------------------------------------------------------

    def discard(self, action: Discard) -> None:
        """Queue checkpoints or files for deletion.
        What the storage fails to delete is left there.
        """
        self._discards.append(action)
        self._begin_to_discard()

    def hold(self) -> None:
        """Begin no deletions before :meth:`release`: another JobMaster may have to recover from the
        checkpoints. A deletion that is under way continues. Does nothing after :meth:`release`."""
        self._is_held = not self._is_released

    def release(self) -> None:
        """Carry out the deletions that :meth:`hold` has delayed."""
        self._is_held, self._is_released = False, True
        self._begin_to_discard()

    def _begin_to_discard(self) -> None:
        if self._discards and self._discarding is None and not self._is_held:
            self._discarding = self._create_task(self._discard_all(), "discard checkpoints")

    async def _discard_all(self) -> None:
        while self._discards and not self._is_held:
            action = self._discards.popleft()
            try:
                await self._discard(action)
            except (StoreError, CheckpointStorageError) as error:
                log.warning(
                    "%s: checkpoint files that are not needed any more stay: %s",
                    self._graph.text,
                    error,
                )
        self._discarding = None

    async def _discard(self, action: Discard) -> None:
        match action:
            case DiscardCheckpoint(checkpoint):
                await self._remove_pointer(checkpoint)
                files = tuple(exclusive_files(checkpoint.metadata))
                await self._delete(lambda: delete_checkpoint(checkpoint.path, files))
            case ForgetCheckpoint(checkpoint):
                await self._remove_pointer(checkpoint)
            case DiscardFiles(files):
                await self._check_owner()
                await self._delete(lambda: _delete_files(files))
            case DiscardDirectory(directory):
                await self._check_owner()
                await self._delete(lambda: delete_directory(directory))

    async def _remove_pointer(self, checkpoint: CompletedCheckpoint) -> None:
        what, checkpoint_id = f"forget {without_secrets(checkpoint.path)}", checkpoint.checkpoint_id
        await self._try(what, lambda: self._pointers.remove(checkpoint_id), PATIENCE)

    async def _check_owner(self) -> None:
        if not self._is_forgotten:  # afterwards nobody owns them any more
            await self._try("look whose checkpoints these are", self._pointers.check, PATIENCE)

    async def _delete(self, delete: Callable[[], None]) -> None:
        async def work() -> None:
            await self._service.run_blocking(delete)

        await self._try("delete what is not needed any more", work, PATIENCE)

    async def discarded(self) -> None:
        """Wait until everything in the queue is deleted, or given up because the storage fails."""
        if self._discarding is not None:
            await asyncio.wait([self._discarding])

    async def forget_job(self) -> None:
        """Delete the pointers to the job's checkpoints, and its counter of checkpoint ids, because
        the job has ended and no JobMaster will recover it. Retained checkpoints stay for the user.
        A checkpoint that is being prepared is dropped."""
        await self.discarded()
        shared, directory = self._storage.shared_directory, self._storage.directory
        try:
            async with self._in_order:  # waits for an id that is being taken
                await self._try("forget the checkpoints", self._pointers.discard, PATIENCE)
                self._is_forgotten = True
                await self._try("forget the count of checkpoints", self._ids.discard, PATIENCE)
            await self._delete(lambda: _remove_empty(shared, directory))
        except (StoreError, CheckpointStorageError) as error:
            log.warning("%s: something of its checkpoints stays: %s", self._graph.text, error)
        except CheckpointStoreFencedError as error:
            self._fenced(error)

    # --- storage that fails -----------------------------------------------------------------------

    async def _insist(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self._try(what, work, inf)

    async def _try(self, what: str, work: Callable[[], Awaitable[T]], patience: float) -> T:
        """Return the result of *work*, which is repeated for *patience* seconds while it fails.
        *what* says what the work does, for the log: a verb and its object.

        Raises the error of *work*: at once if a repetition cannot help, else after that time.
        """
        now = self._job_master.counted_time
        deadline = now() + patience
        while True:
            try:
                return await work()
            except (StoreError, CheckpointStorageError) as error:
                if not error.retryable or now() >= deadline:
                    raise
                log.warning("%s: cannot %s yet: %s", self._graph.text, what, error)
            await self._service.pause(_RETRY_DELAY)

    def _create_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except CheckpointStoreFencedError as error:
                self._fenced(error)

        task = self._job_master.create_task(guarded(), name)
        # in case the task was dropped before it began
        task.add_done_callback(lambda _: work.close())
        return task

    def _fenced(self, error: CheckpointStoreFencedError) -> None:
        if self._is_forgotten:  # it was begun before the job was over
            log.info("%s: what came too late is left: %s", self._graph.text, error)
        elif not self._is_fenced:
            self._is_fenced = True
            self._on_fenced(str(error))


def _delete_files(files: Iterable[FileState]) -> None:
    for file in files:
        delete_state(file)


def _remove_empty(*directories: str) -> None:
    for directory in directories:
        remove_empty_directory(directory)
