"""Folders that are made while another process sweeps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flinkray.core import locked_folders
from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders


def sweep(root: Path) -> int:
    return sweep_locked_folders(root, "own-", time.time())


def before_the_first_call(
    monkeypatch: pytest.MonkeyPatch, name: str, step: Callable[[], object]
) -> None:
    """Run *step* right before the module calls its function *name* for the first time."""
    function = getattr(locked_folders, name)

    def after_step(*arguments: Any) -> Any:
        monkeypatch.setattr(locked_folders, name, function)
        step()
        return function(*arguments)

    monkeypatch.setattr(locked_folders, name, after_step)


def test_folder_removed_by_a_sweep_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []
    before_the_first_call(monkeypatch, "_takes", lambda: swept.append(sweep(tmp_path)))

    folder = LockedFolder(tmp_path, "own-")

    assert swept == [1]
    assert [folder.path] == list(tmp_path.iterdir())
    assert sweep(tmp_path) == 0
    folder.remove()


def test_sweep_keeps_a_folder_locked_until_the_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that released the lock first removed a folder that another process had just
    locked."""
    (tmp_path / "own-1").mkdir()
    lock = tmp_path / "own-1" / "lock"
    lock.touch()
    remove, was_free = shutil.rmtree, []

    def try_to_lock(folder: Path, **options: Any) -> None:
        with lock.open("rb") as opened:
            was_free.append(locked_folders._takes(opened))
        remove(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", try_to_lock)

    assert sweep(tmp_path) == 1
    assert was_free == [False]
