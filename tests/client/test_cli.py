"""The command line: what it prints where, and how it exits."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click
import pytest

from flinkray.client import cli as cli_module
from flinkray.client import cli_output
from flinkray.client.attached_run import ProgressDisplay
from flinkray.client.cli import SUMMARIES, cli, execute
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.embedded_output import write_text
from flinkray.client.ray_runtime import ClusterNotFoundError, join_ray
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import RpcConnectionError, RpcTimeoutError
from flinkray.core.ids import JobID
from flinkray.scheduler.shared.states import JobStatus
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


def test_list_escapes_line_ends_and_control_characters_in_job_names(
    client: ClusterClient, command: Command, output: Output
) -> None:
    name = "daily\n\x1b[2Jflights\u202e"
    client.submit(job_graph(name))
    assert command(["list"]) == 0
    out = output()[0]
    assert len(out.splitlines()) == 2
    assert "daily\\n\\x1b[2Jflights\\u202e" in out


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
