"""Programs without ``cluster=`` that take checkpoints: they run in threads of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.shared import chain_code
from flinkray.checkpoint.layout import find_checkpoints
from flinkray.core.clock import Clock
from flinkray.core.errors import ConfigurationError, JobExecutionError
from flinkray.datastream import (
    Configuration,
    DataStream,
    MapFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import CallbackSink, DiscardingSink, FileSink, IteratorSource
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.collection import IteratorSplit
from flinkray.streaming.sources.source import (
    EnumeratorContext,
    FixedSplitsEnumerator,
    SplitEnumerator,
)
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import Tally, by_key, expected
from tests.datastream.threads import none_left

COUNT = 2_000


@pytest.fixture(autouse=True)
def no_threads_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor folders: the cluster of a program has its own temporary folder."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with none_left():
        yield
    assert not list(temporary.iterdir())


class FailsOnce(MapFunction[int, int]):
    """Fails in the first attempt, once a file is there."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def open(self, runtime_context: RuntimeContext) -> None:
        self._fails = runtime_context.get_attempt_number() == 0

    def map(self, value: int) -> int:
        if self._fails and self._file.exists():
            raise ValueError("fails once")
        return value


class Touches(MapFunction[int, int]):
    """Creates a file when it has seen a record."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def map(self, value: int) -> int:
        if not self._file.exists():
            self._file.touch()
        return value


def environment(parallelism: int = 2, **options: str) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.configure(Configuration.from_dict(options)).set_parallelism(parallelism)


def numbers_until(env: StreamExecutionEnvironment, goes_on: Path) -> DataStream:
    """Return a stream of 0 to COUNT, of which the second half waits for a file."""

    def read(number: int, offset: int) -> Iterator[int]:
        for n in range(offset, COUNT):
            while n >= COUNT // 2 and not goes_on.exists():
                time.sleep(0.002)
            yield n

    source = IteratorSource(read, 1)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())


def lines_in(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] not in "._"]
    return sorted((line for file in files for line in file.read_text().split()), key=int)


def test_program_restarts_after_a_failure_and_commits_each_record_once(tmp_path: Path) -> None:
    fails, output = tmp_path / "fails", tmp_path / "output"
    env = environment().enable_checkpointing(20)
    numbers = numbers_until(env, fails)
    numbers.map(FailsOnce(fails), Types.LONG()).map(str).sink_to(FileSink(output))
    program = env.execute_async("files")
    wait_until(lambda: lines_in(output), 60, "files of a checkpoint")
    fails.touch()
    program.get_job_execution_result().result(60)
    assert lines_in(output) == [str(n) for n in range(COUNT)]
    assert program.get_job_status().result(60).name == "FINISHED"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_program_resumes_from_a_savepoint_with_another_parallelism(
    parallelism: int, tmp_path: Path
) -> None:
    goes_on, seen = tmp_path / "goes-on", tmp_path / "seen"

    def program(env: StreamExecutionEnvironment) -> DataStream:
        numbers = numbers_until(env, goes_on).uid("numbers").map(Touches(seen), Types.LONG())
        return by_key(numbers, Tally(COUNT))

    env = environment(2).enable_checkpointing(3_600_000)
    program(env).print()
    first = env.execute_async()
    wait_until(seen.exists, 60, "records")
    savepoint = first.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60)
    first.get_job_execution_result().result(60)
    goes_on.touch()
    env = environment(parallelism, **{"execution.state-recovery.path": savepoint})
    assert set(program(env).execute_and_collect()) == expected(COUNT)


def test_program_resumes_from_the_retained_checkpoint_of_a_failed_program(tmp_path: Path) -> None:
    fails, checkpoints = tmp_path / "fails", str(tmp_path / "checkpoints")
    settings = {
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.dir": checkpoints,
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "restart-strategy.type": "none",
    }

    def results(fails_when: Path, **more: str) -> Iterator[int]:
        env = environment(1, **settings, **more)
        numbers = numbers_until(env, fails).uid("numbers")
        return iter(numbers.map(FailsOnce(fails_when), Types.LONG()).execute_and_collect())

    first = results(fails)
    assert next(first) == 0
    wait_until(lambda: find_checkpoints(checkpoints), 60, "a checkpoint")
    fails.touch()
    with pytest.raises(JobExecutionError, match="fails once"):
        list(first)
    retained = find_checkpoints(checkpoints)[-1]
    later = list(results(tmp_path / "never", **{"execution.state-recovery.path": retained}))
    assert later == list(range(later[0], COUNT))
    assert later[0] > 0


class Unwilling(FixedSplitsEnumerator[IteratorSplit]):
    """Has no state before a file is there."""

    willing: Path

    def snapshot_state(self, checkpoint_id: int) -> Any:
        if not self.willing.exists():
            raise ValueError("not now")
        return super().snapshot_state(checkpoint_id)


class UnwillingSource(IteratorSource):
    def __init__(self, willing: Path) -> None:
        super().__init__(lambda number, offset: count(offset), bounded=False)
        self._willing = willing

    def create_enumerator(
        self, context: EnumeratorContext[IteratorSplit], clock: Clock
    ) -> SplitEnumerator[IteratorSplit]:
        enumerator = Unwilling(context, [IteratorSplit(0, 0)])
        enumerator.willing = self._willing
        return enumerator


def test_savepoint_fails_if_a_split_enumerator_fails_to_snapshot_and_job_runs_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next savepoint completes, with one warning about the operators without a uid."""
    willing, seen, savepoints = (
        tmp_path / "willing",
        tmp_path / "seen",
        str(tmp_path / "savepoints"),
    )
    env = environment(1, **{"restart-strategy.type": "none"}).enable_checkpointing(3_600_000)
    numbers = env.from_source(UnwillingSource(willing), None, "numbers")
    numbers.map(Touches(seen)).sink_to(DiscardingSink())
    program = env.execute_async()
    with pytest.raises(CheckpointError, match="ValueError: not now"):
        program.trigger_savepoint(savepoints).result(60)
    willing.touch()
    program.trigger_savepoint(savepoints).result(60)
    wait_until(seen.exists, 60, "records")
    program.cancel().result(60)
    del program  # the error's traceback refers to this frame
    told = [record.getMessage() for record in caplog.records]
    assert sum("has state of operators without a uid" in it for it in told) == 1


SEEN: list[int] = []


def seen(n: int) -> int:
    SEEN.append(n)
    return n


def test_tasks_in_one_process_use_its_objects_and_modules_without_copies() -> None:
    """A sink that keeps a list, and a module that a function refers to."""
    taken: list[int] = []
    env = environment(2).enable_checkpointing(1000)
    numbers = env.from_sequence(1, 100).map(seen, Types.LONG())
    numbers.sink_to(CallbackSink(taken.append))
    before = len(chain_code._here)
    env.execute()
    assert sorted(taken) == sorted(SEEN) == list(range(1, 101))
    assert len(chain_code._here) == before


def test_callback_sink_calls_its_function_from_one_subtask_at_a_time() -> None:
    busy, taken = threading.Lock(), []

    def take(n: int) -> None:
        assert busy.acquire(blocking=False), "two calls at once"
        taken.append(n)
        time.sleep(0.0001)  # lets the other threads run
        busy.release()

    env = environment(4).enable_checkpointing(1000)
    env.from_sequence(1, 400).sink_to(CallbackSink(take))
    env.execute()
    assert sorted(taken) == list(range(1, 401))


def test_program_that_cannot_be_pickled_for_its_tasks_leaves_no_code_registered() -> None:
    env = environment(1).enable_checkpointing(1000)
    lock = threading.Lock()
    env.from_sequence(1, 2).map(lambda n: (lock, n)).sink_to(CallbackSink(print))
    before = len(chain_code._here)
    with pytest.raises(StreamError, match="cannot be sent to its tasks"):
        env.execute()
    assert len(chain_code._here) == before


def test_checkpoint_directory_that_cannot_be_created_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    env = environment(1, **{"execution.checkpointing.dir": str(file / "checkpoints")})
    env.enable_checkpointing(1000).from_sequence(1, 2).print()
    with pytest.raises(ConfigurationError, match="cannot be created: Not a directory"):
        env.execute()


def test_program_in_one_process_warns_of_cluster_features_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Retained checkpoints, archives in the working directory, and a failure that nobody waits
    for."""
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("model", "1")
    key = "execution.checkpointing.externalized-checkpoint-retention"
    env = environment(1, **{key: "RETAIN_ON_CANCELLATION", "restart-strategy.type": "none"})
    env.add_python_archive(str(tmp_path / "models.zip"), "models")
    env.enable_checkpointing(1000)
    env.from_sequence(1, 2).map(lambda n: n // 0).print()
    with pytest.raises(JobExecutionError):
        env.execute_async("divides").get_job_execution_result().result(60)
    told = [record.getMessage() for record in caplog.records]
    assert any(f"{key} has no effect without execution.checkpointing.dir" in it for it in told)
    assert any("is not in the working directory of functions" in it for it in told)
    assert any("(divides) failed: " in it and "ZeroDivisionError" in it for it in told)


def test_failing_program_with_only_a_restart_strategy_starts_from_the_beginning(
    tmp_path: Path,
) -> None:
    fails = tmp_path / "fails"
    fails.touch()
    strategy = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "1 ms",
    }
    env = environment(1, **strategy)
    numbers = numbers_until(env, fails).map(FailsOnce(fails), Types.LONG())
    assert list(numbers.execute_and_collect()) == list(range(COUNT))


def test_program_ends_when_its_results_iterator_is_closed_early(tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"
    env = environment().enable_checkpointing(20)
    with numbers_until(env, goes_on).execute_and_collect() as results:
        assert next(results) == 0
    results = numbers_until(env, goes_on).execute_and_collect()
    assert next(results) == 0
    del results  # the fixture waits for the end of the threads
    goes_on.touch()


def test_start_from_a_savepoint_in_batch_mode_or_with_a_custom_clock_is_refused(
    tmp_path: Path,
) -> None:
    savepoint = {"execution.state-recovery.path": str(tmp_path)}
    env = environment(1, **savepoint).set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_sequence(0, 1).print()
    with pytest.raises(ConfigurationError, match="which it cannot, since it runs in batch mode"):
        env.execute()
    env = StreamExecutionEnvironment(Configuration.from_dict(savepoint), clock=ManualClock())
    env.from_sequence(0, 1).print()
    with pytest.raises(ConfigurationError, match="which it cannot, since it has a clock of its"):
        env.execute()


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose temporary files are in a folder."""
    variables = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=150)


WITHOUT_RAY = """
import sys
from flinkray.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(1000)
env.from_sequence(1, 2).key_by(lambda n: n).sum().print()
env.execute()
print(sorted({"ray", "pyspark", "pandas"} & set(sys.modules)))
"""


def test_program_with_checkpoints_in_one_process_imports_neither_ray_nor_spark(
    tmp_path: Path,
) -> None:
    ended = run(WITHOUT_RAY, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "[]"


LEFT_RUNNING = """
import os
from flinkray.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(20)
env.from_sequence(0, 2**60).key_by(lambda n: n % 7).sum().filter(lambda n: False).print()
program = env.execute_async()
while program.get_job_status().result().name != "RUNNING":
    pass
"""


def test_process_that_ends_while_a_program_runs_prints_nothing_and_leaves_no_folder(
    tmp_path: Path,
) -> None:
    """The program removes its folder. The folder of a killed process is removed by the next
    process."""
    folder = tmp_path / "of-processes"
    folder.mkdir()
    assert run(f"{LEFT_RUNNING}os.kill(os.getpid(), 9)", folder).returncode == -9
    assert len(list(folder.iterdir())) == 1
    ended = run(LEFT_RUNNING, folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not list(folder.iterdir())


FORKS = """
import multiprocessing, signal, os
from flinkray.datastream import StreamExecutionEnvironment

children = multiprocessing.get_context("fork")

def doubled(n):
    child = children.Process(target=print, args=("child", n), kwargs={"flush": True})
    child.start()
    child.join()
    return 2 * n

env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(20)
with env.from_sequence(1, 2).map(doubled).execute_and_collect() as results:
    first = next(results)
    if os.fork() == 0:  # goes on in a copy of this block, and leaves it
        raise KeyboardInterrupt
    os.wait()
    print([first, *results])
"""


def test_forked_child_process_does_not_end_the_running_program_of_its_parent(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "of-processes"
    folder.mkdir()
    ended = run(FORKS, folder)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["[2, 4]", "child 1", "child 2"]
    assert not list(folder.iterdir())


IN_A_THREAD = """
import threading, time
from flinkray.datastream import StreamExecutionEnvironment

begun = threading.Event()

def slowly(n):
    time.sleep(0.005)
    return n

def program():
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(20)
    results = env.from_sequence(1, 200).map(slowly).execute_and_collect()
    next(results)
    begun.set()
    print(1 + len(list(results)))
    env.from_sequence(1, 2).print()
    env.execute()

threading.Thread(target=program).start()
begun.wait()
"""


def test_process_does_not_end_before_a_program_that_another_thread_executes(tmp_path: Path) -> None:
    """As for any thread that is no daemon. That thread can start a second program meanwhile."""
    ended = run(IN_A_THREAD, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[0] == "200"
    assert sorted(ended.stdout.splitlines()[1:]) == ["1", "2"]
