"""Directories of files: each step at its time, and the real system calls behind them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flinkray.ha.directory import FileDirectory, LocalDirectory, LocalFileSystem


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

    def delete(self, path: str) -> bool:
        was_there = super().delete(path)
        self._note("delete", path)
        return was_there

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._note("sync names of", path)


WRITTEN = [
    "write a/b/entry.me.unfinished",
    "sync a/b/entry.me.unfinished",
    "rename a/b/entry.me.unfinished a/b/entry",
    "sync names of a/b",
]


def test_content_is_durable_before_it_takes_its_name_and_the_name_before_the_write_returns(
    tmp_path: Path,
) -> None:
    files = _Recording(tmp_path)
    directory = FileDirectory(files, str(tmp_path / "a" / "b"), "me")
    directory.write("entry", b"1")
    assert files.steps == ["make a", "sync names of .", "make a/b", "sync names of a", *WRITTEN]
    files.steps.clear()
    directory.write("entry", b"2")
    assert files.steps == WRITTEN


def test_a_deletion_is_durable_when_it_returns(tmp_path: Path) -> None:
    files = _Recording(tmp_path)
    directory = FileDirectory(files, str(tmp_path), "me")
    directory.write("entry", b"")
    files.steps.clear()
    directory.delete("entry")
    assert files.steps == ["delete entry", "sync names of ."]
    files.steps.clear()
    directory.delete("entry")
    assert files.steps == ["delete entry"]


def test_a_directory_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    directory = LocalDirectory(tmp_path / "a" / "b")
    directory.write("entry", b"1")
    LocalDirectory(tmp_path / "a").delete_all()
    directory.write("entry", b"2")
    assert directory.read("entry") == b"2"


def test_the_system_is_told_to_make_files_and_directories_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    LocalDirectory(tmp_path).write("entry", b"1")
    entry, folder = (path.stat().st_ino for path in (tmp_path / "entry", tmp_path))
    assert synced == [tmp_path.parent.stat().st_ino, entry, folder]
