"""Files of jobs on the disk: those of processes that live stay, others go."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from flinkray.actors.shared.job_files import JobFiles, sweep_job_files
from flinkray.core.blobs import BlobKey
from flinkray.core.ids import JobID
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse

T = TypeVar("T")

JOB = JobID(b"j" * 16)
FILE = JobFile(name="data.txt", content=b"data", use=JobFileUse.CACHE)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def no_fetch(key: BlobKey) -> bytes:
    raise AssertionError(key)


async def provided(cluster_id: str) -> JobFiles:
    files = JobFiles(LocalRpcService(), cluster_id)
    await files.provide(JOB, (FILE,), no_fetch)
    return files


HOLDS_FILES = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from tests.actors.shared.test_job_files import provided

async def main():
    files = await provided(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def process_with_files(folder: Path, cluster_id: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_FILES, str(folder), cluster_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def text_of(path: str) -> str:
    return Path(path).read_text()


async def test_archives_are_unpacked_in_the_working_directory_of_a_one_job_process(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(temporary_folder)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inner/words.txt", "to be")
    name = "data/words"
    job_file = JobFile(name, JobFileUse.ARCHIVE, packed.getvalue())
    files = JobFiles(LocalRpcService(), "here", has_working_directory=True)

    await files.provide(JOB, (FILE, job_file), no_fetch)

    assert text_of("data/words/inner/words.txt") == "to be"
    assert text_of(f"{files.cached(JOB)[name]}/inner/words.txt") == "to be"
    assert text_of(files.cached(JOB)["data.txt"]) == "data"
    files.forget(JOB)
    assert os.getcwd() == str(temporary_folder)
    assert os.listdir() == []


async def test_working_directory_does_not_change_for_a_job_without_archives(
    temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(temporary_folder)
    files = JobFiles(LocalRpcService(), "here", has_working_directory=True)
    await files.provide(JOB, (FILE,), no_fetch)
    assert os.getcwd() == str(temporary_folder)
    files.close()


def test_job_files_of_killed_processes_are_deleted_and_those_of_living_ones_stay(
    temporary_folder: Path,
) -> None:
    """Otherwise the files of killed processes would stay on the disk for ever."""
    living, dead = (process_with_files(temporary_folder, "here") for _ in range(2))
    foreign = process_with_files(temporary_folder, "elsewhere")
    kill(dead)
    kill(foreign)
    assert len(list(temporary_folder.iterdir())) == 3

    assert sweep_job_files("here") == 1

    assert len(list(temporary_folder.iterdir())) == 2
    assert sweep_job_files("elsewhere") == 1, "of another cluster's on this machine"
    kill(living)
    assert sweep_job_files("here") == 1
    assert list(temporary_folder.iterdir()) == []


def test_next_process_of_the_cluster_removes_files_of_a_dead_process(
    temporary_folder: Path,
) -> None:
    kill(process_with_files(temporary_folder, "here"))
    files = asyncio.run(provided("here"))
    (folder,) = temporary_folder.iterdir()
    (cached,) = files.cached(JOB).values()
    assert Path(cached).is_relative_to(folder)
    assert Path(cached).read_text() == "data"
    assert sweep_job_files("here") == 0, "it lives"
    files.close()
    assert list(temporary_folder.iterdir()) == []


def test_incomplete_folder_of_job_files_is_deleted_only_when_it_is_old(
    temporary_folder: Path,
) -> None:
    files = asyncio.run(provided("here"))
    (folder,) = temporary_folder.iterdir()
    files.close()
    folder.mkdir()
    assert sweep_job_files("here") == 0
    os.utime(folder, (0, 0))
    assert sweep_job_files("here") == 1


class Threads(LocalRpcService):
    """Lets go of what waits for a thread before the thread begins, or after it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Callable[[], object]] = []
        self.waits_for_a_thread = asyncio.Event()

    async def run_blocking(self, fn: Callable[..., T], *args: object) -> T:
        self.work.append(functools.partial(fn, *args))
        self.waits_for_a_thread.set()
        never: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        return await never


@pytest.mark.parametrize("ends_first", [False, True])
def test_files_of_a_job_that_is_removed_while_they_are_unpacked_are_deleted(
    temporary_folder: Path, ends_first: bool
) -> None:
    """The unpacking thread runs on after the job is forgotten."""

    async def forget_meanwhile() -> None:
        service = Threads()
        files = JobFiles(service, "here")
        providing = asyncio.ensure_future(files.provide(JOB, (FILE,), no_fetch))
        await service.waits_for_a_thread.wait()
        (unpack,) = service.work
        if ends_first:
            unpack()
        files.forget(JOB)
        with pytest.raises(asyncio.CancelledError):
            await providing
        if not ends_first:
            unpack()
        await service.close()

    asyncio.run(forget_meanwhile())
    assert list(temporary_folder.iterdir()) == []


def test_job_files_that_cannot_be_unpacked_leave_no_folder_behind(temporary_folder: Path) -> None:
    no_archive = dataclasses.replace(FILE, is_directory=True)

    async def unpack() -> None:
        with pytest.raises(zipfile.BadZipFile):
            await JobFiles(LocalRpcService(), "here").provide(JOB, (FILE, no_archive), no_fetch)

    asyncio.run(unpack())
    assert list(temporary_folder.iterdir()) == []
