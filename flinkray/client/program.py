"""Running a Python program of streams as its own main module, on a cluster."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flinkray.client.attached_run import Progress
from flinkray.client.cluster_client import ClusterClient
from flinkray.client.pipeline_loader import PipelineNotFoundError
from flinkray.streaming.program.execution_target import ExecutionTarget, running_at


def check_program(path: str) -> None:
    """Raises PipelineNotFoundError: there is no such script."""
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
    """Execute the script; what it calls ``execute`` on runs on the cluster.

    It can import what lies beside it.  Raises whatever it raises, SystemExit included.
    """
    argv, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    sys.path.insert(0, folder)
    try:
        with running_at(ExecutionTarget(client, parallelism, progress, configuration or {})):
            runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv = argv
        sys.path.remove(folder)
