"""``flinkray run``."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import click
from click.core import ParameterSource

from flinkray.client import cli_output
from flinkray.client.attached_run import LeftRunning, ProgressDisplay, run_attached
from flinkray.client.cli_options import (
    check_set_for,
    common,
    connect,
    cores,
    pairs,
    settings,
    settings_of_command,
)
from flinkray.client.cli_settings import FAILED, note
from flinkray.client.pipeline_loader import load_pipeline
from flinkray.client.savepoint_locations import absolute_location
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FlinkRayError, JobExecutionError
from flinkray.core.job_options import (
    RESTART_FIXED_DELAY_ATTEMPTS,
    RESTART_FIXED_DELAY_DELAY,
    RESTART_STRATEGY,
    STATE_RECOVERY_IGNORE_UNCLAIMED,
    STATE_RECOVERY_PATH,
)
from flinkray.core.options import OPTIONS
from flinkray.core.program_settings import PARALLELISM, PROGRAM_KEYS
from flinkray.scheduler.graph.job_graph import FixedDelayRestart


class _RunCommand(click.Command):
    """The command ``run``. Its options may come before or after the name of a pipeline. With
    ``--python``, all arguments after the script are passed to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        if not given.get("is_program"):
            arguments = given.get("arguments")
            if isinstance(arguments, tuple) and "--python" in arguments:  # else no target is given
                raise click.UsageError("--python belongs in front of the program", ctx)
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)


@click.command(cls=_RunCommand)
@click.argument("target")
@click.argument("arguments", nargs=-1)
@click.option(
    "--python",
    "is_program",
    is_flag=True,
    help="TARGET is a stream program: it is executed, with all that follows as its ARGUMENTS.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Slots, each with a Spark executor; of a program, parallelism of operators that set none.",
)
@click.option(
    "--cpu",
    type=cores,
    default=1.0,
    show_default=True,
    metavar="FLOAT",
    help="For pipelines: CPU cores of each slot.",
)
@click.option(
    "--memory", default="1g", show_default=True, help="For pipelines: memory of each slot."
)
@click.option("--name", help="For pipelines: name of the job.  Default: the function's.")
@click.option("--detached", is_flag=True, help="For pipelines: print the job id, do not wait.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    help="How often the job is restarted after failures, 1 s after each.",
)
@click.option(
    "--from-savepoint",
    metavar="PATH",
    help="The savepoint that the program (--python) starts from.",
)
@click.option(
    "--allow-non-restored-state",
    is_flag=True,
    help="Drop state in the savepoint that no operator of the program has.",
)
@pairs("--spark-conf", help="For pipelines: a Spark property.")
@settings(
    "Configuration of the job, the client, the program, and a cluster that is started for it."
)
@common
def run(
    target: str,
    arguments: tuple[str, ...],
    is_program: bool,
    parallelism: int,
    cpu: float,
    memory: str,
    name: str | None,
    detached: bool,
    restarts: int | None,
    from_savepoint: str | None,
    allow_non_restored_state: bool,
    spark_conf: tuple[tuple[str, str], ...],
    values: tuple[tuple[str, str], ...],
    address: str | None,
    cluster_id: str,
) -> int:
    """Run a stream program, or a PySpark pipeline.

    Without --python, submit a pipeline and wait for its end.  TARGET is script.py (its function
    `pipeline`), script.py:function or module:function; the function takes a SparkSession and
    returns a DataFrame or nothing.  If no cluster runs on this machine, an embedded one is started
    for the job (with --address local always).

    With --python, TARGET is a script that is executed as the main module, and its jobs run on the
    cluster.  Everything after TARGET then belongs to the program, options included: give the
    options of this command, and --python, before TARGET.

    Ctrl-C, or SIGTERM, cancels the job and waits for its end; a second one leaves at once.
    """
    from flinkray.client.job_result import JobExecutionResult
    from flinkray.client.spark_jobs import spark_job

    given = dict(values)
    of_program = _of_program(given) if is_program else {}
    configuration = ReadableConfig(
        {
            **{k: v for k, v in given.items() if k in OPTIONS or k not in of_program},
            **_of_savepoint(from_savepoint, allow_non_restored_state),
        }
    )
    check_set_for(configuration, "cluster", "job", "client")
    if is_program:
        _refuse_options_of_pipelines()
        if restarts is not None:
            configuration = configuration.with_values(_of_restarts(restarts))
        _tell_of_options_after_the_program(target, arguments)
        return _run_program(
            target, arguments, parallelism, address, cluster_id, configuration, of_program
        )
    if arguments:
        raise click.UsageError("only programs (--python) take arguments")
    if from_savepoint is not None:
        raise click.UsageError("only programs (--python) start from savepoints")
    job = spark_job(
        load_pipeline(target),
        name=name,
        parallelism=parallelism,
        cpu=cpu,
        memory=memory,
        spark_conf=dict(spark_conf),
        restart_strategy=None if restarts is None else FixedDelayRestart(restarts),
        configuration=configuration.of_job(),
    )
    address = _address_to_run_at(address)
    if address == "local":
        if detached:
            raise click.UsageError(
                "--detached needs a cluster that outlives this command "
                "(ray start --head && flinkray cluster up)"
            )
        note("no cluster on this machine: starting an embedded one for this job")
    with ExitStack() as leaving:
        with _telling_what_is_waited_for():
            connecting = connect(address, cluster_id, configuration)
        client = leaving.enter_context(connecting)
        if client.dashboard_url is not None:
            note(f"dashboard: {client.dashboard_url}")
        if detached:
            client.submit(job)
            click.echo(str(job.job_id))
            return 0
        try:
            display = ProgressDisplay(sys.stderr, time.monotonic)
            ended, was_interrupted = run_attached(client, job, display)
        except LeftRunning:
            leaving.pop_all()
            more = (
                "it ends with its embedded cluster"
                if address == "local"
                else (f"look with: flinkray info {job.job_id}")
            )
            note(f"left job {job.job_id} while it was being cancelled; {more}")
            return settings_of_command().interrupted
        if was_interrupted:
            note(f"job {job.job_id} ended: {ended.status.name}")
            return settings_of_command().interrupted
        result = JobExecutionResult.of(ended)
    text = f"job {result.job_id} finished in {cli_output.format_seconds(result.net_runtime)}"
    if result.has_data:
        text += f": {result.num_rows} rows at {result.location}"
    click.echo(text)
    return 0


_INSTEAD = {
    "detached": "the program waits, or calls execute_async()",
    "name": "it names its jobs itself: env.execute('name')",
    "cpu": "it says what its operators need: slot_sharing_group()",
    "memory": "it says what its operators need: slot_sharing_group()",
    "spark_conf": "its Spark stages have properties of their own: BatchJob.spark(spark_conf=…)",
}
"""Replacement in programs for each option that only pipelines have."""


def _of_program(values: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of *values* that the program itself reads, such as its parallelism. Raises
    click.UsageError: the parallelism is given both in *values* and by ``--parallelism``."""
    of_program = {key: value for key, value in values.items() if key in PROGRAM_KEYS}
    given = click.get_current_context().get_parameter_source("parallelism")
    if PARALLELISM in of_program and given is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--parallelism and -D {PARALLELISM} are the same: give one")
    return of_program


def _refuse_options_of_pipelines() -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in _INSTEAD and is_given:
            option = parameter.opts[0]
            raise click.UsageError(
                f"{option} is for pipelines, and not for programs (--python): {_INSTEAD[name]}. "
                "What is meant for the program itself comes after it."
            )


def _tell_of_options_after_the_program(target: str, arguments: Sequence[str]) -> None:
    """Write a note to standard error that names those of *arguments* (which the program gets) that
    ``flinkray run`` has as options, too: the user may have meant this command."""
    context = click.get_current_context()
    ours = [name for option in context.command.params for name in option.opts if name[0] == "-"]
    meant = [given for given in arguments if any(_is_option(given, name) for name in ours)]
    if meant:
        note(
            f"{', '.join(meant)}: given to {target}, as all that follows it; "
            "options of flinkray run come before the program"
        )


def _is_option(given: str, name: str) -> bool:
    if name.startswith("--"):
        return given.partition("=")[0] == name
    return given.startswith(name)


def _of_restarts(restarts: int) -> dict[str, str]:
    if restarts == 0:
        return {RESTART_STRATEGY.key: "none"}
    return {
        RESTART_STRATEGY.key: "fixed-delay",
        RESTART_FIXED_DELAY_ATTEMPTS.key: str(restarts),
        RESTART_FIXED_DELAY_DELAY.key: "1 s",
    }


def _of_savepoint(path: str | None, allow_non_restored_state: bool) -> dict[str, str]:
    if path is None:
        if allow_non_restored_state:
            raise click.UsageError("--allow-non-restored-state goes with --from-savepoint")
        return {}
    return {
        STATE_RECOVERY_PATH.key: absolute_location(path),
        STATE_RECOVERY_IGNORE_UNCLAIMED.key: str(allow_non_restored_state).lower(),
    }


def _run_program(
    path: str,
    arguments: Sequence[str],
    parallelism: int,
    address: str | None,
    cluster_id: str,
    configuration: ReadableConfig,
    of_program: Mapping[str, str],
) -> int:
    from flinkray.client.program import (
        check_program,
        place_in_program,
        run_program,
        show_as_a_program_does,
    )

    check_program(path)
    if settings_of_command().process_ends:
        sys.excepthook = show_as_a_program_does
    of_job = {**configuration.of_job(), **of_program}
    address = _address_to_run_at(address)
    if address == "local":
        note("no cluster on this machine: starting an embedded one for this program")
    with _telling_what_is_waited_for():
        connecting = connect(address, cluster_id, configuration)
    with connecting as client:
        progress = ProgressDisplay(sys.stderr, time.monotonic)
        try:
            run_program(client, path, arguments, parallelism, progress, of_job)
        except JobExecutionError as error:
            if "\n" not in str(error):
                raise
            lines = str(error).splitlines()  # the lines of a traceback stay separate
            note(f"error: {chr(10).join(map(cli_output.printable, lines))}")
            return FAILED
        except FlinkRayError as error:
            settings_of_command().place = place_in_program(error)
            raise
    return 0


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def _telling_what_is_waited_for() -> Iterator[None]:
    log = logging.getLogger("flinkray.client.connect")
    notes, level = _Notes(logging.INFO), log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(notes)
        log.setLevel(level)


def _address_to_run_at(address: str | None) -> str:
    from flinkray.client import ray_runtime

    given = address or ray_runtime.address_from_environment()
    if given is not None:
        return given
    # not the recorded address itself: only to "auto" is this user's token sent
    return "local" if ray_runtime.recorded_address() is None else "auto"
