"""Reads the last lines of the files that a job's processes have written, on all nodes. Blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flinkray.core.captured_output import files_of_job, last_lines
from flinkray.core.ids import JobID

_PATIENCE = 30.0
"""Seconds to wait for the answers of all nodes."""


@dataclass(frozen=True)
class JobLog:
    """The last lines of one log file on one node."""

    node: str
    """Address of the node."""
    file: str
    """Path of the file on the node."""
    text: str


def logs_of_job(job_id: JobID, lines: int) -> tuple[list[JobLog], list[str]]:
    """Return the last *lines* lines of each log file of the job on all nodes, and the addresses of
    nodes that did not answer. This process must be connected to Ray."""
    task: Any = ray.remote(num_cpus=0, max_retries=0)(_read)
    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = task.options(scheduling_strategy=strategy).remote(job_id.value, lines)
            asked[answer] = str(node["NodeManagerAddress"])
    ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_PATIENCE)
    found: list[JobLog] = []
    silent = []
    for answer, address in asked.items():
        if answer not in ready:
            silent.append(address)
            continue
        try:
            files = ray.get(answer)
        except RayError:
            silent.append(address)
            continue
        found += [JobLog(address, file, text) for file, text in files]
    return found, silent


def _read(job_id: bytes, lines: int) -> list[tuple[str, str]]:
    # Where Ray keeps the logs of this very node.
    node: Any = ray._private.worker._global_node
    folder = str(node.get_logs_dir_path())
    found = []
    for file in files_of_job(folder, JobID(job_id)):
        text = last_lines(file, lines).decode("utf-8", "replace")
        found.append((os.path.join(folder, file.name), text))
    return found
