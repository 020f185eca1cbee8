"""What the demo says of its jobs while they run."""

from __future__ import annotations

import time

from flinkray import JobDetails, StageProgressInfo, VertexInfo


class Progress:
    """Prints a line for whatever changed since the job was looked at last."""

    def __init__(self, begin: float | None = None) -> None:
        self._begin = time.monotonic() if begin is None else begin
        self._said: dict[str, str] = {}

    def of_another_job(self) -> Progress:
        """By the same clock."""
        return Progress(self._begin)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begin:6.1f} s  {text}", flush=True)

    def show(self, job: JobDetails) -> bool:
        """Returns whether the job has ended."""
        self._say_once("status", f"job {job.status.name}")
        if job.pending_reason:
            self._say_once("pending", f"waiting for slots: {job.pending_reason}")
        for vertex in job.vertices:
            # of several vertices it would be too much
            for execution in vertex.executions if len(job.vertices) == 1 else ():
                place = f" in {execution.location}" if execution.location else ""
                pid = f", executor pid {execution.executor_pid}" if execution.executor_pid else ""
                self._say_once(
                    f"slot {execution.subtask_index}",
                    f"slot {execution.subtask_index}: {execution.state.name}{place}{pid}",
                )
            self._say_once("spark", _spark_progress(vertex))
        for exception in job.exceptions:
            self._say_once(f"exception {exception.timestamp}", f"failure: {exception.text}")
        return job.status.is_terminal

    def _say_once(self, subject: str, text: str) -> None:
        if text and self._said.get(subject) != text:
            self._said[subject] = text
            self.say(text)


def _spark_progress(vertex: VertexInfo) -> str:
    if not (vertex.active_stages or vertex.completed_stages):
        return ""
    running = "".join(
        f"; stage {_stage(stage)}: {stage.completed_tasks} of {stage.num_tasks} tasks"
        for stage in vertex.active_stages
    )
    return f"Spark: stages done {vertex.completed_stages}, tasks {vertex.completed_tasks}{running}"


def _stage(stage: StageProgressInfo) -> str:
    """Its number, and the call of the program that caused it, if it was one: Spark has
    ``parquet at <place>``, and names such as ``$anonfun$…`` for what it does on its own."""
    call = stage.name.partition(" at ")[0]
    return str(stage.stage_id) if "$" in call else f"{stage.stage_id} ({call})"
