"""Checkpoints at rest, on Ray: their storage is full, read-only, refuses or is away while a job
runs; and what is left of a job, or was moved or harmed, is what the command line starts from."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote

import pytest

import flinkray
from flinkray.checkpoint.layout import find_checkpoints
from flinkray.client import ClusterClient
from flinkray.client.cli import execute
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.testing.waiting import wait_until
from tests.cut_line import line_to
from tests.datastream.half_way import HalfWay, is_right
from tests.s3_server import S3Server, s3_server
from tests.system.observer import kill, live_actors

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "stored-checkpoints"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
}

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def kill_tasks() -> None:
    here = ("TaskProcess", f"flinkray-{CLUSTER_ID}")
    for victim in [a for a in live_actors() if (a.kind, a.namespace) == here]:
        kill(victim.pid)


def fails(streams: ClusterClient, program: HalfWay, output: Output, *texts: str) -> str:
    """A checkpoint does, for one reason, which its user is shown, and the job goes on; all that is
    shown."""
    before = program.told().failed
    with pytest.raises(CheckpointError) as error:
        program.job.trigger_checkpoint(timeout=300)
    told = program.told()
    assert told.failed == before + 1
    output.readouterr()
    info = ["info", str(program.job.job_id), "--verbose"]
    assert execute(info, connect=lambda *_: nullcontext(streams)) == 0
    shown = output.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("  failed ")]
    for text in texts:
        assert text in str(error.value)
        assert text in line
    details = program.job.details()
    assert (details.status.name, details.restarts) == ("RUNNING", 0)
    return shown


def goes_on_from(program: HalfWay, checkpoint: str) -> None:
    """After the death of its tasks, which is its first, and with the right results."""
    kill_tasks()
    program.go_on()
    assert is_right(list(program.results))
    told, number = program.told(), re.search(r"/chk-(\d+)", checkpoint)
    assert number is not None
    assert (told.restored, told.latest_restored) == (1, int(number[1]))
    assert program.job.details().restarts == 1


class Mount:
    """A file system in memory, of half a megabyte."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        path.mkdir()
        self._run("mount", "-t", "tmpfs", "-o", "size=512k", "flinkray-tests", self._path)

    def change(self, options: str) -> None:
        """As soon as nothing is just being written there."""

        def is_changed() -> bool:
            try:
                self._run("mount", "-o", f"remount,{options}", self._path)
            except subprocess.CalledProcessError as error:
                if "busy" not in error.stderr:
                    raise
                return False
            return True

        wait_until(is_changed, 150, "nothing to be written")

    def unmount(self) -> None:
        self._run("umount", "--lazy", self._path)

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    try:
        mount = Mount(tmp_path / "checkpoints")
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        reason = getattr(error, "stderr", "") or error
        pytest.skip(f"a tmpfs cannot be mounted here: {reason}")
    yield mount
    mount.unmount()


def fill(directory: Path) -> None:
    with (directory / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def test_checkpoints_fail_while_the_disk_is_full_or_read_only_and_succeed_later(
    streams: ClusterClient, mount: Mount, tmp_path: Path, capsys: Output
) -> None:
    program = HalfWay(streams, tmp_path)
    program.take_checkpoints()
    directory = str(program.checkpoints)
    fill(program.checkpoints)
    fails(streams, program, capsys, directory, "No space left", "make room, or use another")
    mount.change("size=8m")
    program.job.trigger_checkpoint(timeout=300)
    mount.change("ro")
    fails(streams, program, capsys, directory, "Read-only file system", "mount it for writing")
    mount.change("rw")
    last = program.job.trigger_checkpoint(timeout=300)
    assert find_checkpoints(directory)[-1] == last
    goes_on_from(program, last)


# A connection that comes just as the line is cut for the last time.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_checkpoints_fail_while_s3_refuses_or_is_away_and_succeed_afterwards(
    streams: ClusterClient, tmp_path: Path, capsys: Output
) -> None:
    with s3_server() as server, line_to(server.address) as line:
        bucket, user = server.new_bucket(), server.new_user("writer", "s3:*")
        uri = S3Server(line.address).uri(bucket, "checkpoints", user)
        program = HalfWay(streams, tmp_path, settings_of={"execution.checkpointing.dir": uri})
        program.take_checkpoints()
        directory = f"@{bucket}/checkpoints"
        server.allow("writer", "s3:List*")
        with server.with_authentication():
            fails(streams, program, capsys, directory, "give whose credentials these are the right")
        line.cut()
        shown = fails(streams, program, capsys, directory, "cannot write it: ")
        assert user[0] in shown
        assert user[1] not in shown, "no secrets are told"
        assert quote(user[1], safe="") not in shown
        line.mend()
        goes_on_from(program, program.job.trigger_checkpoint(timeout=300))


# --- the command line ---------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from flinkray.datastream import StreamExecutionEnvironment
from tests.datastream.half_way import halves

env = StreamExecutionEnvironment.get_execution_environment()
for result in halves(env, Path(sys.argv[1])).execute_and_collect():
    print("result", *result)
"""


class Left:
    """What a job has left that was cancelled half way: a savepoint and a retained checkpoint, both
    moved since; and how to go on from them."""

    def __init__(self, streams: ClusterClient, folder: Path) -> None:
        self._streams = streams
        self._folder = folder
        retained = {
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"
        }
        program = HalfWay(streams, folder, settings_of=retained)
        checkpoint = Path(program.take_checkpoints())
        savepoint = program.job.trigger_savepoint(str(folder / "savepoints"), timeout=300)
        program.job.cancel()
        assert program.job.wait(timeout=300).name == "CANCELED"
        program.go_on()
        moved = Path(shutil.move(checkpoint.parent, folder / "moved"))
        self.checkpoint = moved / checkpoint.name
        self.savepoint = Path(shutil.move(savepoint, folder / "elsewhere"))
        self._program = folder / "program.py"
        self._program.write_text(PROGRAM)

    def run(self, path: Path, parallelism: int) -> int:
        """The exit code of ``flinkray run --from-savepoint``."""
        options = ["--from-savepoint", str(path), "--parallelism", str(parallelism)]
        directory = f"execution.checkpointing.dir={self._folder}/again"
        for value in (directory, "execution.checkpointing.interval=1 h"):
            options += ["-D", value]
        line = ["run", *options, "--python", str(self._program), str(self._folder)]
        return execute(line, connect=lambda *_: nullcontext(self._streams))


@pytest.fixture(scope="module")
def left(streams: ClusterClient, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(streams, tmp_path_factory.mktemp("left"))


@pytest.mark.parametrize(("what", "parallelism"), [("checkpoint", 1), ("savepoint", 3)])
def test_run_command_resumes_from_a_moved_snapshot_with_another_parallelism(
    what: str, parallelism: int, left: Left, capsys: Output
) -> None:
    """E2E-06: from a savepoint, and from a retained checkpoint with the files that the checkpoint
    shares."""
    assert left.run(getattr(left, what), parallelism) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    results = [tuple(map(int, line[1:])) for line in lines if line[:1] == ["result"]]
    assert is_right(results)  # type: ignore[arg-type]


@pytest.mark.parametrize("of", ["metadata", "state"])
@pytest.mark.parametrize("harm", ["missing", "truncated", "flipped"])
def test_run_command_given_a_damaged_savepoint_names_the_damaged_file(
    of: str, harm: str, left: Left, streams: ClusterClient, tmp_path: Path, capsys: Output
) -> None:
    """E2E-06: in one line. No task starts, unless only a task can notice the damage."""
    copy = tmp_path / "savepoint-harmed"
    shutil.copytree(left.savepoint, copy)
    files = sorted(it for it in copy.iterdir() if it.name != "_metadata")
    file = copy / "_metadata" if of == "metadata" else max(files, key=lambda it: it.stat().st_size)
    data, before = file.read_bytes(), {job.job_id for job in streams.list_jobs()}
    if harm == "missing":
        file.unlink()
    elif harm == "truncated":
        file.write_bytes(data[:-1])
    else:
        at = len(data) // 2
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert left.run(copy, 2) != 0
    (line,) = [it for it in capsys.readouterr().err.splitlines() if it.startswith("error: ")]
    assert str(file) in line
    jobs = [job.job_id for job in streams.list_jobs() if job.job_id not in before]
    if of == "metadata":
        assert jobs == [], "it is refused before it is a job"
    elif harm != "flipped":
        vertices = [v for job_id in jobs for v in streams.job(job_id).details().vertices]
        assert all(e.location is None for v in vertices for e in v.executions)
