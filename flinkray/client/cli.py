"""The command line: ``flinkray run|list|info|cancel|resize|savepoint|stop|query``,
``flinkray cluster up|down|status``, ``flinkray data-sets list|release`` and
``flinkray checkpoint list|show|trigger``.

Exit codes: 0 success; 1 the job failed, or an error that is none of the following; 2 bad input
(arguments, script, configuration, a job that is refused); 3 no cluster, or it cannot be reached;
4 unknown job; 5 the job was cancelled or suspended by somebody else; 130 Ctrl-C.
Results go to standard output; progress, notes and errors to standard error.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import click

from flinkray.client import cli_output
from flinkray.client.attached_run import LeftRunning, ProgressDisplay, run_attached
from flinkray.client.cli_checkpoints import checkpoint
from flinkray.client.cli_data_sets import data_sets
from flinkray.client.cli_options import (
    JOB_ID,
    JSON,
    Connect,
    Settings,
    common,
    connect,
    connected,
    pairs,
    running,
)
from flinkray.client.cli_query import query
from flinkray.client.cli_resize import resize
from flinkray.client.cli_savepoints import savepoint, stop, trigger_checkpoint
from flinkray.client.pipeline_loader import PipelineNotFoundError, load_pipeline
from flinkray.client.savepoint_locations import absolute_location
from flinkray.core.config import Configuration
from flinkray.core.errors import (
    ConfigurationError,
    FlinkRayError,
    JobCancelledError,
    JobExecutionError,
    JobNotFinishedError,
    JobNotFoundError,
    JobSubmissionError,
    RpcConnectionError,
)
from flinkray.core.ids import JobID
from flinkray.core.job_options import STATE_RECOVERY_IGNORE_UNCLAIMED, STATE_RECOVERY_PATH
from flinkray.core.options import CLUSTER_ID
from flinkray.scheduler.graph.job_graph import FixedDelayRestart

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_LINE = 500
"""Characters of an error's line."""

FAILED, BAD_INPUT, NO_CLUSTER, UNKNOWN_JOB, ENDED_BY_OTHERS, INTERRUPTED = 1, 2, 3, 4, 5, 130


@click.group(epilog="Exit codes are described in docs/cli.md.")
@click.version_option(package_name="flinkray")
def cli() -> None:
    """Run PySpark pipelines in the slots of a flinkray cluster on Ray."""


class _RunCommand(click.Command):
    """Options may follow a pipeline, but what follows a program belongs to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        if not given.get("is_program"):
            arguments = given.get("arguments")
            if isinstance(arguments, tuple) and "--python" in arguments:  # else no target is given
                raise click.UsageError("--python belongs in front of the program", ctx)
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)


@cli.command(cls=_RunCommand)
@click.argument("target")
@click.argument("arguments", nargs=-1)
@click.option(
    "--python",
    "is_program",
    is_flag=True,
    help="TARGET is a program of streams: it is executed, with all that follows as ARGUMENTS.",
)
@click.option(
    "--parallelism",
    default=1,
    show_default=True,
    help="Slots = Spark executors; of streams, the subtasks of operators that have none set.",
)
@click.option("--cpu", default=1.0, show_default=True, help="Cores of each slot.")
@click.option("--memory", default="1g", show_default=True, help="Memory of each slot.")
@click.option("--name", help="Name of the job.  Default: the function's.")
@click.option("--detached", is_flag=True, help="Print the job id and do not wait.")
@click.option("--restarts", type=click.IntRange(min=0), help="Restarts after failures, 1 s apart.")
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
@pairs("--spark-conf", help="A Spark property.")
@pairs("-D", "values", help="Configuration of job, client, and a cluster that is started.")
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
    """Submit a pipeline and wait for its end.

    TARGET is script.py (its function `pipeline`), script.py:function or module:function; the
    function takes a SparkSession and returns a DataFrame or nothing.  Where no cluster runs on this
    machine, an embedded one is started for the job (--address local: always).

    With --python, TARGET is a script that is executed as the main module; what it executes of
    flinkray.datastream runs on the cluster.  Everything after TARGET is then the program's, options
    included: those of this command, --python too, are given before TARGET.

    Ctrl-C cancels the job and waits for its end; a second one leaves at once.
    """
    from flinkray.client.job_builder import spark_job

    configuration = Configuration(
        {**dict(values), **_of_savepoint(from_savepoint, allow_non_restored_state)}
    )
    if is_program:
        return _run_program(target, arguments, parallelism, address, cluster_id, configuration)
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
        _note("no cluster on this machine: starting an embedded one for this job")
    with ExitStack() as leaving:
        client = leaving.enter_context(connect(address, cluster_id, configuration))
        if client.dashboard_url is not None:
            _note(f"dashboard: {client.dashboard_url}")
        if detached:
            client.submit(job)
            click.echo(str(job.job_id))
            return 0
        try:
            display = ProgressDisplay(sys.stderr, time.monotonic)
            status, was_interrupted = run_attached(client, job, display)
        except LeftRunning:
            leaving.pop_all()
            more = (
                "it ends with its embedded cluster"
                if address == "local"
                else (f"look with: flinkray info {job.job_id}")
            )
            _note(f"left job {job.job_id} while it was being cancelled; {more}")
            return INTERRUPTED
        if was_interrupted:
            _note(f"job {job.job_id} ended: {status.name}")
            return INTERRUPTED
        result = client.job(job.job_id).result()
    text = f"job {result.job_id} finished in {cli_output.format_seconds(result.net_runtime)}"
    if result.has_data:
        text += f": {result.num_rows} rows at {result.location}"
    click.echo(text)
    return 0


def _of_savepoint(path: str | None, allow_non_restored_state: bool) -> dict[str, str]:
    """Configuration of the job."""
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
    configuration: Configuration,
) -> int:
    from flinkray.client.program import check_program, run_program

    check_program(path)
    address = _address_to_run_at(address)
    if address == "local":
        _note("no cluster on this machine: starting an embedded one for this program")
    with connect(address, cluster_id, configuration) as client:
        progress = ProgressDisplay(sys.stderr, time.monotonic)
        try:
            run_program(client, path, arguments, parallelism, progress, configuration.of_job())
        except JobExecutionError as error:
            if "\n" not in str(error):
                raise
            _note(f"error: {error}")  # lines of a traceback stay lines
            return FAILED
    return 0


@cli.command("list")
@JSON
@common
def list_jobs(as_json: bool, address: str | None, cluster_id: str) -> None:
    """List running and ended jobs."""
    with connected(address, cluster_id) as client:
        jobs = client.list_jobs()
    click.echo(cli_output.to_json(jobs) if as_json else cli_output.job_table(jobs, time.time()))


@cli.command()
@JOB_ID
@JSON
@common
@click.pass_obj
def info(
    settings: Settings, job_id: JobID, as_json: bool, address: str | None, cluster_id: str
) -> None:
    """Show a job: status, records and bytes, executions and where they run, failures."""
    with connected(address, cluster_id) as client:
        details = client.job(job_id).details()
    if as_json:
        click.echo(cli_output.to_json(details))
    else:
        text = cli_output.job_details(details, time.time(), verbose=settings.verbose)
        click.echo(text)


@cli.command()
@JOB_ID
@common
def cancel(job_id: JobID, address: str | None, cluster_id: str) -> None:
    """Begin to cancel a job."""
    with connected(address, cluster_id) as client:
        client.cancel(job_id)
    click.echo(f"job {job_id} is being cancelled")


@cli.group()
def cluster() -> None:
    """Start, end and look at a cluster on a running Ray."""


@cluster.command()
@pairs("-D", "values", help="Configuration (docs/configuration.md).")
@common
def up(values: tuple[tuple[str, str], ...], address: str | None, cluster_id: str) -> None:
    """Start a cluster; what runs already is left as it is."""
    from flinkray.client.cluster import start_cluster
    from flinkray.client.connect import open_rpc_service

    configuration = Configuration({**dict(values), CLUSTER_ID.key: cluster_id})
    with open_rpc_service(running(address), cluster_id) as (loop, rpc_service, runtime):
        started = loop.run(start_cluster(rpc_service, configuration))
    if started:
        click.echo(f"cluster {cluster_id!r} is up: started {' and '.join(started)}")
    else:
        click.echo(f"cluster {cluster_id!r} is running already; its configuration is as it was")
    click.echo(f"dashboard: {runtime.dashboard_url or 'none'}")
    click.echo(f"actors: {cli_output.list_actors_command(cluster_id)}")


@cluster.command()
@common
def down(address: str | None, cluster_id: str) -> None:
    """End a cluster with all its jobs; Ray goes on."""
    from flinkray.client import ray_runtime
    from flinkray.client.cluster import stop_cluster
    from flinkray.client.connect import open_rpc_service

    with open_rpc_service(running(address), cluster_id) as (loop, rpc_service, _):
        was_running = ray_runtime.has_cluster(cluster_id)
        end = loop.run(stop_cluster(rpc_service, cluster_id))
    for name in (*end.killed, *end.removed_groups):
        _note(f"was left and ended: {name}")
    if end.kept is not None:
        _note(f"was kept: {end.kept}")
    click.echo(f"cluster {cluster_id!r} {'is down' if was_running else 'was not running'}")


@cluster.command()
@JSON
@common
def status(as_json: bool, address: str | None, cluster_id: str) -> None:
    """Show a cluster's workers, slots and jobs, and where to look in Ray."""
    with connected(address, cluster_id) as client:
        overview = client.cluster_overview()
    click.echo(
        cli_output.to_json(overview)
        if as_json
        else cli_output.cluster_overview(cluster_id, overview)
    )


cli.add_command(data_sets)
cli.add_command(checkpoint)
cli.add_command(query)
cli.add_command(resize)
cli.add_command(savepoint)
cli.add_command(stop)
checkpoint.add_command(trigger_checkpoint)


def main() -> None:
    """Entry point of the ``flinkray`` command."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str], *, connect: Connect | None = None) -> int:
    """Run one command line; returns its exit code.

    Args:
        connect: gives the client, for the cluster that the command line names; by
            :func:`flinkray.connect` when None.
    """
    settings = Settings(connect=connect)
    try:
        code = cli.main(list(arguments), prog_name="flinkray", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        _note(str(interrupt.__cause__ or interrupt) or "interrupted")  # click wraps it
        return INTERRUPTED
    except FlinkRayError as error:
        if settings.verbose:
            traceback.print_exc()
            if error.remote_traceback:
                _note(error.remote_traceback)
        _note(f"error: {_one_line(error)}")
        return _exit_code(error)
    return int(code or 0)


def _exit_code(error: FlinkRayError) -> int:
    from flinkray.client.ray_runtime import ClusterNotFoundError
    from flinkray.spark.user_code import UserCodeError

    codes: tuple[tuple[tuple[type[FlinkRayError], ...], int], ...] = (
        (
            (ConfigurationError, PipelineNotFoundError, JobSubmissionError, UserCodeError),
            BAD_INPUT,
        ),
        ((ClusterNotFoundError, RpcConnectionError), NO_CLUSTER),
        ((JobNotFoundError,), UNKNOWN_JOB),
        ((JobCancelledError, JobNotFinishedError), ENDED_BY_OTHERS),
    )
    return next((code for types, code in codes if isinstance(error, types)), FAILED)


def _one_line(error: FlinkRayError) -> str:
    """Long ones (a Java stack in the message of a Spark error) are cut."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} … (--verbose: all)"


def _note(text: str) -> None:
    click.echo(text, err=True)


def _address_to_run_at(address: str | None) -> str:
    from flinkray.client import ray_runtime

    return (
        address
        or ray_runtime.address_from_environment()
        or ray_runtime.recorded_address()
        or "local"
    )


if __name__ == "__main__":
    main()
