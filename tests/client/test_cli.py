"""The command line: what it prints where, and how it exits."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

from flinkray.client import cli as cli_module
from flinkray.client import cli_output
from flinkray.client.attached_run import ProgressDisplay
from flinkray.client.cli import SUMMARIES, cli, execute
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.ray_runtime import ClusterNotFoundError, join_ray
from flinkray.client.standard_output import write_text
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import RpcConnectionError, RpcTimeoutError
from flinkray.core.ids import JobID, JobVertexID, WorkerGroupId
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobProgress,
    VertexInfo,
    VertexProgress,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.client.scripted_cluster import World, job_graph

UNKNOWN = "0123456789abcdef" * 2
SCRIPT = "def pipeline(spark): return None\ndef second(spark): return None\n"


Command = Callable[[list[str]], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, client: ClusterClient) -> Command:
    """Finds the scripted cluster; each test runs one, which closes the client."""
    monkeypatch.setenv("RAY_ADDRESS", "scripted:6379")
    return lambda line: execute(line, connect=lambda *_: client)


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
        (["run", "{script}", "--parallelism", "0"], "0 is not in the range x>=1"),
        (["run", "--python", "--parallelism", "0", "{script}"], "0 is not in the range x>=1"),
        (["run", "{script}", "--parallelism", "many"], "'many' is not a valid integer"),
        (["run", "{script}", "--memory", "lots"], "not a memory size: 'lots'"),
        *(
            (["run", "{script}", "--cpu", cpu], f"{cpu!r} is no number of CPU cores")
            for cpu in ("0", "inf", "nan", "-1", "1e300", "two")
        ),
        (["run", "{script}", "--spark-conf", "x"], "'x' is not of the form key=value"),
        (["run", "{script}", "--restarts", "-1"], "-1 is not in the range"),
        (["run", "{script}", "--address", "local", "--detached"], "--detached needs a cluster"),
        (["run"], "Missing argument 'TARGET'"),
        (["info", "job 42"], "'job 42' is neither a job id (32 hexadecimal digits) nor its"),
        (["info", "0" * 33], "is neither a job id"),
        (["cancel", "z" * 32], "is neither a job id"),
        (["run", "{script}", "--memory", "600m"], "is too small for a Spark executor"),
        (["run", "{script}", "--spark-conf", "spark.master=local"], "spark.master cannot be set"),
        (["run", "{script}", "--detached", "--spark-conf", "a.b=1"], "a.b is no Spark property"),
        (["list", "--address", "gopher"], "not an address of a Ray cluster: 'gopher'"),
        (["list", "--address", "local"], "for `flinkray run` only"),
        (["list", "--cluster-id", "my cluster"], "cluster.id"),
        (["cluster", "up", "-D", "heartbeat.intervall=1 s"], "nearest is 'heartbeat.interval'"),
        (["cluster", "up", "-D", "heartbeat.interval=1"], "heartbeat.interval is not accepted"),
        (["cluster", "sideways"], "No such command 'sideways'"),
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list", "--address", "host:²"], "not an address of a Ray cluster: 'host:²'"),
        (["list", "--address", "host:65536"], "not an address of a Ray cluster"),
        (["list", "--address", "ray://host/path:1"], "not an address of a Ray cluster"),
        (["cluster", "up", "-D", "cluster.id=other"], "named by --cluster-id, not by cluster.id"),
        (["rest", "-D", "cluster.id=other"], "named by --cluster-id, not by cluster.id"),
        (["cluster", "up", "-D", f"rest.token={'t' * 16}"], "it is set by flinkray rest -D"),
        (["cluster", "up", "-D", "client.close-timeout=5s"], "it is set by flinkray run -D"),
        (["rest", "-D", "storage.dir=/tmp"], "it is set by flinkray cluster up -D"),
        (["run", "{script}", "-D", "rest.bind-port=1"], "it is set by flinkray rest -D"),
        (["top", "--interval", "nan"], "'nan' is no number from 0.1 to 86400"),
        (["top", "--interval", "inf"], "'inf' is no number"),
        (["query", UNKNOWN, "totals", "[" * 100_000], "nested too deeply"),
        (["query", UNKNOWN, "totals", "{{}}"], "an object of JSON cannot be a key"),
        (["savepoint", UNKNOWN, ""], "an empty text is neither a path nor a URI"),
        (["savepoint", "--dispose", ""], "an empty text is neither a path nor a URI"),
        (["stop", UNKNOWN, "--savepoint-path", " "], "an empty text is neither a path nor a URI"),
        (["checkpoint", "list", ""], "an empty text is neither a path nor a URI"),
        (["checkpoint", "show", "http://["], "'http://[' is neither a path nor a URI"),
        (["doctor", "--cluster-id", "my cluster"], "cluster.id"),
        (["doctor", "--address", "local"], "for `flinkray run` only"),
    ],
)
def test_invalid_arguments_print_an_error_without_traceback_and_exit_with_2(
    script: str, output: Output, arguments: list[str], text: str
) -> None:
    assert execute([argument.format(script=script) for argument in arguments]) == 2
    out, err = output()
    assert out == ""
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "a..b:1", f"{'a' * 64}:1"])
def test_command_exits_with_3_when_nothing_answers_at_the_ray_address(
    output: Output, address: str
) -> None:
    assert execute(["list", "--address", address]) == 3
    _, err = output()
    assert f"error: nothing answers at the Ray address {address}" in err
    assert "Name or service not known" not in err
    assert err.count("\n") == 1


def test_checkpoint_list_of_a_missing_directory_fails_and_of_an_empty_one_does_not(
    tmp_path: Path, output: Output
) -> None:
    assert execute(["checkpoint", "list", str(tmp_path)]) == 0
    assert output() == ("no checkpoints\n", "")
    (tmp_path / "file").touch()
    for name in ("nothing", "file"):
        assert execute(["checkpoint", "list", str(tmp_path / name), "--verbose"]) == 1
        assert f"{tmp_path / name}: there is no such directory" in output()[1]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_command_exits_with_3_when_the_ray_head_hangs(scheme: str) -> None:
    """The head's port is open but nothing answers. Ray itself would wait for a minute and then end
    the process. Runs in a process of its own, because this process may be connected to a Ray."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        port = hung.getsockname()[1]
        code = (
            "import sys; from flinkray.client import cli, ray_runtime; "
            "ray_runtime._CONNECT_TIMEOUT = 0.2; "
            f"sys.exit(cli.execute(['list', '--address', '{scheme}127.0.0.1:{port}']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 3, done.stderr
    assert f"the Ray address {scheme}127.0.0.1:{port} does not answer for 0.2 s" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ray_address_auto_is_replaced_by_the_variable_ray_address_if_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterNotFoundError, match=r"at the Ray address 127\.0\.0\.1:1"):
        join_ray("auto", "anywhere")


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


def test_help_summary_of_each_command_matches_the_help_of_the_command() -> None:
    context = click.Context(cli, info_name="flinkray")
    said = {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        said[name] = " ".join((command.help or "").split("\n\n")[0].split())
    assert said == SUMMARIES


def test_client_starts_without_importing_numpy_or_arrow() -> None:
    """The two imports would take a quarter of the time of `flinkray list`."""
    code = (
        "import sys, flinkray.client.connect, flinkray.client.cli_jobs; "
        "print({'numpy', 'pyarrow', 'pandas'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [("flinkray li", ["plain,list"]), ("flinkray checkpoint tr", ["plain,trigger"])],
)
def test_shell_completion_offers_the_matching_commands(words: str, offered: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flinkray"],
        env={
            **os.environ,
            "_FLINKRAY_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == offered


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (None, "0123456789abcdef  0123456789"),
        (24, "0123456789a…  0123456789"),
        (5, "0123456…  0123456…"),  # eight characters are left of each
    ],
)
def test_tables_are_cut_to_the_terminal_width_but_columns_keep_a_minimum_width(
    width: int | None, line: str
) -> None:
    text = cli_output.table(("A", "B"), [("0123456789abcdef", "0123456789")], width)
    assert text.splitlines()[1] == line


def test_tables_align_text_with_wide_characters_and_accents() -> None:
    """A Chinese character takes two columns of a terminal, a combining accent takes none."""
    rows = [("日本語のジョブ", "1"), ("cafe\u0301", "2"), ("plain", "3")]
    assert cli_output.table(("NAME", "N"), rows, None).splitlines() == [
        "NAME            N",
        "日本語のジョブ  1",
        "cafe\u0301            2",
        "plain           3",
    ]
    assert cli_output.table(("NAME", "N"), rows, 13).splitlines()[1] == "日本語の…   1"


def test_list_escapes_line_ends_and_control_characters_in_job_names(
    client: ClusterClient, command: Command, output: Output
) -> None:
    name = "daily\n\x1b[2Jflights\u202e"
    client.submit(job_graph(name))
    assert command(["list"]) == 0
    out = output()[0]
    assert len(out.splitlines()) == 2
    assert "daily\\n\\x1b[2Jflights\\u202e" in out


def test_job_details_escape_control_characters_in_names_and_failures() -> None:
    failure = ExceptionEntry(5.0, "boom\x1b]0;title\x07\nsecond")
    details = JobDetails(
        JobID(bytes(16)), "a\rb", JobStatus.FAILED, 1.0, 2.0, {}, 0, exceptions=(failure,)
    )
    lines = cli_output.job_details(details, 3.0).splitlines()
    assert lines[1] == "name        a\\rb"
    assert lines[-2:] == ["  boom\\x1b]0;title\\x07", "  second"]


def test_every_command_except_rest_rest_token_and_run_has_the_option_json() -> None:
    context = click.Context(cli, info_name="flinkray")
    without = set()
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts = command.commands.items() if isinstance(command, click.Group) else [(None, command)]
        for part, one in parts:
            if not any("--json" in parameter.opts for parameter in one.params):
                without.add(name if part is None else f"{name} {part}")
    assert without == {"rest", "rest-token", "run"}, "those that print a stream, or a token"


def test_characters_that_the_output_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    """Such characters do not end the command with a traceback."""
    checkpoint = tmp_path / "été 日本" / "chk-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "_metadata").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-m", "flinkray", "checkpoint", "list", str(checkpoint.parent)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        encoding="latin-1",
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/été \\u65e5\\u672c/chk-1\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_to_a_full_disk_fails_with_a_one_line_error(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flinkray", "checkpoint", "list", str(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: [Errno 28] No space left on device\n")
    assert "Traceback" not in done.stderr


def test_writing_to_closed_standard_streams_raises_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`flinkray … >&- 2>&-`: sys.stdout and sys.stderr are None."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    write_text("a job prints this\n")
    cli_module._prepare_streams()
    with sys.stdout, sys.stderr:
        assert cli_output.terminal_width() is None
        click.echo("a result")
        ProgressDisplay(sys.stderr, lambda: 0.0).message("a note")


def test_python_m_flinkray_is_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flinkray", "sideways"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Usage: flinkray [OPTIONS]" in done.stderr
    assert "No such command 'sideways'" in done.stderr


# --- against the scripted cluster


def test_run_waits_for_the_job_and_prints_its_duration(
    world: World, command: Command, script: str, output: Output
) -> None:
    async def end() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(job_id, result_location="/data/flights", num_rows=7)

    world.on_result_request = end
    assert command(["run", f"{script}:second", "--name", "daily"]) == 0
    (job_id,) = world.jobs
    assert world.jobs[job_id].name == "daily"
    out, err = output()
    assert out == f"job {job_id} finished in 2.5 s: 7 rows at /data/flights\n"
    assert f"submitted job {job_id} (daily)" in err


def test_run_exits_with_0_although_the_cluster_drops_the_finished_job_at_once(
    world: World, command: Command, script: str, output: Output
) -> None:
    """The cluster forgets ended jobs at once with `jobstore.max-capacity` 0, or soon when many jobs
    end."""

    async def end() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(job_id)
        del world.jobs[job_id]

    world.on_result_request = end
    assert command(["run", script]) == 0
    assert output()[0].endswith(" finished in 2.5 s\n")


def test_run_of_a_failing_job_names_the_cause_and_exits_with_1(
    world: World, command: Command, script: str, output: Output
) -> None:
    async def fail() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(
            job_id, JobStatus.FAILED, failure="ValueError: no\nflights", failure_traceback="line 7"
        )

    world.on_result_request = fail
    assert command(["run", script]) == 1
    _, err = output()
    (job_id,) = world.jobs
    assert f"error: job {job_id}: 'pipeline' failed: ValueError: no flights\n" in err
    assert "line 7" not in err


def test_run_with_verbose_shows_the_traceback_of_the_failed_job(
    world: World, command: Command, script: str, output: Output
) -> None:
    async def fail() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(
            job_id, JobStatus.FAILED, failure="ValueError", failure_traceback="line 7"
        )

    world.on_result_request = fail
    assert command(["run", script, "--verbose"]) == 1
    _, err = output()
    assert "line 7" in err
    assert "Traceback" in err


def test_long_failure_cause_is_cut_to_one_line_below_600_characters(
    world: World, command: Command, script: str, output: Output
) -> None:
    async def fail() -> None:
        (job_id,) = world.jobs
        stack = "\n".join(f"\tat org.apache.spark.Frame{n}(Frame.scala)" for n in range(200))
        world.end_on_loop(job_id, JobStatus.FAILED, failure=f"Py4JJavaError: boom\n{stack}")

    world.on_result_request = fail
    assert command(["run", script]) == 1
    (line,) = [line for line in output()[1].splitlines() if line.startswith("error:")]
    assert "failed: Py4JJavaError: boom at org.apache.spark.Frame0" in line
    assert line.endswith("… (--verbose: all)")
    assert len(line) < 600


def test_run_exits_with_5_when_its_job_is_cancelled_by_another_client(
    world: World, command: Command, script: str, output: Output
) -> None:
    """DI-19: Flink's application cluster has a separate exit status for a cancelled job, too."""

    async def cancel() -> None:
        (job_id,) = world.jobs
        world.end_on_loop(job_id, JobStatus.CANCELED)

    world.on_result_request = cancel
    assert command(["run", script]) == 5
    assert "was cancelled" in output()[1]


def test_ctrl_c_during_run_cancels_the_job_and_exits_with_130(
    world: World, command: Command, script: str, output: Output
) -> None:
    async def interrupt() -> None:
        (job_id,) = world.jobs
        if not world.cancelled:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            world.end_on_loop(job_id, JobStatus.CANCELED)

    world.on_result_request = interrupt
    assert command(["run", script]) == 130
    (job_id,) = world.jobs
    assert world.cancelled == [job_id]
    assert f"job {job_id} ended: CANCELED" in output()[1]


def test_ctrl_c_before_the_job_is_submitted_exits_with_130(script: str, output: Output) -> None:
    def interrupted(address: str, cluster_id: str, configuration: ReadableConfig) -> NoReturn:
        raise KeyboardInterrupt

    assert execute(["run", script, "--address", "auto"], connect=interrupted) == 130
    assert "interrupted" in output()[1]


def test_run_passes_its_configuration_options_to_the_client(
    script: str, client: ClusterClient
) -> None:
    given: list[ReadableConfig] = []

    def connect(address: str, cluster_id: str, configuration: ReadableConfig) -> ClusterClient:
        given.append(configuration)
        return client

    line = ["run", script, "--detached", "--address", "auto", "-D", "client.close-timeout=5s"]
    assert execute(line, connect=connect) == 0
    assert given == [ReadableConfig({"client.close-timeout": "5 s"})]


def test_run_prints_what_the_client_waits_for_while_connecting(
    script: str, client: ClusterClient, output: Output
) -> None:
    log = logging.getLogger("flinkray.client.connect")

    def connect(address: str, cluster_id: str, configuration: ReadableConfig) -> ClusterClient:
        log.info("starting Ray on this machine")
        return client

    assert execute(["run", script, "--detached", "--address", "auto"], connect=connect) == 0
    assert "starting Ray on this machine" in output()[1].splitlines()
    assert log.handlers == []
    assert log.level == logging.NOTSET


def test_run_passes_job_options_to_the_job(script: str, world: World, command: Command) -> None:
    """FO-14: the cluster may run already, with a configuration of its own."""
    line = ["run", script, "--detached", "-D", "restart-strategy.type=failurerate"]
    assert command([*line, "-D", "client.close-timeout=5s"]) == 0
    (graph,) = world.graphs
    assert graph.configuration == {"restart-strategy.type": "failure-rate"}
    assert graph.restart_strategy is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("client.close-time=5s", "error: unknown configuration key 'client.close-time'"),
        ("client.close-timeout=soon", "value 'soon' of client.close-timeout is not accepted"),
        ("client.close-timeout", "'client.close-timeout' is not of the form key=value"),
    ],
)
def test_run_refuses_an_unknown_configuration_option_before_connecting(
    value: str, text: str, script: str, output: Output
) -> None:
    assert execute(["run", script, "-D", value, "--address", "nowhere:1"]) == 2
    assert text in output()[1]


def test_detached_run_prints_the_job_id_only(
    world: World, command: Command, script: str, output: Output
) -> None:
    assert command(["run", script, "--detached"]) == 0
    (job_id,) = world.jobs
    assert output()[0] == f"{job_id}\n"


def test_list_with_json_prints_the_jobs_as_json(
    world: World, client: ClusterClient, command: Command, output: Output
) -> None:
    job = job_graph("flights")
    client.submit(job)
    assert command(["list", "--json"]) == 0
    (entry,) = json.loads(output()[0])
    assert entry == {
        "job_id": job.job_id.hex(),
        "name": "flights",
        "status": "RUNNING",
        "start_time": 10.0,
        "end_time": None,
        "tasks": {"RUNNING": 2, "FINISHED": 1},
        "last_modified": None,
    }


def test_list_shows_the_number_of_tasks_in_each_state(
    client: ClusterClient, command: Command, output: Output
) -> None:
    client.submit(job_graph("flights"))
    assert command(["list"]) == 0
    heads, row = output()[0].splitlines()
    assert row[heads.index("TASKS") :] == "2 RUNNING, 1 FINISHED"


def test_info_prints_the_id_and_status_of_a_job(
    world: World, client: ClusterClient, command: Command, output: Output
) -> None:
    job = job_graph("flights")
    client.submit(job)
    assert command(["info", job.job_id.hex()]) == 0
    out, _ = output()
    assert f"job         {job.job_id}" in out
    assert "status      RUNNING" in out


FIRST, SECOND = JobID.from_hex("ab12" + "0" * 28), JobID.from_hex("ab34" + "0" * 28)


@pytest.fixture
def two_jobs(client: ClusterClient) -> None:
    client.submit(replace(job_graph("first"), job_id=FIRST))
    client.submit(replace(job_graph("second"), job_id=SECOND))


@pytest.mark.usefixtures("two_jobs")
@pytest.mark.parametrize("beginning", ["ab3", "AB34", SECOND.hex()])
def test_unique_prefix_of_a_job_id_is_accepted_instead_of_the_whole_id(
    world: World, command: Command, output: Output, beginning: str
) -> None:
    assert command(["cancel", beginning]) == 0
    assert world.cancelled == [SECOND]
    assert output()[0] == f"job {SECOND} is being cancelled\n"


@pytest.mark.usefixtures("two_jobs")
def test_cancel_refuses_a_job_id_prefix_that_several_jobs_share(
    world: World, command: Command, output: Output
) -> None:
    assert command(["cancel", "ab"]) == 2
    assert f"the ids of 2 jobs begin with ab: {FIRST} ('first'), {SECOND} ('second')" in output()[1]
    assert world.cancelled == []


def test_error_for_an_ambiguous_job_id_prefix_names_ten_jobs_and_counts_the_rest(
    client: ClusterClient, command: Command, output: Output
) -> None:
    for number in range(12):
        client.submit(replace(job_graph(), job_id=JobID(bytes([0xAB] * 15 + [number]))))
    assert command(["cancel", "ab"]) == 2
    said = output()[1]
    assert "the ids of 12 jobs begin with ab" in said
    assert said.endswith(" and 2 more\n")


@pytest.mark.usefixtures("two_jobs")
def test_info_exits_with_4_when_no_job_id_has_the_given_prefix(
    command: Command, output: Output
) -> None:
    assert command(["info", "ab5"]) == 4
    assert "no job's id begins with ab5 (see: flinkray list)" in output()[1]


@pytest.mark.parametrize("name", ["info", "cancel"])
def test_command_for_an_unknown_job_exits_with_4(
    command: Command, output: Output, name: str
) -> None:
    assert command([name, UNKNOWN]) == 4
    out, err = output()
    assert out == ""
    assert err == (f"error: job {UNKNOWN}: not known to this cluster (see: flinkray list)\n")


def test_cancel_requests_cancellation_and_does_not_wait_for_the_end(
    world: World, client: ClusterClient, command: Command, output: Output
) -> None:
    job = job_graph()
    client.submit(job)
    assert command(["cancel", job.job_id.hex()]) == 0
    assert world.cancelled == [job.job_id]
    assert output()[0] == f"job {job.job_id} is being cancelled\n"


def test_cancel_of_a_finished_job_exits_with_1(
    world: World, client: ClusterClient, command: Command, output: Output
) -> None:
    job = job_graph()
    client.submit(job)
    world.end(job.job_id)
    assert command(["cancel", job.job_id.hex()]) == 1
    assert "has finished and cannot be cancelled" in output()[1]


def test_cluster_status_shows_dashboard_leaders_and_free_resources(
    command: Command, output: Output
) -> None:
    assert command(["cluster", "status"]) == 0
    out, _ = output()
    assert "dashboard   http://127.0.0.1:8265" in out
    assert "ray list actors --filter ray_namespace=flinkray-default" in out
    assert "leads       Dispatcher-2 (standing by: Dispatcher, Dispatcher-3)" in out
    assert "leads       ResourceManager (nobody stands by)" in out
    assert "resources   2 CPU, 1g memory free of 2 CPU, 1g memory" in out


@pytest.mark.parametrize(
    "error",
    [
        ClusterNotFoundError("no cluster"),
        RpcConnectionError("no Dispatcher"),
        RpcTimeoutError("no answer"),
    ],
)
def test_command_whose_client_cannot_connect_exits_with_3(output: Output, error: Exception) -> None:
    def connect(address: str, cluster_id: str, configuration: ReadableConfig) -> NoReturn:
        raise error

    assert execute(["list"], connect=connect) == 3
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


def test_job_details_show_duration_executions_reason_for_waiting_and_failures() -> None:
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


def test_job_details_show_concurrent_failures_grouped_by_cause() -> None:
    concurrent = tuple(
        ExceptionEntry(11.5, text, task=task)
        for text, task in [
            ("no disk\nat all", "flights (2/9)"),
            ("it died\nbadly", "flights (3/9)"),
            ("no disk\nat all", "flights (4/9)"),
            ("it died\nbadly", None),
        ]
    )
    failure = replace(_DETAILS.exceptions[0], concurrent=concurrent)
    text = cli_output.job_details(replace(_DETAILS, exceptions=(failure,)), now=75.0)
    assert [line for line in text.splitlines() if line.startswith("  and")] == [
        "  and flights (2/9), flights (4/9): no disk",
        "  and flights (3/9), the job: the same",
    ]


def test_job_details_show_a_traceback_with_verbose_and_otherwise_a_hint_at_verbose() -> None:
    short = cli_output.job_details(_DETAILS, now=75.0).splitlines()
    assert short[-1] == "  traceback: with --verbose"
    long = cli_output.job_details(_DETAILS, now=75.0, verbose=True).splitlines()
    assert long == [*short[:-1], "  line 7"]

    failure = replace(_DETAILS.exceptions[0], traceback=None)
    without = cli_output.job_details(replace(_DETAILS, exceptions=(failure,)), now=75.0)
    assert without.splitlines() == short[:-1]


def test_job_details_of_python_tasks_do_not_mention_spark() -> None:
    execution = ExecutionInfo(0, 0, ExecutionState.RUNNING, "TaskExecutor-0-0 bundle 0 on 10.0.0.1")
    vertex = VertexInfo(JobVertexID(bytes(16)), "words", 1, (execution,))
    details = replace(_DETAILS, vertices=(vertex,), pending_reason=None)
    assert "Spark" not in cli_output.job_details(details, now=75.0)
    far = VertexProgress("words", 1, {"RUNNING": 1})
    progress = replace(JobProgress.of(details), vertices=(far,))
    assert cli_output.progress_text(progress) == "RUNNING | restart 1 | 1/1 tasks of words"


@pytest.mark.parametrize(("failovers", "text"), [(1, "1 JobMaster lost"), (2, "2 JobMasters lost")])
def test_job_details_count_lost_job_masters_as_failovers_not_as_restarts(
    failovers: int, text: str
) -> None:
    details = replace(_DETAILS, restarts=0, failovers=failovers, pending_reason=None)
    assert f"failovers   {text}" in cli_output.job_details(details, now=75.0).splitlines()
    assert cli_output.progress_text(JobProgress.of(details)) == f"RUNNING | {text}"
    without = replace(details, failovers=0)
    assert "failovers" not in cli_output.job_details(without, now=75.0)
    assert cli_output.progress_text(JobProgress.of(without)) == "RUNNING"


def _checkpoint(
    checkpoint_id: int, status: CheckpointStatus, duration: float | None, **others: Any
) -> CheckpointStatistics:
    at = 1_700_000_000_000 + checkpoint_id
    return CheckpointStatistics(checkpoint_id, status, False, at, duration, 4, 3, **others)


def test_job_details_show_the_latest_checkpoints_of_each_kind() -> None:
    """Without --verbose the latest of each kind; with --verbose the newest few, one per line."""
    running = _checkpoint(9, CheckpointStatus.IN_PROGRESS, None)
    path = "/checkpoints/chk-8/_metadata"
    complete = _checkpoint(
        8, CheckpointStatus.COMPLETED, 0.25, state_size=2048, checkpointed_size=512, path=path
    )
    failed = _checkpoint(7, CheckpointStatus.FAILED, 61.0, failure="checkpoint 7: no room")
    saved = replace(complete, checkpoint_id=6, is_savepoint=True, path="/s/_metadata")
    told = CheckpointsOverview(
        1, 5, 2, 3, complete, saved, failed, 4, (running, complete, failed, saved)
    )
    details = replace(_DETAILS, checkpoints=told)
    at = cli_output.format_time(1_700_000_000)
    text = cli_output.job_details(details, now=75.0)
    for line in (
        "checkpoints 5 completed, 2 failed, 1 in progress, restored 3 times, last from 4",
        f"  latest    8 at {at}, took 0.2 s, 2k, 512b of it new: {path}",
        f"  savepoint 6 at {at}, took 0.2 s, 2k, 512b of it new: /s/_metadata",
        f"  failed    7 at {at}: checkpoint 7: no room",
    ):
        assert line in text.splitlines()
    once = replace(_DETAILS, checkpoints=replace(told, restored=1))
    assert ", restored once from 4\n" in cli_output.job_details(once, now=75.0)
    long = [
        line.split() for line in cli_output.job_details(details, 75.0, verbose=True).splitlines()
    ]
    time = at.split()
    for row in (
        ["9", "checkpoint", "IN_PROGRESS", *time, "-", "3/4", "-", "-"],
        ["8", "checkpoint", "COMPLETED", *time, "0.2", "s", "3/4", "2k", "512b"],
        ["7", "checkpoint", "FAILED", *time, "1", "min", "1", "s", "3/4", "-", "-"],
        ["6", "savepoint", "COMPLETED", *time, "0.2", "s", "3/4", "2k", "512b"],
    ):
        assert row in long
    progress = cli_output.progress_text(JobProgress.of(replace(details, pending_reason=None)))
    assert progress == "RUNNING | restart 1 | 5 checkpoints, 2 failed"
    deleted = replace(told, latest_completed=replace(complete, path=None))
    ended = replace(details, checkpoints=deleted, end_time=90.0)
    assert (
        f"  latest    8 at {at}, took 0.2 s, 2k, 512b of it new: deleted, as it was not to be "
        f"retained when the job ended ({cli_output.format_time(90.0)})"
    ) in cli_output.job_details(ended, now=95.0).splitlines()


def test_job_details_without_any_checkpoint_do_not_mention_checkpoints() -> None:
    assert "checkpoints" not in cli_output.job_details(_DETAILS, now=75.0)
    assert "checkpoints" not in cli_output.progress_text(JobProgress.of(_DETAILS))


_NUMBERS = VertexInfo(
    JobVertexID(bytes(16)),
    "Source: numbers that come from a file of numbers",
    1,
    (
        ExecutionInfo(
            0, 0, ExecutionState.RUNNING, None,
            io_metrics=IOMetrics(None, 3000, None, 24_576, 40, 150, 10),
        ),
    ),
    io_metrics=IOMetrics(None, 3000, None, 24_576, 40, 150, 10),
    measured=1,
)  # fmt: skip
_WORDS = VertexInfo(
    JobVertexID(bytes(16)),
    "words",
    2,
    (
        ExecutionInfo(
            0, 0, ExecutionState.RUNNING, "TE-1",
            io_metrics=IOMetrics(2999, None, 1_600_000, None, 0, 0, 0),
        ),
        ExecutionInfo(1, 0, ExecutionState.RUNNING, "TE-1"),
    ),
    io_metrics=IOMetrics(2999, None, 1_600_000, None, 0, 0, 0),
    measured=1,
)  # fmt: skip


def test_job_details_show_records_bytes_and_busy_time_of_each_vertex() -> None:
    text = cli_output.job_details(replace(_DETAILS, vertices=(_NUMBERS, _WORDS)), now=75.0)
    flow = text.partition("VERTEX")[1:]
    assert [line.split("  ") for line in map(_narrow, "".join(flow).splitlines()[:3])] == [
        ["VERTEX", "RECORDS IN", "BYTES IN", "RECORDS OUT", "BYTES OUT", "BUSY", "BACK-PRESSURED",
         "COUNTED"],
        ["Source: numbers that come from a file o…", "-", "-", "3000", "24k", "20%", "75%", "1/1"],
        ["words", "2999", "1.5m", "-", "-", "-", "-", "1/2"],
    ]  # fmt: skip
    assert text.count("RECORDS IN") == 1


def test_job_details_with_verbose_show_records_and_bytes_of_each_subtask() -> None:
    details = replace(_DETAILS, vertices=(_NUMBERS, _WORDS))
    text = cli_output.job_details(details, now=75.0, verbose=True)
    subtasks = text.partition("vertex words")[2].splitlines()[1:4]
    assert [_narrow(line.strip()).split("  ")[5:] for line in subtasks] == [
        ["RECORDS IN", "BYTES IN", "RECORDS OUT", "BYTES OUT", "BUSY", "BACK-PRESSURED"],
        ["2999", "1.5m", "-", "-", "-", "-"],
        ["?", "?", "?", "?", "?", "?"],
    ]


def _narrow(line: str) -> str:
    """With two spaces between columns."""
    return re.sub("  +", "  ", line)


def test_job_details_as_json_have_ids_as_hex_and_states_by_name() -> None:
    value = json.loads(cli_output.to_json(_DETAILS))
    assert value["job_id"] == "0" * 32
    assert value["worker_group"] == "abc"
    assert value["vertices"][0]["executions"][0]["state"] == "RUNNING"
    assert value["status_timestamps"] == {"RUNNING": 11.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-0.1, "0.0 s"), (2.54, "2.5 s"), (60, "1 min 0 s"), (3725, "1 h 2 min")],
)
def test_format_seconds_uses_the_units_that_suit_the_length_of_a_duration(
    seconds: float, text: str
) -> None:
    assert cli_output.format_seconds(seconds) == text


def test_shown_duration_of_an_ended_job_stops_at_its_end() -> None:
    details = replace(_DETAILS, end_time=12.5, status=JobStatus.FINISHED)
    assert "duration    2.5 s" in cli_output.job_details(details, now=1e6)
