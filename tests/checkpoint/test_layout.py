"""Checkpoints in directories: layout, files of state, deletion, and what can go wrong."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.fs
import pytest

from flinkray.checkpoint import locations
from flinkray.checkpoint.arrow_files import ArrowStateFiles
from flinkray.checkpoint.errors import (
    CheckpointAccessError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    CheckpointStorageFullError,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    UnknownCheckpointFormatError,
)
from flinkray.checkpoint.handles import (
    ChannelStateHandle,
    FileState,
    InlineState,
    KeyedStateHandle,
    KeyedStatePart,
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    StateLocation,
)
from flinkray.checkpoint.layout import (
    JobCheckpointStorage,
    delete_checkpoint,
    delete_checkpoints_of_job,
    delete_directory,
    exclusive_files,
    find_checkpoints,
    savepoint_directory,
)
from flinkray.checkpoint.metadata import (
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    MasterState,
    SnapshotKind,
)
from flinkray.checkpoint.metadata_file import read_metadata, read_whole, write_metadata
from flinkray.checkpoint.state_files import (
    StateOutput,
    StateWriter,
    delete_state,
    files_at,
    open_state,
    read_bytes,
    read_carried,
)
from flinkray.core.ids import JobID

JOB = JobID(b"j" * 16)
BIG = b"large state " * 10


def storage_in(root: str, threshold: int = 20) -> JobCheckpointStorage:
    return JobCheckpointStorage(root, JOB, threshold)


def folder_of(tmp_path: Path) -> Path:
    """Of the job, on disk."""
    return tmp_path / "root" / JOB.hex()


def written(output: StateOutput, *parts: bytes) -> StateLocation:
    with output:
        for part in parts:
            output.write(part)
        return output.finish()


def content(location: StateLocation) -> bytes:
    with open_state(location) as state:
        return state.read(0, state.size)


def metadata_with(
    *states: OperatorSubtaskState, coordinator: StateLocation | None = None
) -> CheckpointMetadata:
    subtasks = tuple(CheckpointedSubtask(place, state) for place, state in enumerate(states))
    operator = CheckpointedOperator("ab" * 16, "sum", "sum", 2, 128, subtasks, coordinator)
    return CheckpointMetadata(
        JOB, 7, 1_000, SnapshotKind.CHECKPOINT, (operator,), (MasterState("hook", b"state"),)
    )


def keyed(*locations: StateLocation) -> OperatorSubtaskState:
    parts = tuple(KeyedStatePart(it, place == 0) for place, it in enumerate(locations))
    return OperatorSubtaskState(keyed_state=(KeyedStateHandle(0, 63, parts),))


def example(storage: JobCheckpointStorage) -> CheckpointMetadata:
    """A checkpoint with state in every place."""
    writer = storage.checkpoint_writer(7)
    named = NamedOperatorState("splits", OperatorStateMode.SPLIT_DISTRIBUTE, (0, 5))
    one = OperatorSubtaskState(
        (OperatorStateHandle(written(writer.exclusive(), BIG), (named,)),),
        keyed(written(writer.shared(), BIG), InlineState(b"changes")).keyed_state,
        (ChannelStateHandle(0, 1, written(writer.exclusive(), BIG)),),
        (ChannelStateHandle(0, 2, written(writer.exclusive(), BIG)),),
    )
    coordinator = writer.write_bytes(b"an enumerator that is large enough")
    return metadata_with(one, OperatorSubtaskState(), coordinator=coordinator)


# --- files of state


def test_small_state_is_stored_in_its_handle_and_large_state_in_a_file(
    root: str, tmp_path: Path
) -> None:
    writer = storage_in(root).checkpoint_writer(7)
    assert written(writer.exclusive(), b"small") == InlineState(b"small")
    assert written(writer.exclusive()) == InlineState(b"")
    assert written(writer.exclusive(), b"x" * 19) == InlineState(b"x" * 19)
    assert not folder_of(tmp_path).exists()
    of_one = written(writer.exclusive(), b"x" * 12, b"y" * 8)
    of_all = written(writer.shared(), BIG, BIG)
    assert isinstance(of_one, FileState)
    assert isinstance(of_all, FileState)
    assert (of_one.size, of_all.size) == (20, 2 * len(BIG))
    assert content(of_one) == b"x" * 12 + b"y" * 8
    assert content(of_all) == BIG + BIG
    (exclusive,) = (folder_of(tmp_path) / "chk-7").iterdir()
    (shared,) = (folder_of(tmp_path) / "shared").iterdir()
    assert (of_one.path.endswith(exclusive.name), of_all.path.endswith(shared.name)) == (True, True)


def test_file_added_to_a_savepoint_is_read_back_and_damage_raises_an_error(
    root: str, tmp_path: Path
) -> None:
    writer = storage_in(root).savepoint_writer(f"{root}/savepoint-1")
    small = writer.write_carried("rows/a", [b"few ", b"bytes"])
    large = writer.write_carried("rows/b", [BIG, BIG])
    assert b"".join(read_carried(small)) == b"few bytes"
    assert b"".join(read_carried(large)) == BIG + BIG
    assert isinstance(small.location, FileState), "there may be many"
    assert isinstance(large.location, FileState)
    (path,) = tmp_path.rglob(locations.name_of(large.location.path))
    path.write_bytes(BIG + b"?" * len(BIG))
    with pytest.raises(CorruptCheckpointError, match="its checksum does not match"):
        list(read_carried(large))


def test_moved_savepoint_still_finds_the_files_that_were_added_to_it(
    root: str, tmp_path: Path
) -> None:
    directory = f"{root}/savepoint-1"
    carried = storage_in(root).savepoint_writer(directory).write_carried("rows", [BIG])
    write_metadata(directory, metadata_with(OperatorSubtaskState(files=(carried,))))
    (there,) = (path.parent for path in tmp_path.rglob("_metadata"))
    there.rename(there.with_name("moved"))
    metadata = read_whole(f"{root}/moved")
    (found,) = metadata.operators[0].subtasks[0].state.files
    assert b"".join(read_carried(found)) == BIG
    assert list(exclusive_files(metadata)) == [found.location]


def test_ranges_of_stored_state_are_read_and_a_range_beyond_its_end_is_refused(root: str) -> None:
    for threshold in (0, 1_000):
        location = written(storage_in(root, threshold).checkpoint_writer(7).shared(), b"0123456789")
        with open_state(location) as state:
            assert (state.read(2, 3), state.read(9, 1), state.read(0, 0)) == (b"234", b"9", b"")
            with pytest.raises(CorruptCheckpointError, match=r"3 bytes from byte 8 on .* 2 are"):
                state.read(8, 3)


def test_unfinished_state_output_leaves_no_file(root: str, tmp_path: Path) -> None:
    """OS-07"""
    writer = storage_in(root).checkpoint_writer(7)
    with writer.exclusive() as output:
        output.write(BIG)
    output = writer.shared()
    output.write(BIG)

    def fail() -> None:
        with output:
            raise KeyError("cancelled")

    with pytest.raises(KeyError):
        fail()
    assert [path for path in folder_of(tmp_path).rglob("*") if path.is_file()] == []


def test_state_files_get_different_names_and_no_file_is_overwritten(root: str) -> None:
    writer = storage_in(root, 0).checkpoint_writer(7)
    again = StateWriter(root, root, 0, name=lambda: "name")
    paths = {written(writer.shared(), b"x") for _ in range(20)}
    assert len(paths) == 20
    if root.startswith("/"):
        written(again.shared(), b"x")
        with pytest.raises(CheckpointStorageError, match="name"):
            written(again.shared(), b"y")


def test_files_and_directories_are_synced_before_their_location_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    location = written(storage_in(str(tmp_path), 0).checkpoint_writer(7).shared(), BIG)
    assert isinstance(location, FileState)
    shared = Path(location.path).parent
    expected = [str(shared.parent), str(tmp_path), location.path, str(shared)]
    assert [path for path in synced if path.startswith(str(tmp_path))] == expected
    synced.clear()
    path = write_metadata(str(shared.parent / "chk-7"), metadata_with(keyed(location)))
    assert synced[-1] == str(Path(path).parent)
    assert str(shared.parent) in synced
    assert any(name.startswith(path) for name in synced)


def test_damaged_coordinator_state_of_a_checkpoint_is_refused_when_read(root: str) -> None:
    for threshold in (0, 1_000):
        writer = storage_in(root, threshold).checkpoint_writer(7)
        for data in (b"", b"an enumerator", BIG):
            assert read_bytes(writer.write_bytes(data)) == data
    whole = storage_in(root, 1_000).checkpoint_writer(7).write_bytes(b"an enumerator")
    assert isinstance(whole, InlineState)
    for place in range(len(whole.data)):
        flipped = bytearray(whole.data)
        flipped[place] ^= 1
        for damaged in (bytes(flipped), whole.data[:place]):
            with pytest.raises((CorruptCheckpointError, UnknownCheckpointFormatError)):
                read_bytes(InlineState(damaged))


# --- finding and deleting


def test_complete_checkpoints_are_found_in_the_order_of_their_ids(root: str) -> None:
    storage = storage_in(root)
    assert find_checkpoints(root) == []
    for checkpoint_id in (9, 100, 10):
        write_metadata(storage.checkpoint_directory(checkpoint_id), metadata_with())
    written(storage_in(root, 0).checkpoint_writer(11).exclusive(), b"of a pending one")
    written(storage_in(root, 0).checkpoint_writer(11).shared(), b"shared")
    savepoint = savepoint_directory(storage.directory, JOB, "0123456789ab")
    assert savepoint.endswith(f"/savepoint-{JOB.hex()[:6]}-0123456789ab")
    write_metadata(savepoint, metadata_with())
    expected = [*(storage.checkpoint_directory(n) for n in (9, 10, 100)), savepoint]
    assert find_checkpoints(storage.directory) == find_checkpoints(root) == expected
    for location in (storage.checkpoint_directory(11), storage.shared_directory):
        assert find_checkpoints(location) == []


def test_deleting_a_checkpoint_keeps_files_of_others_and_shared_files(
    root: str, tmp_path: Path
) -> None:
    storage = storage_in(root)
    metadata = example(storage)
    directory = storage.checkpoint_directory(7)
    write_metadata(directory, metadata)
    files = list(exclusive_files(metadata))
    assert len(files) == 4
    assert all(file.path.startswith(directory) for file in files)
    foreign = folder_of(tmp_path) / "chk-7" / "somebody's"
    foreign.write_bytes(b"notes")
    for _ in range(2):
        delete_checkpoint(directory, files)
        assert list((folder_of(tmp_path) / "chk-7").iterdir()) == [foreign]
    foreign.unlink()
    delete_checkpoint(directory, files)
    assert not (folder_of(tmp_path) / "chk-7").exists()
    (shared,) = (folder_of(tmp_path) / "shared").iterdir()
    state = metadata.operators[0].subtasks[0].state
    of_state: list[StateLocation] = [*state.shared_files(), InlineState(b"nothing to delete")]
    for location in of_state:
        delete_state(location)
    assert not shared.exists()


def test_delete_directory_removes_all_files_of_a_checkpoint_but_shared_ones(
    root: str, tmp_path: Path
) -> None:
    storage = storage_in(root)
    directory = storage.checkpoint_directory(7)
    delete_directory(directory)
    write_metadata(directory, example(storage))
    (folder_of(tmp_path) / "chk-7" / "_metadata.1.unfinished").write_bytes(b"of one that died")
    for _ in range(2):
        delete_directory(directory)
        assert not (folder_of(tmp_path) / "chk-7").exists()
    assert len(list((folder_of(tmp_path) / "shared").iterdir())) == 1


def test_metadata_are_deleted_before_the_files_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = storage_in(str(tmp_path))
    metadata = example(storage)
    directory = storage.checkpoint_directory(7)
    write_metadata(directory, metadata)

    def refuse(location: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", location)

    monkeypatch.setattr(files_at(directory), "delete", refuse)
    ways: tuple[Callable[[], None], ...] = (
        lambda: delete_checkpoint(directory, exclusive_files(metadata)),
        lambda: delete_directory(directory),
    )
    for delete in ways:
        write_metadata(directory, metadata)
        with pytest.raises(CheckpointAccessError, match="the right to delete"):
            delete()
        with pytest.raises(IncompleteCheckpointError):
            read_metadata(directory)


def test_file_that_cannot_be_deleted_does_not_stop_deletion_of_other_checkpoints(
    root: str, tmp_path: Path
) -> None:
    """The checkpoints after it, and all shared files, were never deleted."""
    storage = storage_in(root)
    for checkpoint_id in (1, 2):
        written(storage.checkpoint_writer(checkpoint_id).shared(), BIG)
        write_metadata(storage.checkpoint_directory(checkpoint_id), metadata_with())
    somebody_s = folder_of(tmp_path) / "chk-1" / "notes"
    somebody_s.mkdir()
    (somebody_s / "a note").touch()
    with pytest.raises(CheckpointStorageError, match="notes"):
        delete_checkpoints_of_job(storage.directory)
    assert [path.name for path in folder_of(tmp_path).iterdir()] == ["chk-1"]


def test_percent_encoded_uri_leads_to_the_same_file_whatever_directory_was_opened(
    tmp_path: Path,
) -> None:
    """A process that had used another directory of the bucket before wrote a savepoint to a wrong
    path, and the savepoint was not found later."""
    for first in ("a%20b", "c%20d", "plain"):
        base = tmp_path / unquote(first)
        base.mkdir(exist_ok=True)
        files = ArrowStateFiles(pyarrow.fs.LocalFileSystem(), str(base), f"s3://bucket/{first}")
        output = files.create("s3://bucket/c%20d/savepoint/file")
        output.write(b"1")
        output.close()
        assert (tmp_path / "c d" / "savepoint" / "file").read_bytes() == b"1"
        files.delete("s3://bucket/c%20d/savepoint/file")


# --- storage that fails


def test_missing_or_truncated_state_file_raises_an_error_with_its_name(
    root: str, tmp_path: Path
) -> None:
    location = written(storage_in(root).checkpoint_writer(7).exclusive(), BIG)
    assert isinstance(location, FileState)
    (file,) = (folder_of(tmp_path) / "chk-7").iterdir()
    file.write_bytes(BIG[:-1])
    with pytest.raises(CorruptCheckpointError, match=rf"{file.name}: it has {len(BIG) - 1} bytes"):
        content(location)
    file.unlink()
    with pytest.raises(CheckpointNotFoundError, match=f"{file.name}: it is not there"):
        content(location)


class _Failing:
    """A file on a disk that gives an error."""

    def __init__(self, output: Any, number: int) -> None:
        self._output = output
        self._number = number

    def write(self, data: bytes) -> None:
        self._output.write(data[:5])
        raise OSError(self._number, os.strerror(self._number))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


@pytest.mark.parametrize(
    ("number", "error", "way_out"),
    [
        (errno.ENOSPC, CheckpointStorageFullError, "make room"),
        (errno.EDQUOT, CheckpointStorageFullError, "make room"),
        (errno.EACCES, CheckpointAccessError, "the right to write"),
        (errno.EROFS, CheckpointAccessError, "mount it for writing"),
        (errno.EIO, CheckpointStorageError, "Input/output error"),
    ],
)
def test_failed_write_of_state_leaves_no_file_and_names_the_path(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[CheckpointStorageError],
    way_out: str,
) -> None:
    files = files_at(str(tmp_path))
    create = files.create
    monkeypatch.setattr(files, "create", lambda location: _Failing(create(location), number))
    with pytest.raises(error, match=way_out) as caught:
        written(storage_in(str(tmp_path)).checkpoint_writer(7).shared(), BIG)
    assert caught.value.path.startswith(f"{tmp_path}/{JOB.hex()}/shared/")
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (error, str(caught.value))


def test_file_at_the_path_of_a_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with pytest.raises(CheckpointStorageError, match=f"{tmp_path}/root"):
        written(storage_in(str(tmp_path / "root")).checkpoint_writer(7).shared(), BIG)
    with pytest.raises(CheckpointStorageError, match=f"{tmp_path}/root"):
        write_metadata(str(tmp_path / "root" / "chk-1"), metadata_with())


def test_deleting_the_checkpoints_of_a_job_keeps_its_savepoints(root: str, tmp_path: Path) -> None:
    """Also deleted: complete and partial checkpoints of a JobMaster that died."""
    storage = storage_in(root)
    for checkpoint_id in (1, 2):
        writer = storage.checkpoint_writer(checkpoint_id)
        state = keyed(written(writer.shared(), BIG))
        written(writer.exclusive(), BIG)
        if checkpoint_id == 1:
            write_metadata(storage.checkpoint_directory(1), metadata_with(state))
    savepoint = savepoint_directory(storage.directory, JOB)
    write_metadata(savepoint, metadata_with())
    delete_checkpoints_of_job(storage.directory)
    assert find_checkpoints(root) == [savepoint]
    assert len(list(folder_of(tmp_path).iterdir())) == 1
    delete_directory(savepoint)
    delete_checkpoints_of_job(storage.directory)
    assert not folder_of(tmp_path).exists()
    delete_checkpoints_of_job(storage.directory)
