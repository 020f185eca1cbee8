"""Executes a Python stream program as the main module. Its jobs run on a cluster."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from flinkray.client.attached_run import Progress
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.code_lines import line_of_user
from flinkray.client.pipeline_loader import PipelineNotFoundError
from flinkray.streaming.program.execution_target import ExecutionTarget, running_at

_MOST_NAMED = 5
"""Most operators that a message names."""


def check_program(path: str) -> None:
    """Check that a script exists. Raises PipelineNotFoundError."""
    if not Path(path).is_file():
        what = "is not a file" if Path(path).exists() else "does not exist"
        raise PipelineNotFoundError(f"the script {path} {what}")


def run_program(
    client: ClusterClient,
    path: str,
    arguments: Sequence[str],
    parallelism: int | None,
    progress: Progress,
    configuration: Mapping[str, str] | None = None,
) -> None:
    """Execute a script; its jobs run on the cluster. If the script ends without having executed the
    program that it built, *progress* shows a message. The script can import files beside it.
    Exceptions of the script are raised here, SystemExit included."""
    target = ExecutionTarget(client, parallelism, progress, configuration or {})
    argv, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    sys.path.insert(0, folder)
    try:
        with running_at(target):
            runpy.run_path(path, run_name="__main__")
            _tell_of_what_did_not_run(target, path, progress)
    finally:
        sys.argv = argv
        sys.path.remove(folder)


def _tell_of_what_did_not_run(target: ExecutionTarget, path: str, progress: Progress) -> None:
    for env in target.environments:
        names = [one.name for one in env.to_be_executed]
        if len(names) > _MOST_NAMED:
            names[_MOST_NAMED:] = [f"{len(names) - _MOST_NAMED} more"]
        if names:
            progress.message(
                f"{os.path.basename(path)} has ended and never ran {', '.join(names)}: streams run "
                "when env.execute() is called, or stream.execute_and_collect()"
            )


def place_in_program(error: BaseException) -> str | None:
    """Return a text with the line of the user's program nearest to the place where *error* was
    raised. None: the traceback has no such line."""
    line = line_of_user(error)
    return line and f"{os.path.basename(line[0])}, line {line[1]}"


def show_as_a_program_does(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """Show a program's error as ``python`` does, without the frames that belong to
    :func:`run_program`. This is a ``sys.excepthook``."""
    runs = run_program.__code__
    step = frames
    while step is not None and step.tb_frame.f_code is not runs:
        step = step.tb_next
    if step is not None:
        frames = step.tb_next
        while frames is not None and frames.tb_frame.f_globals.get("__name__") == runpy.__name__:
            frames = frames.tb_next
    sys.__excepthook__(kind, error.with_traceback(frames), frames)
