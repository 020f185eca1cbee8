"""The command line: what it prints where, and how it exits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import flinkray.client.connect
from flinkray.client import cli_output
from flinkray.client.cli import execute
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.ray_runtime import ClusterNotFoundError
from flinkray.core.errors import RpcConnectionError
from flinkray.core.ids import IntermediateDataSetID, JobID, JobVertexID, WorkerGroupId
from flinkray.scheduler.execution_info import ExecutionInfo
from flinkray.scheduler.job_info import ExceptionEntry, JobDetails, VertexInfo
from flinkray.scheduler.states import ExecutionState, JobStatus
from tests.client.scripted_cluster import World, job_graph

UNKNOWN = "0123456789abcdef" * 2
SCRIPT = "def pipeline(spark): return None\ndef second(spark): return None\n"


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, client: ClusterClient) -> ClusterClient:
    """Commands find the scripted cluster; each test runs one, which closes the client."""
    monkeypatch.setattr(flinkray.client.connect, "connect", lambda *_, **__: client)
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    return client


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "flights.py"
    path.write_text(SCRIPT)
    return str(path)


Output = Callable[[], tuple[str, str]]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


# --- bad input: one line on standard error, nobody is connected to


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "nothing.py"], "error: the script nothing.py does not exist"),
        (["run", "json:nothing"], "error: json has no function 'nothing'"),
        (["run", "{script}:nothing"], "has no function 'nothing'; it has: pipeline, second"),
        (["run", "{script}", "--parallelism", "0"], "parallelism"),
        (["run", "{script}", "--parallelism", "many"], "'many' is not a valid integer"),
        (["run", "{script}", "--memory", "lots"], "not a memory size: 'lots'"),
        (["run", "{script}", "--cpu", "0"], "CPU"),
        (["run", "{script}", "--spark-conf", "x"], "'x' is not of the form key=value"),
        (["run", "{script}", "--restarts", "-1"], "-1 is not in the range"),
        (["run", "{script}", "--address", "local", "--detached"], "--detached needs a cluster"),
        (["data-sets", "release", "x"], "DATA_SET_ID"),
        (["run"], "Missing argument 'TARGET'"),
        (["info", "42"], "not a JobID: '42' (expected 32 hexadecimal digits)"),
        (["cancel", "z" * 32], "not a JobID"),
        (["list", "--address", "gopher"], "not an address of a Ray cluster: 'gopher'"),
        (["list", "--address", "local"], "for `flinkray run` only"),
        (["list", "--cluster-id", "my cluster"], "cluster.id"),
        (["cluster", "up", "-D", "heartbeat.intervall=1 s"], "nearest is 'heartbeat.interval'"),
        (["cluster", "up", "-D", "heartbeat.interval=1"], "heartbeat.interval is not accepted"),
        (["cluster", "sideways"], "No such command 'sideways'"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(
    script: str, output: Output, arguments: list[str], text: str
) -> None:
    assert execute([argument.format(script=script) for argument in arguments]) == 2
    out, err = output()
    assert out == ""
    assert text in err
    assert "Traceback" not in err


def test_nothing_that_answers_at_the_address_is_exit_code_3(output: Output) -> None:
    assert execute(["list", "--address", "127.0.0.1:1"]) == 3
    _, err = output()
    assert "error: nothing answers at the Ray address 127.0.0.1:1" in err
    assert err.count("\n") == 1


def test_help_is_quick_and_does_not_load_ray() -> None:
    code = (
        "import sys; from flinkray.client.cli import execute; code = execute(['--help']); "
        "sys.exit(code or ('ray' in sys.modules) or ('pyspark' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cluster" in done.stdout


# --- against the scripted cluster


def test_run_waits_and_says_how_long_it_took(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def end() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(job_id, result_location="/data/flights", num_rows=7)

    world.on_result_request = end
    assert execute(["run", f"{script}:second", "--name", "daily"]) == 0
    (job_id,) = world.jobs
    assert world.jobs[job_id].name == "daily"
    out, err = output()
    assert out == f"job {job_id} finished in 2.5 s: 7 rows at /data/flights\n"
    assert f"submitted job {job_id} (daily)" in err


def test_run_of_a_failing_job_names_the_cause_and_exits_with_1(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def fail() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(
            job_id, JobStatus.FAILED, failure="ValueError: no\nflights", failure_traceback="line 7"
        )

    world.on_result_request = fail
    assert execute(["run", script]) == 1
    _, err = output()
    (job_id,) = world.jobs
    assert f"error: job {job_id}: failed: ValueError: no flights\n" in err
    assert "line 7" not in err


def test_verbose_shows_where_it_failed(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def fail() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(
            job_id, JobStatus.FAILED, failure="ValueError", failure_traceback="line 7"
        )

    world.on_result_request = fail
    assert execute(["run", script, "--verbose"]) == 1
    _, err = output()
    assert "line 7" in err
    assert "Traceback" in err


def test_endless_cause_is_cut_to_a_line_that_can_be_read(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def fail() -> None:
        (job_id,) = world.jobs
        stack = "\n".join(f"\tat org.apache.spark.Frame{n}(Frame.scala)" for n in range(200))
        world.end_on_loop(job_id, JobStatus.FAILED, failure=f"Py4JJavaError: boom\n{stack}")

    world.on_result_request = fail
    assert execute(["run", script]) == 1
    (line,) = [line for line in output()[1].splitlines() if line.startswith("error:")]
    assert "failed: Py4JJavaError: boom at org.apache.spark.Frame0" in line
    assert line.endswith("… (--verbose: all)")
    assert len(line) < 600


def test_run_of_a_job_that_somebody_else_cancels_exits_with_5(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def cancel() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(job_id, JobStatus.CANCELED)

    world.on_result_request = cancel
    assert execute(["run", script]) == 5
    assert "was cancelled" in output()[1]


def test_ctrl_c_cancels_and_exits_with_130(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def interrupt() -> None:
        (job_id,) = world.jobs
        if not world.cancelled:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            world.end_on_loop(job_id, JobStatus.CANCELED)

    world.on_result_request = interrupt
    assert execute(["run", script]) == 130
    (job_id,) = world.jobs
    assert world.cancelled == [job_id]
    assert f"job {job_id} ended: CANCELED" in output()[1]


def test_second_ctrl_c_leaves_and_exits_with_130(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    async def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    world.on_result_request = interrupt
    assert execute(["run", script]) == 130
    (job_id,) = world.jobs
    _, err = output()
    assert f"left job {job_id} while it was being cancelled" in err
    assert f"flinkray info {job_id}" in err


def test_ctrl_c_before_the_job_is_submitted_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, script: str, output: Output
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flinkray.client.connect, "connect", interrupted)
    assert execute(["run", script, "--address", "auto"]) == 130
    assert "interrupted" in output()[1]


def test_detached_run_prints_the_job_id_only(
    world: World, connected: ClusterClient, script: str, output: Output
) -> None:
    assert execute(["run", script, "--detached"]) == 0
    (job_id,) = world.jobs
    assert output()[0] == f"{job_id}\n"


def test_list_is_a_table_or_json(world: World, connected: ClusterClient, output: Output) -> None:
    job = job_graph("flights")
    connected.submit(job)
    assert execute(["list", "--json"]) == 0
    (entry,) = json.loads(output()[0])
    assert entry == {
        "job_id": job.job_id.hex(),
        "name": "flights",
        "status": "RUNNING",
        "start_time": 10.0,
        "end_time": None,
    }


def test_list_of_no_jobs_says_so(connected: ClusterClient, output: Output) -> None:
    assert execute(["list"]) == 0
    assert output()[0] == "no jobs\n"


def test_info_of_a_job_as_text(world: World, connected: ClusterClient, output: Output) -> None:
    job = job_graph("flights")
    connected.submit(job)
    assert execute(["info", job.job_id.hex()]) == 0
    out, _ = output()
    assert f"job         {job.job_id}" in out
    assert "status      RUNNING" in out


@pytest.mark.parametrize("command", ["info", "cancel"])
def test_unknown_job_is_exit_code_4(connected: ClusterClient, output: Output, command: str) -> None:
    assert execute([command, UNKNOWN]) == 4
    out, err = output()
    assert out == ""
    assert err == (f"error: job {UNKNOWN}: not known to this cluster (see: flinkray list)\n")


def test_cancel_begins_cancelling(world: World, connected: ClusterClient, output: Output) -> None:
    job = job_graph()
    connected.submit(job)
    assert execute(["cancel", job.job_id.hex()]) == 0
    assert world.cancelled == [job.job_id]
    assert output()[0] == f"job {job.job_id} is being cancelled\n"


def test_cancelling_a_finished_job_is_an_error(
    world: World, connected: ClusterClient, output: Output
) -> None:
    job = job_graph()
    connected.submit(job)
    world.end(job.job_id)
    assert execute(["cancel", job.job_id.hex()]) == 1
    assert "has finished and cannot be cancelled" in output()[1]


def test_cluster_status_says_where_to_look(connected: ClusterClient, output: Output) -> None:
    assert execute(["cluster", "status"]) == 0
    out, _ = output()
    assert "dashboard   http://127.0.0.1:8265" in out
    assert "ray list actors --filter ray_namespace=flinkray-default" in out
    assert "resources   2 CPU, 1g memory free of 2 CPU, 1g memory" in out


def test_data_sets_are_a_table(world: World, connected: ClusterClient, output: Output) -> None:
    world.data_sets.append(IntermediateDataSetID(bytes(16)))
    assert execute(["data-sets", "list"]) == 0
    header, line = output()[0].splitlines()
    assert header.split() == ["DATA", "SET", "ID", "PARTITIONS"]
    assert line.split() == ["0" * 32, "2"]


def test_list_of_no_data_sets_says_so(connected: ClusterClient, output: Output) -> None:
    assert execute(["data-sets", "list"]) == 0
    assert output()[0] == "no persistent results\n"


def test_a_data_set_is_released_by_its_id(
    world: World, connected: ClusterClient, output: Output
) -> None:
    world.data_sets.append(IntermediateDataSetID(bytes(16)))
    assert execute(["data-sets", "release", "0" * 32]) == 0
    assert world.data_sets == []
    assert output()[0] == f"data set {'0' * 32} is being released\n"


@pytest.mark.parametrize(
    "error", [ClusterNotFoundError("no cluster"), RpcConnectionError("no Dispatcher")]
)
def test_no_cluster_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, output: Output, error: Exception
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(flinkray.client.connect, "connect", connect)
    assert execute(["list"]) == 3
    assert output()[1] == f"error: {error}\n"


# --- what is printed

_VERTEX = VertexInfo(
    JobVertexID(bytes(16)),
    "flights",
    2,
    (
        ExecutionInfo(
            0, 1, ExecutionState.RUNNING, "TaskExecutor-0-0 bundle 0 on 10.0.0.1", "ac70", 42
        ),
        ExecutionInfo(1, 1, ExecutionState.SCHEDULED, None),
    ),
    (),
    2,
    80,
    1,
)
_DETAILS = JobDetails(
    JobID(bytes(16)),
    "flights",
    JobStatus.RUNNING,
    10.0,
    None,
    {"RUNNING": 11.0},
    1,
    (_VERTEX,),
    "1 slot of 4 CPU is missing",
    (ExceptionEntry(11.0, "it died\nbadly", "line 7", "flights (1/2)", "TE-1 on 10.0.0.1"),),
    WorkerGroupId("abc"),
)


def test_details_show_executions_waiting_and_failures() -> None:
    text = cli_output.job_details(_DETAILS, now=75.0)
    for line in (
        "duration    1 min 5 s",
        "restarts    1",
        "group       abc (placement group)",
        "waits       1 slot of 4 CPU is missing",
        "vertex flights (parallelism 2)",
        "  Spark: 2 stages and 80 tasks done, 1 tasks failed",
        "  SUBTASK  ATTEMPT  STATE      LOCATION                               EXECUTOR",
        "  0        1        RUNNING    TaskExecutor-0-0 bundle 0 on 10.0.0.1  actor ac70 pid 42",
        "  1        1        SCHEDULED  -                                      -",
        "  badly",
    ):
        assert line in text.splitlines()
    assert "flights (1/2) TE-1 on 10.0.0.1" in text


def test_a_failure_shows_what_failed_besides_it() -> None:
    other = ExceptionEntry(11.5, "no disk\nat all", task="flights (2/2)")
    failure = replace(_DETAILS.exceptions[0], concurrent=(other,))
    text = cli_output.job_details(replace(_DETAILS, exceptions=(failure,)), now=75.0)
    assert "  and flights (2/2): no disk" in text.splitlines()


def test_python_tasks_are_not_said_to_be_spark() -> None:
    execution = ExecutionInfo(0, 0, ExecutionState.RUNNING, "TaskExecutor-0-0 bundle 0 on 10.0.0.1")
    vertex = VertexInfo(JobVertexID(bytes(16)), "words", 1, (execution,))
    details = replace(_DETAILS, vertices=(vertex,), pending_reason=None)
    assert "Spark" not in cli_output.job_details(details, now=75.0)
    assert cli_output.progress_text(details) == "RUNNING | restart 1 | 1/1 tasks of words"


def test_json_of_details_has_ids_as_hex_and_states_by_name() -> None:
    value = json.loads(cli_output.to_json(_DETAILS))
    assert value["job_id"] == "0" * 32
    assert value["worker_group"] == "abc"
    assert value["vertices"][0]["executions"][0]["state"] == "RUNNING"
    assert value["status_timestamps"] == {"RUNNING": 11.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-0.1, "0.0 s"), (2.54, "2.5 s"), (60, "1 min 0 s"), (3725, "1 h 2 min")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert cli_output.format_seconds(seconds) == text


def test_ended_jobs_show_their_own_duration_and_running_ones_until_now() -> None:
    details = replace(_DETAILS, end_time=12.5, status=JobStatus.FINISHED)
    assert "duration    2.5 s" in cli_output.job_details(details, now=1e6)
