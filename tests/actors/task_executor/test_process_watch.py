"""Ends of processes whose sockets stay open, and of what they have started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from flinkray.actors.gateways.task_process import TaskProcessHost
from flinkray.actors.shared import leftover_processes
from flinkray.actors.shared.leftover_processes import (
    end_orphans,
    end_with_descendants,
    noted_processes,
    write_note,
)
from flinkray.actors.task_executor.task_processes import ProcessWatch

NAMESPACE = os.stat("/proc/self/ns/pid").st_ino

MARKED = """
from flinkray.actors.shared.leftover_processes import write_note
from flinkray.actors.task_process.endpoint import mark_process
write_note(mark_process())
"""

FORKS_AND_EXITS = """
import os, sys, time
if not os.fork():
    time.sleep(3600)
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


def start(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def host_of(pid: int) -> TaskProcessHost:
    with open(f"/proc/{pid}/stat") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    return TaskProcessHost(pid, started, NAMESPACE)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_process_end_is_noticed_although_a_fork_keeps_its_files_open() -> None:
    process = start(MARKED + FORKS_AND_EXITS)
    host = host_of(process.pid)
    ended = asyncio.Event()
    ProcessWatch(asyncio.get_running_loop(), process.pid, ended.set)
    await asyncio.sleep(0)
    assert not ended.is_set()
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.wait_for(ended.wait(), 30)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert end_with_descendants(host) == 1


async def test_cancelled_watch_of_a_process_does_not_report_its_end() -> None:
    process = start("import sys; print('ready', flush=True); sys.stdin.read()")
    ended = asyncio.Event()
    watch = ProcessWatch(asyncio.get_running_loop(), process.pid, ended.set)
    watch.cancel()
    watch.cancel()
    process.communicate(b"")
    await asyncio.sleep(0)
    assert not ended.is_set()
    with pytest.raises(OSError, match="No such process"):
        ProcessWatch(asyncio.get_running_loop(), process.pid, ended.set)


STARTS_OTHERS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "3600"])
apart = subprocess.Popen(["sleep", "3601"], start_new_session=True)
fork = os.fork()
if not fork:
    time.sleep(3602)
print("ready", flush=True)
print(child.pid, apart.pid, fork, flush=True)
sys.stdin.read()
"""


STARTS_A_SWEEP = """
import subprocess, sys
sweep = (
    "import os; parent = os.getppid(); print(os.getpid(), flush=True)\\n"
    "from flinkray.actors.shared.leftover_processes import end_orphans\\n"
    "while os.getppid() == parent: pass\\n"
    "print(end_orphans(), flush=True)"
)
print("ready", flush=True)
subprocess.run([sys.executable, "-c", sweep])
"""


@pytest.mark.parametrize("is_dead", [False, True])
def test_child_processes_are_ended_whether_or_not_their_parent_is_dead(is_dead: bool) -> None:
    process = start(MARKED + STARTS_OTHERS)
    host = host_of(process.pid)
    assert process.stdout is not None
    started = [int(pid) for pid in process.stdout.readline().split()]
    other = subprocess.Popen(["sleep", "3600"])
    if is_dead:
        process.kill()
        process.wait()
    assert all(map(is_running, started))

    assert end_with_descendants(host) == 3

    assert not any(map(is_running, [process.pid, *started]))
    assert is_running(other.pid), "not its child"
    other.kill()
    other.wait()
    process.communicate()


@pytest.mark.parametrize("whose", ["no process", "the caller", "its parent"])
def test_ending_the_caller_or_its_parent_or_process_0_is_refused(
    whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is killed here, even if the refusal fails."""
    killed: list[psutil.Process] = []
    monkeypatch.setattr(leftover_processes, "_kill", killed.append)
    monkeypatch.setattr(leftover_processes, "_wait", lambda processes, seconds: None)
    nobody = TaskProcessHost(0, 0, NAMESPACE)
    others = {"the caller": os.getpid(), "its parent": os.getppid()}
    with pytest.raises(ValueError, match="nothing is ended"):
        end_with_descendants(host_of(others[whose]) if whose in others else nobody)
    assert killed == []


def test_process_that_reused_the_id_of_a_task_process_is_not_ended() -> None:
    process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    host = TaskProcessHost(process.pid, 1, NAMESPACE)
    assert end_with_descendants(host) == 0
    assert is_running(process.pid)
    process.kill()
    process.wait()


def test_processes_that_a_dead_task_process_had_started_are_ended() -> None:
    process, lives = start(MARKED + STARTS_OTHERS), start(MARKED + STARTS_OTHERS)
    assert process.stdout is not None
    assert lives.stdout is not None
    started = [int(pid) for pid in process.stdout.readline().split()]
    of_another = [int(pid) for pid in lives.stdout.readline().split()]
    process.kill()
    process.wait()
    assert all(map(is_running, started))

    assert end_orphans() == 3

    assert not any(map(is_running, started))
    assert all(map(is_running, of_another)), "who has started them lives"
    assert end_with_descendants(host_of(lives.pid)) == 3
    process.communicate()
    lives.communicate()


@pytest.mark.parametrize("name", ["", "1-2", "1-2-3-4", "1-x-2", f"{NAMESPACE + 1}-2-1"])
def test_foreign_and_malformed_process_id_files_are_ignored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    note = tmp_path / f"flinkray-task-process-{name}"
    note.touch()
    assert list(noted_processes()) == []
    assert end_orphans() == 0
    assert note.exists()


def test_process_id_file_is_removed_once_the_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    host = host_of(process.pid)
    write_note(host)
    assert [noted for noted, _ in noted_processes()] == [host]
    assert end_orphans() == 0, "it lives"
    process.kill()
    process.wait()
    assert end_orphans() == 0
    assert list(noted_processes()) == []


def test_search_for_orphan_processes_started_by_user_code_does_not_kill_its_caller() -> None:
    """For example, user code may start a cluster."""
    process = start(MARKED + STARTS_A_SWEEP)
    assert process.stdout is not None
    sweeping = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert process.stdout.readline() == b"0\n"
    assert psutil.Process(sweeping).wait(300) is None
    process.communicate()


LEAVES_ITS_GROUP = """
import os, sys, time
if not os.fork():
    time.sleep(3600)
print("ready", flush=True)
"""


def test_process_group_that_has_the_reused_id_of_a_dead_one_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are used again, for example by a daemon that has nothing to do with the note."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    daemon = start(LEAVES_ITS_GROUP)
    host = host_of(daemon.pid)
    daemon.wait()
    (left,) = (p for p in psutil.process_iter() if is_in_group(p.pid, daemon.pid))
    write_note(host)
    (tmp_path / f"flinkray-task-process-{host.mark}").write_text("of another process")
    assert end_orphans() == 0
    assert is_running(left.pid)
    left.kill()
    daemon.communicate()


def is_in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False
