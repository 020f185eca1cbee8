"""Stores in a directory: what is synced, and writes that are cancelled."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pytest

from flinkray.checkpoint.files import LocalStateFiles
from flinkray.core.ids import JobID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha import StandaloneHaServices, open_directory
from flinkray.ha.arrow_directory import ArrowDirectory
from flinkray.ha.directory import UNFINISHED, FileDirectory, LocalDirectory, LocalFileSystem
from flinkray.testing.simulation import Simulation, simulate


class _Recording(LocalFileSystem):
    """Notes the steps that change something."""

    def __init__(self, root: Path) -> None:
        self.steps: list[str] = []
        self._root = root

    def _note(self, what: str, *paths: str) -> None:
        names = [os.path.relpath(path, self._root) for path in paths]
        self.steps.append(" ".join([what, *names]))

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        self._note("make", path)

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data)
        self._note("write", path)

    def sync(self, path: str) -> None:
        super().sync(path)
        self._note("sync", path)

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        self._note("rename", path, new_path)

    def delete(self, path: str) -> None:
        super().delete(path)
        self._note("delete", path)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._note("sync names of", path)


WRITTEN = [
    "write a/b/entry.me.unfinished",
    "sync a/b/entry.me.unfinished",
    "rename a/b/entry.me.unfinished a/b/entry",
    "sync names of a/b",
]


def test_write_syncs_the_content_before_the_name_and_the_name_before_returning(
    tmp_path: Path,
) -> None:
    files = _Recording(tmp_path)
    directory = FileDirectory(files, str(tmp_path / "a" / "b"), "me")
    directory.write("entry", b"1")
    made = ["make a", "sync names of .", "make a/b", "sync names of a"]
    assert files.steps[-len(made + WRITTEN) :] == made + WRITTEN
    files.steps.clear()
    directory.write("entry", b"2")
    assert files.steps == WRITTEN


def test_existing_parent_directory_is_synced_before_a_write(tmp_path: Path) -> None:
    """The process that created it may have died before the sync: an accepted job was lost with it
    (seed 31098 of ``test_every_job_ends_whatever_goes_wrong``)."""
    (tmp_path / "a").mkdir()
    files = _Recording(tmp_path)
    FileDirectory(files, str(tmp_path / "a" / "b"), "me").write("entry", b"1")
    assert files.steps.index("sync names of .") < files.steps.index("make a/b")
    assert files.steps.index("sync names of ..") < files.steps.index("sync names of .")


def test_file_system_that_cannot_sync_directories_is_accepted() -> None:
    descriptor = os.open("/proc", os.O_RDONLY)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        os.fsync(descriptor)
    os.close(descriptor)
    LocalFileSystem().sync_directory("/proc")


class _Broken(_Recording):
    """The names in one directory cannot be made durable."""

    def __init__(self, root: Path, broken: Path) -> None:
        super().__init__(root)
        self._broken = str(broken)

    def sync_directory(self, path: str) -> None:
        if path == self._broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().sync_directory(path)


def test_write_fails_if_its_parent_directory_cannot_be_synced(tmp_path: Path) -> None:
    directory = FileDirectory(_Broken(tmp_path, tmp_path), str(tmp_path / "a"), "me")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        directory.write("entry", b"1")
    assert not (tmp_path / "a" / "entry").exists()


def test_read_syncs_the_directory_of_an_entry_whose_write_failed_before_the_sync(
    tmp_path: Path,
) -> None:
    """Otherwise a Dispatcher acknowledges a cancel that it finds stored but that a power loss
    removes (seed 33397 of ``test_every_job_ends_whatever_goes_wrong``)."""
    broken = FileDirectory(_Broken(tmp_path, tmp_path), str(tmp_path), "first")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        broken.write("entry", b"1")
    for reads in (broken.read, lambda _: broken.names()):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            reads("entry")
    files = _Recording(tmp_path)
    directory = FileDirectory(files, str(tmp_path), "second")
    assert directory.read("entry") == b"1"
    assert files.steps == ["sync names of ."]
    assert directory.names() == ["entry"]
    assert files.steps == ["sync names of ."] * 2


def test_missing_directory_has_no_entries(tmp_path: Path) -> None:
    directory = LocalDirectory(tmp_path / "a")
    assert directory.read("entry") is None
    assert directory.names() == []


def test_file_deleted_during_a_directory_listing_does_not_hide_other_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example the unfinished file of a writer: a Dispatcher that listed the stored jobs found
    none, and a JobMaster no checkpoint."""
    directory = LocalDirectory(tmp_path)
    directory.write("entry", b"1")
    unfinished = tmp_path / f"other.7{UNFINISHED}"
    scan = os.scandir

    class Late:
        """Its entries are looked at when one of them is there no more."""

        def __init__(self, path: str) -> None:
            unfinished.write_bytes(b"2")
            with scan(path) as entries:
                self._entries = list(entries)
            unfinished.unlink()

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            return iter(self._entries)

        def __enter__(self) -> Late:
            return self

        def __exit__(self, *_: object) -> None:
            self._entries.clear()

    monkeypatch.setattr(os, "scandir", Late)
    assert directory.names() == ["entry"]
    assert LocalStateFiles().sizes(str(tmp_path)) == {"entry": 1}


def test_deletion_is_synced_before_it_returns(tmp_path: Path) -> None:
    files = _Recording(tmp_path)
    directory = FileDirectory(files, str(tmp_path), "me")
    directory.write("entry", b"")
    files.steps.clear()
    directory.delete("entry")
    assert files.steps == ["delete entry", "sync names of ."]


def test_deletion_of_an_entry_that_is_already_gone_still_syncs_the_directory(
    tmp_path: Path,
) -> None:
    """Otherwise the graph of an ended job comes back after a power loss, if the sync of the first
    deletion failed (seed 50725)."""
    files = _Recording(tmp_path)
    LocalDirectory(tmp_path).delete("entry")
    FileDirectory(files, str(tmp_path), "me").delete("entry")
    assert files.steps == ["delete entry", "sync names of ."]
    FileDirectory(files, str(tmp_path / "nowhere"), "me").delete("entry")


def test_write_creates_a_deleted_directory_again(tmp_path: Path) -> None:
    directory = LocalDirectory(tmp_path / "a" / "b")
    directory.write("entry", b"1")
    LocalDirectory(tmp_path / "a").delete_all()
    directory.write("entry", b"2")
    assert directory.read("entry") == b"2"


def test_write_calls_fsync_for_the_file_and_its_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    LocalDirectory(tmp_path).write("entry", b"1")
    entry, folder = (path.stat().st_ino for path in (tmp_path / "entry", tmp_path))
    assert synced[-3:] == [tmp_path.parent.stat().st_ino, entry, folder]


class _Full(LocalFileSystem):
    """Writes a part, as a full one does."""

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_unfinished_file_is_not_listed_as_an_entry(tmp_path: Path) -> None:
    """Its writer may have died."""
    directory = LocalDirectory(tmp_path)
    directory.write("entry", b"content")
    (tmp_path / f"other.1{UNFINISHED}").write_bytes(b"con")
    assert directory.names() == ["entry"]


def test_failed_write_leaves_no_unfinished_file(tmp_path: Path) -> None:
    LocalDirectory(tmp_path).write("entry", b"before")
    with pytest.raises(OSError, match="No space left"):
        FileDirectory(_Full(), str(tmp_path), "me").write("entry", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]
    assert LocalDirectory(tmp_path).read("entry") == b"before"


def test_failed_write_through_pyarrow_leaves_no_unfinished_file(tmp_path: Path) -> None:
    """A directory has the name of the entry, so the write fails."""
    (tmp_path / "entry" / "in it").mkdir(parents=True)
    directory = ArrowDirectory(pyarrow.fs.LocalFileSystem(), str(tmp_path), tmp_path.as_uri())
    with pytest.raises(OSError, match="entry"):
        directory.write("entry", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


@stored("tests.test_cancelled_writes.Graph")
@message
class Graph:
    """What is stored."""

    job_id: JobID
    version: int


@simulate(seeds=30)
async def test_write_after_a_cancelled_write_is_the_one_that_is_stored(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    storage = open_directory("simulated://shared/cluster")
    store = StandaloneHaServices(storage, service.executor).get_job_graph_store(Graph)
    job_id = JobID.generate()
    simulation.disk("shared").slowness = 10.0
    await store.put_job_graph(Graph(job_id, 0))
    given_up = asyncio.ensure_future(store.put_job_graph(Graph(job_id, 1)))
    await asyncio.sleep(simulation.random.uniform(0, 5))
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await store.put_job_graph(Graph(job_id, 2))
    await asyncio.sleep(100)
    assert await store.recover_job_graph(job_id) == Graph(job_id, 2)
