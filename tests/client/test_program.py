"""``flinkray run --python``: programs of streams, executed as main modules on a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from flinkray.client import job_logs
from flinkray.client.cli import execute
from flinkray.client.cli_settings import BAD_INPUT, FAILED, NO_CLUSTER, Connect
from flinkray.client.program import show_as_a_program_does
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.streaming.program.execution_target import execution_target
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster

PROGRAM = """
import sys
from flinkray.datastream import StreamExecutionEnvironment
from beside import Doubling

if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    results = env.from_sequence(1, 3).map(Doubling()).execute_and_collect()
    with open(sys.argv[1], "w") as out:
        out.write(f"{env.get_parallelism()} {sorted(results)}")
"""
BESIDE = """
from flinkray.datastream import MapFunction

class Doubling(MapFunction):
    def map(self, value):
        return 2 * value
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedCluster]:
    with threaded_cluster(str(tmp_path / "cluster")) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
        yield cluster


def given(cluster: ThreadedCluster) -> Connect:
    """The client, which its cluster closes."""
    return lambda *_: nullcontext(cluster.client)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "beside.py").write_text(BESIDE)
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


def test_a_program_runs_on_the_cluster_with_its_arguments(
    cluster: ThreadedCluster, program: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    line = ["run", "--python", "--parallelism", "3", str(program), str(out)]
    assert execute(line, connect=given(cluster)) == 0
    assert out.read_text() == "3 [2, 4, 6]"
    assert execution_target().cluster is None
    assert StreamExecutionEnvironment.get_execution_environment().get_parallelism() == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--output", "x", "-D", "a", "--parallelism", "9", "--python"],
        ["in.txt", "--help", "--verbose"],
        ["--", "--version"],
    ],
)
def test_arguments_after_a_program_are_passed_to_the_program(
    cluster: ThreadedCluster, program: Path, tmp_path: Path, arguments: list[str]
) -> None:
    program.write_text(PROGRAM.replace("{sorted(results)}", "{sys.argv[2:]}"))
    out = tmp_path / "out.txt"
    line = ["run", "--parallelism", "3", "--python", str(program), str(out), *arguments]
    assert execute(line, connect=given(cluster)) == 0
    assert out.read_text() == f"3 {arguments}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--detached"], "--detached"),
        (["in.txt", "--name=x", "--output", "y", "-Da=b"], "--name=x, -Da=b"),
        (["--detach", "--help", "name", "-"], None),
    ],
)
def test_run_warns_of_options_of_its_own_that_are_given_after_the_program(
    cluster: ThreadedCluster,
    program: Path,
    tmp_path: Path,
    arguments: list[str],
    told: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["run", "--python", str(program), str(tmp_path / "out.txt"), *arguments]
    assert execute(line, connect=given(cluster)) == 0
    notes = [note for note in capsys.readouterr().err.splitlines() if "given to" in note]
    expected = (
        f"{told}: given to {program}, as all that follows it; "
        "options of flinkray run come before the program"
    )
    assert notes == ([] if told is None else [expected])


def test_job_options_of_run_apply_to_the_jobs_of_the_program(
    cluster: ThreadedCluster, program: Path, tmp_path: Path
) -> None:
    """FO-14: options that the program sets itself take precedence."""
    shown = "env.get_configuration().to_dict()"
    program.write_text(PROGRAM.replace("{sorted(results)}", f"{{{shown}}}"))
    out = tmp_path / "out.txt"
    line = ["run", "--python", "-D", "restart-strategy.type=off", "-D", "heartbeat.interval=9 s"]
    assert execute([*line, str(program), str(out)], connect=given(cluster)) == 0
    assert out.read_text() == "1 {'restart-strategy.type': 'none'}"
    assert (
        StreamExecutionEnvironment.get_execution_environment().get_configuration().to_dict() == {}
    )


@pytest.mark.parametrize(("interval", "milliseconds"), [("5 ms", 5), ("never", -1)])
def test_run_configures_a_program_by_flinks_option_names(
    cluster: ThreadedCluster, program: Path, tmp_path: Path, interval: str, milliseconds: int
) -> None:
    """PF-21: like -D of Flink's command line."""
    shown = "env.get_buffer_timeout(), env.get_config().is_object_reuse_enabled()"
    program.write_text(PROGRAM.replace("{sorted(results)}", f"{{{shown}}}"))
    out = tmp_path / "out.txt"
    line = ["run", "--python", "-D", "parallelism.default=3", "-D", "pipeline.object-reuse=true"]
    line += ["-D", f"execution.buffer-timeout.interval={interval}", str(program), str(out)]
    assert execute(line, connect=given(cluster)) == 0
    assert out.read_text() == f"3 ({milliseconds}, True)"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--parallelism", "2", "--python"], "--parallelism and -D parallelism.default are the"),
        ([], "configuration key 'parallelism.default' is set for a program"),
    ],
)
def test_run_refuses_program_options_that_contradict_or_that_only_programs_know(
    program: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["run", "-D", "parallelism.default=3", *options, str(program)]
    assert execute(line) == BAD_INPUT
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("restarts", "configuration"),
    [
        (
            "3",
            {
                "restart-strategy.fixed-delay.attempts": "3",
                "restart-strategy.fixed-delay.delay": "1 s",
                "restart-strategy.type": "fixed-delay",
            },
        ),
        ("0", {"restart-strategy.type": "none"}),
    ],
)
def test_run_option_restarts_sets_the_restart_strategy_of_the_programs_jobs(
    cluster: ThreadedCluster,
    program: Path,
    tmp_path: Path,
    restarts: str,
    configuration: dict[str, str],
) -> None:
    shown = "dict(sorted(env.get_configuration().to_dict().items()))"
    program.write_text(PROGRAM.replace("{sorted(results)}", f"{{{shown}}}"))
    out = tmp_path / "out.txt"
    line = ["run", "--python", "--restarts", restarts, str(program), str(out)]
    assert execute(line, connect=given(cluster)) == 0
    assert out.read_text() == f"1 {configuration}"


def test_run_shows_the_error_of_a_failed_job_of_a_program(
    cluster: ThreadedCluster, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(PROGRAM.replace("Doubling()", "lambda v: 1 // (v - 2)"))
    line = ["run", "--python", str(program), str(tmp_path / "out.txt")]
    assert execute(line, connect=given(cluster)) == FAILED
    told = capsys.readouterr().err.splitlines()
    (error,) = [line for line in told if line.startswith("error: ")]  # progress may be shown, too
    assert error.startswith("error: job ")
    assert error.endswith("failed: Traceback (most recent call last):")
    assert "ZeroDivisionError: integer division or modulo by zero" in told


def test_run_shows_each_job_that_a_program_submits(
    cluster: ThreadedCluster, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(
        PROGRAM.replace(
            "results = ", "env.from_sequence(1, 3).print(); env.execute('one')\n    results = "
        )
    )
    line = ["run", "--python", str(program), str(tmp_path / "out.txt")]
    assert execute(line, connect=given(cluster)) == 0
    (job,) = [job for job in cluster.client.list_jobs() if job.name == "one"]
    assert f"submitted job {job.job_id} (one)" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["run", "--python", "nothing.py"], "the script nothing.py does not exist"),
        (["run", "script.py", "argument"], "only programs (--python) take arguments"),
        (["run", "script.py", "--python"], "--python belongs in front of the program"),
        (["run"], "Missing argument 'TARGET'"),
        (["run", "--python", "--output", "x", "nothing.py"], "No such option"),
        (["run", "--detached", "--python", "a.py"], "--detached is for pipelines, and not for"),
        (["run", "--python", "--name", "x", "a.py"], "it names its jobs itself: env.execute('n"),
        (["run", "--python", "--cpu", "1.0", "a.py"], "--cpu is for pipelines"),
        (["run", "--python", "--memory", "1g", "a.py"], "--memory is for pipelines"),
        (["run", "--python", "--spark-conf", "a=b", "a.py"], "--spark-conf is for pipelines"),
    ],
)
def test_run_refuses_invalid_arguments_of_a_program(
    line: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(line) == BAD_INPUT
    assert text in capsys.readouterr().err


BUILT_ONLY = """
from flinkray.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_sequence(1, 3).map(lambda n: n).print()
{last}
"""


def test_run_says_that_a_program_built_a_stream_but_never_executed_it(
    cluster: ThreadedCluster, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(BUILT_ONLY.format(last=""))
    assert execute(["run", "--python", str(program)], connect=given(cluster)) == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        "program.py has ended and never ran Source: Number Sequence Source, Map, Sink: Print to "
        "Std. Out: streams run when env.execute() is called, or stream.execute_and_collect()"
    )


def test_run_prints_no_warning_when_a_program_executes_its_stream(
    cluster: ThreadedCluster, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(BUILT_ONLY.format(last="env.execute()"))
    assert execute(["run", "--python", str(program)], connect=given(cluster)) == 0
    assert "never ran" not in capsys.readouterr().err


RAISED = """def divide(number):
    return 1 / number


try:
    divide(0)
except ZeroDivisionError as error:
    raise ValueError("what python shows") from error
"""


@pytest.mark.parametrize("text", [RAISED, "x = (\n", "import nothing_at_all\n"])
def test_run_shows_the_traceback_of_a_program_as_python_does(
    cluster: ThreadedCluster, program: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(text)
    with pytest.raises((ValueError, SyntaxError, ImportError)) as raised:
        execute(["run", "--python", str(program)], connect=given(cluster))
    capsys.readouterr()
    show_as_a_program_does(raised.type, raised.value, raised.tb)
    shown = capsys.readouterr().err
    under_python = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert shown == under_python.stderr


def test_error_for_a_wrong_argument_in_a_program_names_the_line_of_the_program(
    cluster: ThreadedCluster, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(BUILT_ONLY.format(last="env.from_sequence(1, 3).key_by(0)"))
    assert execute(["run", "--python", str(program)], connect=given(cluster)) == FAILED
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: key_by takes a function, a KeySelector or the name of a field, got 0 "
        "(program.py, line 6)"
    )


def test_run_escapes_control_characters_in_the_failure_of_a_program(
    cluster: ThreadedCluster, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = "def fail(n): raise ValueError('\\x1b[2J')\nenv.from_sequence(1, 1).map(fail).print()"
    program.write_text(BUILT_ONLY.format(last=f"{fails}\nenv.execute()"))
    assert execute(["run", "--python", str(program)], connect=given(cluster)) == FAILED
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert "ValueError: \\x1b[2J" in error.splitlines()


def test_logs_fails_when_no_node_answers_instead_of_showing_empty_logs(
    cluster: ThreadedCluster,
    program: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program.write_text(BUILT_ONLY.format(last="env.execute()"))
    assert execute(["run", "--python", str(program)], connect=given(cluster)) == 0
    (job,) = cluster.client.list_jobs()
    monkeypatch.setattr(job_logs, "logs_of_job", lambda *_: ([], ["10.0.0.1"]))
    capsys.readouterr()
    assert execute(["logs", str(job.job_id)], connect=given(cluster)) == NO_CLUSTER
    assert capsys.readouterr().err.splitlines() == [
        "node 10.0.0.1 did not answer",
        f"Error: what job {job.job_id} has written is not known; try again",
    ]
