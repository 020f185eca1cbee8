"""Finds and ends the processes of a Spark stage that Ray does not own.

Each JVM of a stage, and each process that an executor forks, carries the stage's marker in its
environment; JVMs also on the command line. A ``pyspark.daemon`` can outlive its executor's JVM; the
process that frees a slot ends the remaining processes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import psutil

from flinkray.core.ids import ExecutionGraphID, JobID, JobVertexID

JOB_VARIABLE = "FLINKRAY_JOB_ID"
ATTEMPT_VARIABLE = "FLINKRAY_SPARK_ATTEMPT"
_APPLICATION_NOTE = "application"
_APPLICATION_PREFIX = "app-"
_RAY_WORKER = "io.ray.runtime.runner.worker.DefaultWorker"
_JOB_OPTION = "-Dflinkray.job.id="
_ATTEMPT_OPTION = "-Dflinkray.spark.attempt="


def stage_name(job_id: JobID, attempt: str) -> str:
    """Return ``spark-<job>-<attempt>``, which names the namespace, files and directories of a stage
    attempt."""
    return f"spark-{job_id}-{attempt}"


def marker_environment(job_id: JobID, attempt: str) -> dict[str, str]:
    return {JOB_VARIABLE: job_id.hex(), ATTEMPT_VARIABLE: attempt}


def marker_options(job_id: JobID, attempt: str) -> tuple[str, str]:
    """Return JVM options that have no effect but mark the process as one of this stage attempt, so
    that :func:`leftover_processes` finds it."""
    return f"{_JOB_OPTION}{job_id}", f"{_ATTEMPT_OPTION}{attempt}"


def leftover_processes(job_id: JobID, attempt: str | None = None) -> list[psutil.Process]:
    """Return this node's processes that carry the marker of a job (of one attempt, if *attempt* is
    given), without zombies. Processes of other users, whose environment cannot be read, are
    recognised by command line only. Takes about a millisecond per ten processes of the machine."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and _is_marked(process, job_id, attempt):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end_processes(
    processes: Iterable[psutil.Process], grace: float = 2.0, patience: float = 3.0
) -> list[psutil.Process]:
    """Send SIGTERM, and after *grace* seconds SIGKILL; blocks at most ``grace + patience`` seconds.

    If another process has got the same process id in the meantime, it is never touched (psutil
    compares start times).

    Returns:
        Processes that are still alive; this happens only to processes stuck in the kernel.
    """
    processes = list(processes)
    _signal(processes, "terminate")
    _, alive = psutil.wait_procs(processes, timeout=grace)
    if not alive:
        return []
    _signal(alive, "kill")
    _, alive = psutil.wait_procs(alive, timeout=patience)
    return list(alive)


def end_leftovers(
    job_id: JobID, attempt: str | None = None, grace: float = 2.0, patience: float = 10.0
) -> int:
    """Find and end a job's processes on this node, including processes forked during the call.

    Ray itself ends executors and app masters when their driver's JVM is gone; they get *patience*
    seconds for that. A starting executor must not be killed: the raylet would count it as starting
    for another minute, and start no other worker in its place.

    Returns:
        Number of processes found.
    """
    processes = leftover_processes(job_id, attempt)
    count = len(processes)
    workers = [process for process in processes if _is_ray_worker(process)]
    end_processes([process for process in processes if process not in workers], grace)
    psutil.wait_procs(workers, timeout=patience)
    for _ in range(3):
        processes = leftover_processes(job_id, attempt)
        if not processes:
            break
        end_processes(processes, grace)
    return count


def past_attempts(
    job_id: JobID, vertex_id: JobVertexID, graph_id: ExecutionGraphID, attempt_number: int
) -> tuple[str, ...]:
    """Return the names of stage attempts that must be over but still have processes on this node.
    An attempt must be over if it belongs to another execution graph of the job (from before a
    restart of the whole job), or is an earlier attempt of the given vertex in this graph."""
    present = (vertex_id.short(), graph_id.short())
    past = set()
    for process in leftover_processes(job_id):
        attempt = _attempt_of(process)
        if not attempt:
            continue
        vertex, _, rest = attempt.partition("-")
        graph, _, number = rest.partition("-")
        is_earlier = number.isdecimal() and int(number) < attempt_number
        if graph != present[1] or ((vertex, graph) == present and is_earlier):
            past.add(attempt)
    return tuple(sorted(past))


def remove_scratch(session_directory: str, job_id: JobID, attempt: str | None = None) -> None:
    """Remove the shuffle and spill files of a job on this node. *attempt*: only those of this
    attempt."""
    pattern = stage_name(job_id, attempt) if attempt is not None else f"spark-{job_id}-*"
    session = Path(session_directory)
    for directory in session.glob(pattern):
        note = directory / _APPLICATION_NOTE
        application = note.read_text() if note.is_file() else ""
        if application.startswith(_APPLICATION_PREFIX):
            shutil.rmtree(session / application, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)


def note_application(session_directory: str, job_id: JobID, attempt: str, application: str) -> None:
    """Store the id that RayDP gives the application: it names its executors' working directories,
    which RayDP leaves behind. :func:`remove_scratch` removes those on the driver's node."""
    directory = Path(session_directory, stage_name(job_id, attempt))
    (directory / _APPLICATION_NOTE).write_text(application)


def _is_marked(process: psutil.Process, job_id: JobID, attempt: str | None) -> bool:
    try:
        environment = process.environ()
    except psutil.AccessDenied:
        environment = {}
    if environment.get(JOB_VARIABLE) == job_id.hex():
        return attempt is None or environment.get(ATTEMPT_VARIABLE) == attempt
    arguments = process.cmdline()
    if f"{_JOB_OPTION}{job_id}" not in arguments:
        return False
    return attempt is None or f"{_ATTEMPT_OPTION}{attempt}" in arguments


def _is_ray_worker(process: psutil.Process) -> bool:
    """Return whether a process is a JVM that Ray has started, or the shell that is about to become
    one."""
    try:
        return any(_RAY_WORKER in argument for argument in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _attempt_of(process: psutil.Process) -> str:
    """Return the name of the stage attempt in a process's marker; "" if the process has ended or
    its marker cannot be read."""
    try:
        attempt: str | None = process.environ().get(ATTEMPT_VARIABLE)
    except psutil.NoSuchProcess:
        return ""
    except psutil.AccessDenied:
        attempt = None
    if attempt is not None:
        return attempt
    try:
        arguments = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
    options = (a for a in arguments if a.startswith(_ATTEMPT_OPTION))
    return next(options, "").removeprefix(_ATTEMPT_OPTION)


def _signal(processes: Iterable[psutil.Process], method: str) -> None:
    for process in processes:
        try:
            getattr(process, method)()
        except psutil.NoSuchProcess:
            continue
