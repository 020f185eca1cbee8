"""A program: clients of a cluster on a Ray whose head fails.

``submit ADDRESS FOLDER`` starts a job and prints its id; ``finish ADDRESS FOLDER JOB_ID`` finds it,
takes a savepoint and cancels it, runs another job, and prints what it has seen as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import flinkray
from flinkray.client import ClusterClient
from flinkray.core.ids import JobID
from flinkray.datastream import (
    Configuration,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.datastream.functions import MapFunction
from tests.datastream.tallies import KEYS, settings

PER_SECOND = 200.0


class Diary(MapFunction[int, int]):
    """Writes down each number and when it came, in a file of each attempt's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        subtask = runtime_context.get_index_of_this_subtask()
        path = self._folder / f"{subtask}-{time.time_ns()}"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def map(self, value: int) -> int:
        os.write(self._file, f"{time.time():.4f} {value}\n".encode())
        return value


def submit(client: ClusterClient, folder: Path) -> str:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.configure(Configuration.from_dict(settings(folder / "checkpoints", "500 ms")))
    env.set_parallelism(2)
    source: DataGeneratorSource = DataGeneratorSource(lambda n: n, 2**40, PER_SECOND)
    numbers = env.from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    ).set_parallelism(1)
    diary = folder / "diary"
    diary.mkdir()
    written = numbers.key_by(lambda n: n % KEYS).map(Diary(diary), Types.LONG())
    written.filter(lambda _: False).print()
    return str(env.execute_async("numbers").get_job_id())


def finish(client: ClusterClient, folder: Path, job_id: JobID) -> dict[str, object]:
    begin = time.monotonic()
    listed = {str(job.job_id): job.status.name for job in client.list_jobs()}
    found = time.monotonic() - begin
    job = client.job(job_id)
    attempts = [
        execution.attempt_number
        for vertex in job.details().vertices
        for execution in vertex.executions
    ]
    savepoint = job.trigger_savepoint(str(folder / "savepoint"))
    job.cancel()
    ended = job.wait(timeout=300)
    # more slots than there are: a worker group and its processes are started
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(3)
    squares = env.from_collection([1, 2, 3], Types.LONG()).map(lambda n: n * n, Types.LONG())
    return {
        "listed": listed,
        "found after": round(found, 2),
        "attempts": attempts,
        "savepoint": savepoint,
        "ended": ended.name,
        "squares": sorted(squares.execute_and_collect()),
    }


def main(command: str, address: str, folder: str, *job_id: str) -> None:
    with flinkray.connect(address) as client:
        if command == "submit":
            answer: object = submit(client, Path(folder))
        else:
            answer = finish(client, Path(folder), JobID.from_hex(job_id[0]))
    print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
