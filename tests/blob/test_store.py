"""Blobs in a directory: in memory, in local files and behind pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flinkray.blob import BlobStore, BlobStoreError
from flinkray.blob.store import RecoveredBlobs
from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.ha import Directory, MemoryDirectory, open_directory
from flinkray.ha.arrow_directory import ArrowDirectory

OWNER, OTHER = BlobOwner("job-1"), BlobOwner("job-2")
KEY, SECOND = BlobKey.of(b"hello world"), BlobKey.of(b"second")


@pytest.fixture(params=["memory", "local", "pyarrow"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    if request.param == "memory":
        return MemoryDirectory()
    if request.param == "local":
        return open_directory(str(tmp_path / "not yet there"))
    return ArrowDirectory.from_uri((tmp_path / "by-arrow").as_uri())


def store_whole(store: BlobStore, owner: BlobOwner) -> None:
    store.write_part(owner, KEY, 0, b"hello ")
    store.write_part(owner, KEY, 6, b"world")
    store.complete(owner, KEY, (0, 6))


def test_complete_blob_is_recovered_with_its_parts(directory: Directory) -> None:
    store_whole(BlobStore(directory), OWNER)
    recovered = BlobStore(directory)
    assert recovered.recover().complete == {OWNER: {KEY: (0, 6)}}
    parts = [recovered.read_part(OWNER, KEY, offset) for offset in (0, 6, 7)]
    assert parts == [b"hello ", b"world", None]


def test_blob_parts_without_a_marker_are_recovered_as_unfinished_uploads(
    directory: Directory,
) -> None:
    store = BlobStore(directory)
    store_whole(store, OWNER)
    store.write_part(OTHER, KEY, 0, b"hello ")
    store.write_part(OWNER, SECOND, 0, b"sec")
    before = sorted(directory.names())
    recovered = BlobStore(directory).recover()
    assert recovered.complete == {OWNER: {KEY: (0, 6)}}
    assert recovered.strays == {(OTHER, KEY): (0,), (OWNER, SECOND): (0,)}
    assert sorted(directory.names()) == before


def test_deleting_an_owner_keeps_the_blobs_of_other_owners(directory: Directory) -> None:
    store = BlobStore(directory)
    store_whole(store, OWNER)
    store_whole(store, OTHER)
    store.delete(OWNER, {KEY: (0, 6)})
    store.delete(OWNER, {KEY: (0, 6)})
    assert store.recover().complete == {OTHER: {KEY: (0, 6)}}


def marker_of(directory: Directory) -> str:
    (marker,) = (name for name in directory.names() if name.endswith(".complete"))
    return marker


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda marker: marker.replace(b"entry\n\x02", b"entry\n\x03"), "format version 3"),
        (lambda marker: marker[:-1], "checksum"),
        (lambda marker: b"", "no flinkray entry"),
    ],
)
def test_blob_with_an_unreadable_marker_is_kept_and_reported(
    directory: Directory,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[bytes], bytes],
    why: str,
) -> None:
    store = BlobStore(directory)
    store_whole(store, OWNER)
    name = marker_of(directory)
    marker = directory.read(name)
    assert marker is not None
    directory.write(name, change(marker))
    before = sorted(directory.names())

    assert store.recover().complete == {}
    assert sorted(directory.names()) == before
    (record,) = caplog.records
    for part in (OWNER, str(KEY), directory.location(name), why):
        assert part in record.getMessage()

    directory.write(name, marker)
    assert store.recover().complete == {OWNER: {KEY: (0, 6)}}


def test_blob_marker_in_the_first_format_covers_all_existing_parts_of_the_blob(
    directory: Directory,
) -> None:
    store = BlobStore(directory)
    store_whole(store, OWNER)
    directory.write(marker_of(directory), b"1")
    assert store.recover().complete == {OWNER: {KEY: (0, 6)}}


def test_parts_that_the_marker_does_not_name_do_not_belong_to_the_blob(
    directory: Directory,
) -> None:
    """A discarded upload left them when the storage failed."""
    store = BlobStore(directory)
    store_whole(store, OWNER)
    store.write_part(OWNER, KEY, 3, b"lo wor")
    assert store.recover() == RecoveredBlobs({OWNER: {KEY: (0, 6)}}, {(OWNER, KEY): (3,)})


def test_blob_that_lacks_a_part_is_not_recovered_and_is_reported(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    store = BlobStore(directory)
    store_whole(store, OWNER)
    store.delete_parts(OWNER, KEY, (6,))
    assert store.recover().complete == {}
    assert f"{OWNER}: blob {KEY} lacks the parts at [6]" in caplog.text


def test_foreign_files_in_the_blob_directory_are_kept(directory: Directory) -> None:
    names = ["README", "job-1.notakey.complete", f"job-1.{KEY}.part", f"_.{KEY}.complete"]
    for name in names:
        directory.write(name, b"mine")
    assert BlobStore(directory).recover().complete == {}
    assert sorted(directory.names()) == sorted(names)


def test_failing_storage_raises_an_error_with_its_location_and_cause(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the directory should be")
    store = BlobStore(open_directory(str(tmp_path / "taken")))
    for call in (
        store.recover,
        lambda: store.write_part(OWNER, KEY, 0, b"x"),
        lambda: store.read_part(OWNER, KEY, 0),
    ):
        with pytest.raises(BlobStoreError, match=r"cannot (list|write|read) .*taken.*Errno"):
            call()


@pytest.mark.parametrize("text", ["", "a b", "a.b", "ä", "a/b", "x" * 65])
def test_owner_that_is_no_valid_file_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an owner"):
        BlobOwner(text)


def test_blob_key_is_parsed_from_its_text_and_other_text_is_refused() -> None:
    assert BlobKey.parse(str(KEY)) == KEY
    for text in ("", "ab-1", f"{KEY}x", str(KEY).replace("-", "_")):
        with pytest.raises(ValueError, match=r"blob key|hexadecimal"):
            BlobKey.parse(text)
