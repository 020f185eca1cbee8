"""A process dies in the middle of a savepoint: whoever wants it gets it or is told why not, no half
savepoint can be started from, and each record counts once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.job_master import endpoint as job_master
from flinkray.actors.job_master import stored_checkpoints
from flinkray.actors.job_master.reports_to_dispatcher import report_end
from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.layout import find_checkpoints
from flinkray.checkpoint.metadata_file import read_whole, write_metadata
from flinkray.client import JobHandle
from flinkray.core.errors import FlinkRayError
from flinkray.scheduler.checkpoints.failures import StopWithSavepointError
from flinkray.scheduler.shared.states import JobStatus
from flinkray.state_reader import SavepointReader
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.half_way import HalfWay, is_right
from tests.datastream.portions import Portions, portions
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.tallies import Result

CONFIGURATION = QUICK_RESTARTS

# As in test_cluster_checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


KINDS: dict[str, Callable[[JobHandle, str], Any]] = {
    "savepoint": lambda job, at: job.trigger_savepoint_async(at),
    "stop": lambda job, at: job.stop_with_savepoint_async(at),
    "drain": lambda job, at: job.stop_with_savepoint_async(at, drain=True),
}


class Metadata:
    """Those of the savepoint are held up on their way to storage, or back."""

    def __init__(self, *, is_written: bool) -> None:
        self._is_written = is_written
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def write(self, directory: str, metadata: Any) -> str:
        if "savepoint-" not in directory or self.begun.is_set():
            return write_metadata(directory, metadata)
        path = write_metadata(directory, metadata) if self._is_written else ""
        self.begun.set()
        assert self.goes_on.wait(300)
        return path or write_metadata(directory, metadata)


def drained(savepoint: str) -> list[Result]:
    """What is told of the keys in it."""
    entries = SavepointReader(savepoint).keyed_entries("tally", "tally")
    return [(entry.key, *entry.value[:3]) for entry in entries]


@pytest.mark.parametrize(
    ("victim", "kind", "phase", "is_taken"),
    [
        ("TaskProcess", "stop", "barriers", False),
        ("JobMaster", "savepoint", "barriers", None),  # if the job does not end before
        ("TaskProcess", "savepoint", "storing", True),
        ("TaskProcess", "stop", "storing", False),
        ("TaskProcess", "drain", "storing", False),
        ("JobMaster", "stop", "storing", True),
        ("JobMaster", "drain", "storing", True),
        ("JobMaster", "savepoint", "stored", True),
        ("JobMaster", "stop", "stored", True),
    ],
)
def test_savepoint_is_complete_or_reported_as_failed_whichever_process_dies(
    victim: str,
    kind: str,
    phase: str,
    is_taken: bool | None,
    cluster: ThreadedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E2E-06."""
    program, savepoints = HalfWay(cluster.client, tmp_path), tmp_path / "savepoints"
    metadata = Metadata(is_written=phase == "stored")
    with ThreadPoolExecutor() as threads:
        shown = threads.submit(list, program.results)
        program.take_checkpoints()
        if phase == "barriers":
            program.hold()
        else:
            monkeypatch.setattr(stored_checkpoints, "write_metadata", metadata.write)
        taken: Future[str] = cluster.session.start(KINDS[kind](program.job, str(savepoints)))
        try:
            if phase == "barriers":
                wait_until(lambda: program.told().in_progress, 150, "half a savepoint")
            else:
                assert metadata.begun.wait(300)
            cluster.crash_all(victim)
        finally:
            metadata.goes_on.set()
            program.release()
        try:
            error = taken.exception(300)
        finally:
            program.go_on()
        results = shown.result(300)
    assert program.job.status() is JobStatus.FINISHED
    complete = find_checkpoints(str(savepoints)) if savepoints.exists() else []
    for path in complete:
        read_whole(path)
    for other in savepoints.glob("*"):
        if str(other) not in complete:
            with pytest.raises(CheckpointStorageError):
                read_whole(str(other))
    assert is_taken in (None, error is None)
    if error is not None:
        assert isinstance(error, FlinkRayError)
        if complete:
            assert isinstance(error, StopWithSavepointError)
            assert complete[-1] in str(error)
        if kind == "drain":  # at the end of time each key was told, and the job goes on from there
            results = [result for result in results if result not in drained(complete[-1])]
        assert is_right(results)
        return
    path = taken.result()
    assert path in complete
    if kind == "drain":
        assert sorted(results) == sorted(drained(path))
        return
    if kind == "savepoint":
        assert is_right(results)
    else:
        assert results == []
    again = HalfWay(cluster.client, tmp_path / "again", savepoint=path)
    again.go_on()
    assert is_right(list(again.results))


def test_job_that_resumes_from_its_own_savepoint_gives_each_result_once(
    cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2E-06: the task processes die while the savepoint of a stop is stored. The unread
    results of the client are in that savepoint."""
    program, metadata = Portions(cluster.client, tmp_path / "job"), Metadata(is_written=False)
    program.let_out(0)
    shown = program.show()
    program.let_out(1)
    monkeypatch.setattr(stored_checkpoints, "write_metadata", metadata.write)
    stopping = program.job.stop_with_savepoint_async(str(tmp_path / "savepoints"))
    taken = cluster.session.start(stopping)
    try:
        assert metadata.begun.wait(300)
        cluster.crash_all("TaskProcess")
    finally:
        metadata.goes_on.set()
    assert isinstance(taken.exception(300), StopWithSavepointError)
    program.let_out_all()
    assert shown + list(program.results) == portions(0, 1, 2, 3, 4, 5)


def test_stop_with_savepoint_is_answered_only_when_its_job_cannot_restart_any_more(
    cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2E-06: the JobMaster dies after the end of the job, before the Dispatcher has stored the
    end. An earlier answer would let a second job repeat what the next JobMaster does."""
    has_ended = threading.Event()

    async def killed_first(*end: Any) -> bool:
        if has_ended.is_set():
            return await report_end(*end)
        for _ in range(100):  # whoever was answered before has the answer
            await asyncio.sleep(0)
        has_ended.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it is killed before")

    monkeypatch.setattr(job_master, "report_end", killed_first)
    program = HalfWay(cluster.client, tmp_path)
    with ThreadPoolExecutor() as threads:
        shown = threads.submit(list, program.results)
        program.take_checkpoints()
        stopping = program.job.stop_with_savepoint_async(str(tmp_path / "savepoints"))
        taken = cluster.session.start(stopping)
        assert has_ended.wait(300)
        cluster.crash_all("JobMaster")
        path = taken.result(300)
        status = program.job.status()
        program.go_on()
        assert shown.result(300) == []
    assert status is JobStatus.FINISHED
    assert program.job.result(300).savepoint == path
