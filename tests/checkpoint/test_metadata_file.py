"""The metadata file of a checkpoint is written and read; damaged and missing files are named."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pyarrow.fs
import pytest

from flinkray.checkpoint.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    CheckpointStorageFullError,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    UnknownCheckpointFormatError,
)
from flinkray.checkpoint.handles import InlineState, OperatorSubtaskState
from flinkray.checkpoint.metadata_file import read_metadata, write_metadata
from flinkray.checkpoint.state_files import read_bytes
from flinkray.ha.directory import LocalFileSystem
from tests.checkpoint.arrow_storage import ObjectStore, mount
from tests.checkpoint.test_layout import (
    BIG,
    content,
    example,
    folder_of,
    keyed,
    metadata_with,
    storage_in,
)


def test_metadata_are_read_from_the_path_of_the_checkpoint_directory_or_its_file(root: str) -> None:
    storage = storage_in(root)
    metadata = example(storage)
    directory = storage.checkpoint_directory(7)
    path = write_metadata(directory, metadata)
    assert path == f"{directory}/_metadata"
    assert read_metadata(path) == read_metadata(directory) == metadata


def test_moved_checkpoint_directory_of_a_job_is_readable(root: str, tmp_path: Path) -> None:
    storage = storage_in(root)
    metadata = example(storage)
    write_metadata(storage.checkpoint_directory(7), metadata)
    moved = tmp_path / "elsewhere"
    shutil.move(folder_of(tmp_path), moved)
    restored = read_metadata(str(moved / "chk-7"))
    locations = [
        location
        for operator in restored.operators
        for subtask in operator.subtasks
        for location in subtask.state.locations()
    ]
    assert [content(location) for location in locations] == [BIG, BIG, b"changes", BIG, BIG]
    coordinator = restored.operators[0].coordinator
    assert coordinator is not None
    assert read_bytes(coordinator) == b"an enumerator that is large enough"


def test_metadata_are_written_to_an_object_store_in_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore()
    root = mount(monkeypatch, "counted", store, tmp_path)
    write_metadata(root, metadata_with())
    assert store.calls == ["open_output_stream"]


def test_failed_write_of_metadata_keeps_the_old_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(str(tmp_path), metadata_with())

    def fail(files: LocalFileSystem, path: str, data: bytes) -> None:
        Path(path).write_bytes(data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "write", fail)
    with pytest.raises(CheckpointStorageFullError, match=r"_metadata: .*make room"):
        write_metadata(str(tmp_path), metadata_with(OperatorSubtaskState()))
    assert read_metadata(str(tmp_path)) == metadata_with()


@pytest.mark.parametrize("change", ["cut", "flip"])
def test_damaged_metadata_raise_an_error_with_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    root = mount(monkeypatch, "other", pyarrow.fs.LocalFileSystem(), tmp_path)
    location = write_metadata(root, metadata_with(keyed(InlineState(b"state"))))
    path = tmp_path / "_metadata"
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole[:place] if change == "cut" else whole)
        if change == "flip":
            damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises((CorruptCheckpointError, UnknownCheckpointFormatError)) as caught:
            read_metadata(root)
        assert caught.value.path == location
        if place > len(b"flinkray entry\n"):
            assert isinstance(caught.value, CorruptCheckpointError)


def test_error_says_why_a_location_has_no_readable_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no such directory"):
        read_metadata(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointNotFoundError, match="no such directory"):
        read_metadata(str(tmp_path / "nowhere" / "_metadata"))
    unfinished = tmp_path / "chk-1"
    unfinished.mkdir()
    (unfinished / "0e41").write_bytes(b"state")
    with pytest.raises(IncompleteCheckpointError, match=r"never completed.*1 other"):
        read_metadata(str(unfinished))
    (tmp_path / "some files").mkdir()
    (tmp_path / "some files" / "a").touch()
    with pytest.raises(CheckpointNotFoundError, match=r"files: it is no checkpoint .*1 others"):
        read_metadata(str(tmp_path / "some files"))
    path = unfinished / "_metadata"
    path.write_bytes(b"\x49\x60\x67\x2d\x00\x00\x00\x04" + bytes(100))  # Flink's
    with pytest.raises(UnknownCheckpointFormatError, match="another system"):
        read_metadata(str(unfinished))
    write_metadata(str(unfinished), metadata_with())
    newer = bytearray(path.read_bytes())
    newer[len(b"flinkray entry\n")] += 1
    path.write_bytes(newer)
    with pytest.raises(UnknownCheckpointFormatError, match="newer flinkray"):
        read_metadata(str(unfinished))
    with pytest.raises(CheckpointStorageError, match="no file system"):
        read_metadata("gopher://hole/chk-1")


def test_directory_that_contains_checkpoints_is_refused_as_a_checkpoint(root: str) -> None:
    storage = storage_in(root)
    write_metadata(storage.checkpoint_directory(9), metadata_with())
    for location in (root, storage.directory):
        with pytest.raises(CheckpointNotFoundError, match=r"name one, such as .*/chk-9"):
            read_metadata(location)
