"""The command line of flinkray.

Commands: ``flinkray run|list|info|logs|top|cancel|resize|savepoint|stop|query``, ``flinkray cluster
up|down|status``, ``flinkray doctor``, ``flinkray rest|rest-token`` and ``flinkray checkpoint
list|show|trigger``.

Exit codes: 0 success; 1 the job failed, or an error that is none of the following; 2 bad input
(arguments, script, configuration, a job that is refused); 3 no cluster, or it cannot be reached, or
does not answer; 4 unknown job; 5 the job was cancelled or suspended by somebody else; 130 Ctrl-C;
143 SIGTERM.
Results go to standard output; progress, notes and errors to standard error.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from flinkray.client.cli_settings import (
    BAD_INPUT,
    ENDED_BY_OTHERS,
    FAILED,
    NO_CLUSTER,
    UNKNOWN_JOB,
    Connect,
    Settings,
    note,
)
from flinkray.core.errors import (
    ConfigurationError,
    FlinkRayError,
    JobCancelledError,
    JobNotFinishedError,
    JobNotFoundError,
    JobSubmissionError,
    RpcConnectionError,
    RpcTimeoutError,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_LONGEST_LINE = 500
"""Most characters of an error's line."""

COMMANDS = {
    "cancel": "cli_jobs:cancel",
    "checkpoint": "cli_checkpoints:checkpoint",
    "cluster": "cli_cluster:cluster",
    "doctor": "cli_doctor:doctor",
    "info": "cli_jobs:info",
    "list": "cli_jobs:list_jobs",
    "logs": "cli_logs:logs",
    "models": "cli_jobs:list_models",
    "query": "cli_query:query",
    "resize": "cli_jobs:resize",
    "rest": "cli_rest:rest",
    "rest-token": "cli_rest:rest_token",
    "run": "cli_run:run",
    "savepoint": "cli_savepoints:savepoint",
    "stop": "cli_savepoints:stop",
    "top": "cli_top:top",
}
"""Command name -> module and function, ``module:function``, in this package."""

SUMMARIES = {
    "cancel": "Begin to cancel a job.",
    "checkpoint": "Look at checkpoints and savepoints, or take a checkpoint.",
    "cluster": "Start, end and look at a cluster on a running Ray.",
    "doctor": "Check what jobs need on this machine and on the nodes of Ray, and say what to do.",
    "info": "Show a job: status, records and bytes, tasks and where they run, failures.",
    "list": "List running and ended jobs.",
    "logs": "Show what a job has printed and logged, by process.",
    "models": "List models whose replicas run, and the jobs that use them.",
    "query": "Show what is stored for keys in a queryable state, one line per key.",
    "resize": "Give an elastic job another parallelism.",
    "rest": "Serve a running cluster over HTTP, as Flink's REST API does, until Ctrl-C.",
    "rest-token": "Print the token that flinkray rest of this user has created.",
    "run": "Run a stream program, or a PySpark pipeline.",
    "savepoint": "Take a savepoint of a job, which goes on, and print where it is.",
    "stop": "Take a savepoint of a job, let it finish, and print where the savepoint is.",
    "top": "Show records per second, busy time and back-pressure of running jobs, until Ctrl-C.",
}
"""First lines of the commands' help texts, shown without loading the commands."""


class _Commands(click.Group):
    """A click group that imports the module of a command only when the command runs: imports would
    be most of the time of a short command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = "".join(f" Did you mean {command!r}?" for command in near)
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(SUMMARIES.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=SUMMARIES[name])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_Commands, epilog="Exit codes are described in docs/cli.md.")
@click.version_option(package_name="flinkray")
def cli() -> None:
    """Run stream programs and PySpark pipelines on a flinkray cluster on Ray."""


def main() -> None:
    """Run the ``flinkray`` command with the arguments of this process, and exit with its code."""
    _prepare_streams()
    settings = Settings(process_ends=True)
    settings.end_at_sigterm()
    code = _execute(sys.argv[1:], settings)
    if settings.ray_is_left_at_the_end:
        with suppress(OSError):  # the reader of the output has gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _prepare_streams() -> None:
    """Prepare standard output and standard error, so that results can always be written. A stream
    that was closed before the process began is replaced by the null device: otherwise a socket
    could get the stream's file number. Characters that standard output's encoding lacks are
    escaped."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def execute(arguments: Sequence[str], *, connect: Connect | None = None) -> int:
    """Run a command line and return its exit code. *connect* makes the client of the cluster that
    the command line names; None: :func:`flinkray.connect` does."""
    return _execute(arguments, Settings(connect=connect))


def _execute(arguments: Sequence[str], settings: Settings) -> int:
    try:
        code = cli.main(list(arguments), prog_name="flinkray", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as interrupt:
        note(str(interrupt.__cause__ or interrupt) or "interrupted")  # click wraps the interrupt
        return settings.interrupted
    except FlinkRayError as error:
        if settings.verbose:
            traceback.print_exc()
            if error.remote_traceback:
                note(error.remote_traceback)
        place = "" if settings.place is None else f" ({settings.place})"
        note(f"error: {_one_line(error)}{place}")
        return _exit_code(error)
    except OSError as error:
        if settings.verbose or "run" in arguments[:1]:
            raise  # the file may be one of the program, and the traceback shows where
        note(f"error: {_one_line(error)}")  # for example, the disk has no room for the output
        return FAILED
    return int(code or 0)


def _exit_code(error: FlinkRayError) -> int:
    from flinkray.client.pipeline_loader import PipelineNotFoundError
    from flinkray.client.ray_runtime import ClusterNotFoundError
    from flinkray.user_code import UserCodeError

    codes: tuple[tuple[tuple[type[FlinkRayError], ...], int], ...] = (
        (
            (ConfigurationError, PipelineNotFoundError, JobSubmissionError, UserCodeError),
            BAD_INPUT,
        ),
        ((ClusterNotFoundError, RpcConnectionError, RpcTimeoutError), NO_CLUSTER),
        ((JobNotFoundError,), UNKNOWN_JOB),
        ((JobCancelledError, JobNotFinishedError), ENDED_BY_OTHERS),
    )
    return next((code for types, code in codes if isinstance(error, types)), FAILED)


def _one_line(error: Exception) -> str:
    """Return an error's text on one line. A text that is too long, such as a Java stack, is cut."""
    from flinkray.client.cli_output import printable

    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} … (--verbose: all)"


if __name__ == "__main__":
    main()
