"""Modes of files and folders, and folders that are locked."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.checkpoint.files import LocalStateFiles
from flinkray.core import locked_folders, private_files
from flinkray.core.locked_folders import LockedFolder, sweep_locked_folders
from flinkray.file_results.commit_log import FileCommitLog
from flinkray.file_results.published import PublishedPartitions
from flinkray.file_results.result_files import ResultDirectory, ResultWriter
from flinkray.ha.directory import LocalDirectory

WHO = {private_files.OWNER: (0o600, 0o700), private_files.GROUP: (0o640, 0o750)}


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture(params=WHO)
def modes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Of files, and of folders."""
    monkeypatch.setenv("FLINKRAY_STORAGE_PERMISSIONS", "")
    private_files.permit(request.param)
    return WHO[request.param]


def write_everything(root: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    output = LocalStateFiles().create(str(root / "checkpoints" / "job" / "state"))
    output.write(b"state")
    output.close()
    store = LocalDirectory(root / "graphs").subdirectory("of-a-job")
    store.write("entry", b"graph")
    store.write("entry", b"another graph")
    results = ResultDirectory(str(root / "results" / "part"))
    results.write_json("note.json", {})
    results.write_pieces("piece", [b"1", b"2"])
    batch = pa.record_batch({"a": [1, 2]})
    writer = ResultWriter(ResultDirectory(f"file://{root}/results/rows"))
    writer.write(batch)
    writer.finish()
    FileCommitLog(str(root / "commits")).settle(["a"])
    published = PublishedPartitions(str(root / "published"))
    published.begin("one")
    published.accept("one", published.write("one", 0, batch.schema, [batch], durable=True))
    published.seal("one", {0: 2})


@pytest.mark.usefixtures("umask")
def test_stored_files_and_folders_have_their_configured_mode_whatever_the_umask(
    modes: tuple[int, int], tmp_path: Path
) -> None:
    root = tmp_path / "storage"
    write_everything(root)
    found = {
        (path.relative_to(tmp_path), stat.S_IMODE(path.stat().st_mode))
        for path in (root, *root.rglob("*"))
    }
    assert len(found) > 15
    assert {(path, mode) for path, mode in found if mode != modes[(tmp_path / path).is_dir()]} == (
        set()
    )


def test_symbolic_link_at_the_path_of_a_new_file_is_not_followed(tmp_path: Path) -> None:
    """Another user could have put the link into a folder that both users may write to."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        private_files.create_empty(tmp_path / "link")
    assert victim.read_text() == "as it was"


def test_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    """It may be a directory of the user that contains other files."""
    tmp_path.chmod(0o755)
    private_files.create_folders(tmp_path / "a" / "b")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private_files.create_folder(tmp_path / "file")


def test_files_that_another_program_wrote_become_private(tmp_path: Path) -> None:
    folder = tmp_path / "of-spark"
    folder.mkdir(mode=0o755)
    (folder / "part").touch(mode=0o644)
    (folder / "link").symlink_to("/etc/passwd")
    private_files.restrict(folder)
    assert [stat.S_IMODE(it.stat().st_mode) for it in (folder, folder / "part")] == [0o700, 0o600]
    assert stat.S_IMODE(Path("/etc/passwd").stat().st_mode) == 0o644


def test_folders_below_a_setgid_folder_are_setgid(tmp_path: Path, modes: tuple[int, int]) -> None:
    (tmp_path / "shared").mkdir()
    os.chmod(tmp_path / "shared", 0o2770)
    LocalDirectory(tmp_path / "shared" / "graphs" / "of-a-job").write("entry", b"graph")
    for folder in ("graphs", "graphs/of-a-job"):
        mode = stat.S_IMODE((tmp_path / "shared" / folder).stat().st_mode)
        assert mode == modes[1] | stat.S_ISGID


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


def test_folder_that_a_cleanup_removes_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[int] = []
    before_the_first_call(monkeypatch, "_takes", lambda: swept.append(sweep(tmp_path)))

    folder = LockedFolder(tmp_path, "own-")

    assert swept == [1]
    assert [folder.path] == list(tmp_path.iterdir())
    assert sweep(tmp_path) == 0
    folder.remove()


def test_cleanup_holds_the_lock_of_a_folder_until_the_folder_is_removed(
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
