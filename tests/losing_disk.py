"""A folder that loses what POSIX does not promise to keep when the power goes."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest

Tree = dict[str, "Tree | bytes"]


class LosingDisk:
    """Notes every ``os.fsync`` below a folder, which still takes place.

    A name survives :meth:`lose_power` if its directory was synchronised while the name was in it,
    and content survives if the file was synchronised.  Everything else is gone: names that are not
    durable vanish, deleted names come back, and files without durable content are empty.
    """

    def __init__(self, root: Path) -> None:
        """What is in *root* at first is durable.  Leave it as a context manager is left."""
        self._root = root.resolve()
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        """By the inode of a directory: its durable names, with their inodes and whether they are
        directories."""
        self._contents: dict[int, bytes] = {}
        """By the inode of a file: its durable content."""
        self._held: dict[int, int] = {}
        """By inode: a descriptor that keeps the number from being used again."""
        self._fsync = os.fsync
        self._patched = pytest.MonkeyPatch()
        self._patched.setattr(os, "fsync", self._synchronise)
        self._keep_all()

    def __enter__(self) -> LosingDisk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patched.undo()
        self._release()

    def lose_power(self) -> None:
        """Whoever has files open must have closed them."""
        tree = self._surviving(self._root.stat().st_ino)
        for path in self._root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._release()
        _write(self._root, tree)
        self._keep_all()

    def _synchronise(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path == self._root or self._root in path.parents:
            self._keep(path)

    def _keep(self, path: str | Path) -> None:
        status = os.stat(path)
        inode = status.st_ino
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                self._names[inode] = {e.name: (e.inode(), e.is_dir()) for e in entries}
        else:
            self._contents[inode] = Path(path).read_bytes()
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def _keep_all(self) -> None:
        for path in (self._root, *self._root.rglob("*")):
            self._keep(path)

    def _release(self) -> None:
        self._names.clear()
        self._contents.clear()
        while self._held:
            with suppress(OSError):
                os.close(self._held.popitem()[1])

    def _surviving(self, directory: int) -> Tree:
        tree: Tree = {}
        for name, (inode, is_directory) in self._names.get(directory, {}).items():
            tree[name] = self._surviving(inode) if is_directory else self._contents.get(inode, b"")
        return tree


def _write(folder: Path, tree: Tree) -> None:
    for name, content in tree.items():
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.mkdir()
            _write(path, content)
