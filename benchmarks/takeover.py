"""From SIGKILL of a JobMaster to the moment that the next one has decided what goes on, and what a
running stream job notices of that, on real Ray.

    python benchmarks/takeover.py [--rounds N] [--per-second N] [--interval SECONDS] [--in-a-row]

A source of 10,000 records/s, two subtasks each, a keyed function with state, and checkpoints. The
JobMaster is killed again and again, at random times, once the cluster has as many prestarted
processes ready as before: a take-over needs two of them, for the JobMaster and its SlotPool. With
``--in-a-row`` the kills do not wait for these processes, so the take-overs do. The time of the
decision is what the next JobMaster says of its job's status, by the clock of this one machine. The
last task writes down when it has waited longer than 5 ms for the next record. Records are sent on
after the job's buffer time-out at the latest: it is 10 ms here, as with the default of 100 ms that
alone would be the gap. The sink commits with each checkpoint, and notes when: the gap of a kill is
the time between the last commit before it and the first one after it. The same windows are looked
at without kills, first. No attempt number may grow.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for place in (HERE, HERE.parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import ray  # noqa: E402
from _results import Figure, Results, parse  # noqa: E402

import flinkray  # noqa: E402
from flinkray.client import JobHandle  # noqa: E402
from flinkray.client.ray_runtime import cluster_namespace  # noqa: E402
from flinkray.datastream import (  # noqa: E402
    Configuration,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import (  # noqa: E402
    CommitRequest,
    Committer,
    CommitterContext,
    DataGeneratorSource,
    Sink,
    SinkWriter,
    WriterContext,
)
from flinkray.datastream.state import ValueStateDescriptor  # noqa: E402
from flinkray.rpc.ray.directory import RayDirectory  # noqa: E402
from flinkray.scheduler.shared.states import JobStatus  # noqa: E402
from flinkray.streaming.records.elements import Block  # noqa: E402
from tests.system.kills.gaps import Gaps, gaps, longest, quantile  # noqa: E402

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "300m",
    "restart-strategy.type": "none",
    "jobmaster.max-failovers": "100000",
}
BUFFER_TIMEOUT = 10
"""Milliseconds."""
AFTERWARDS = 0.5
"""Seconds after the decision that are looked at."""
MOST_GAP, MOST_BETWEEN = 100.0, 5.0
"""Goals: p99 of the gaps of the output in ms, and seconds between two commits."""


class Count(KeyedProcessFunction[int, int, int]):
    """Counts by key, and gives on what comes."""

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self._count.update((self._count.value() or 0) + 1)
        yield value


class NotedCommits(Sink[Any, int]):
    """Commits how many records came since the checkpoint before, and writes down when."""

    commits_in_order = True

    def __init__(self, file: Path) -> None:
        self._file = file

    def create_writer(self, context: WriterContext) -> SinkWriter[int]:
        return CountingWriter()

    def create_committer(self, context: CommitterContext) -> Committer[int]:
        return NotingCommitter(self._file)


class CountingWriter(SinkWriter[int]):
    def __init__(self) -> None:
        self._records = 0

    def write(self, block: Block) -> None:
        self._records += len(block)

    def prepare_commit(self, end_of_input: bool) -> list[int]:
        records, self._records = self._records, 0
        return [records]


class NotingCommitter(Committer[int]):
    def __init__(self, file: Path) -> None:
        self._file = file

    def commit(self, requests: Sequence[CommitRequest[int]]) -> None:
        with self._file.open("a") as file:
            file.write(f"{time.time()} {sum(request.committable for request in requests)}\n")


def commits(file: Path) -> list[float]:
    if not file.exists():  # there was none yet
        return []
    return [float(line.split()[0]) for line in file.read_text().splitlines()]


def gap_around(file: Path, moment: float) -> float:
    """Seconds from the last commit before it to the first one after it, which is waited for."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        times = commits(file)
        after = [at for at in times if at > moment]
        if after:
            return after[0] - max((at for at in times if at <= moment), default=moment)
        time.sleep(0.05)
    raise TimeoutError("nothing was committed for a minute")


def job_master_pid(directory: RayDirectory) -> int | None:
    """Return the process id of the only JobMaster; None while there is none."""
    for name in directory.names("JobMaster-"):
        record = directory.get(name)
        if record is not None:
            return record.pid
    return None


def decided_after(job: JobHandle, killed: float, failovers: int) -> float:
    """Seconds since then until the job was seen RUNNING under the next JobMaster, after so many
    others; asked every 20 ms."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        details = job.details()
        if details.status is JobStatus.RUNNING and details.failovers >= failovers:
            return time.time() - killed
        time.sleep(0.02)
    raise TimeoutError(f"{job.job_id} has no JobMaster that has taken over")


def told(values: list[float]) -> str:
    """Of seconds."""
    of = [quantile(values, share) * 1e3 for share in (0.5, 0.99)]
    return f"median {of[0]:.0f} ms, p99 {of[1]:.0f} ms, most {max(values) * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="JobMasters that are killed (20)")
    parser.add_argument("--per-second", type=float, default=10_000.0, help="records (10,000)")
    parser.add_argument(
        "--buffer-timeout", type=int, default=BUFFER_TIMEOUT, help="milliseconds (10)"
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, help="seconds between two checkpoints (1)"
    )
    parser.add_argument(
        "--in-a-row", action="store_true", help="do not wait for prestarted processes"
    )
    arguments = parse(parser, "in_a_row")
    results = Results(arguments, "flinkray", "ray")
    ray.init(address="local", num_cpus=8, include_dashboard=True, log_to_driver=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        flinkray.connect(cluster_id="takeover", configuration=CONFIGURATION) as client,
    ):
        env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
        checkpoints = {
            "execution.checkpointing.interval": f"{round(arguments.interval * 1000)} ms",
            "execution.checkpointing.dir": f"{folder}/checkpoints",
        }
        env.configure(Configuration.from_dict(checkpoints)).set_parallelism(2)
        env.set_buffer_timeout(arguments.buffer_timeout)
        prestarted = RayDirectory(cluster_namespace("takeover"))
        source = DataGeneratorSource(lambda n: n, 10**9, arguments.per_second)
        numbers = env.from_source(
            source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
        )
        counted = numbers.key_by(lambda n: n % 64).process(Count())
        committed = Path(folder) / "commits"
        counted.map(Gaps(Path(folder))).sink_to(NotedCommits(committed))
        job = client.job(env.execute_async("takeover").get_job_id())
        deadline = time.monotonic() + 60
        while job.status() is not JobStatus.RUNNING and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(5)
        gap_around(committed, 0.0)  # the first one
        quiet = time.time()
        time.sleep(arguments.rounds)
        found = gaps(Path(folder))
        undisturbed = [longest(found, quiet + n, quiet + n + 1) for n in range(arguments.rounds)]
        between = [gap_around(committed, quiet + n) for n in range(arguments.rounds)]
        ready = len(prestarted.ready_prestarted())
        decided, output, epochs = [], [], []
        for number in range(arguments.rounds):
            time.sleep(random.uniform(1.0, 3.0))
            while not arguments.in_a_row and len(prestarted.ready_prestarted()) < ready:
                time.sleep(0.1)
            while (pid := job_master_pid(prestarted)) is None:
                time.sleep(0.1)
            killed = time.time()
            os.kill(pid, signal.SIGKILL)
            decided.append(decided_after(job, killed, number + 1))
            time.sleep(1)
            found = gaps(Path(folder))
            output.append(longest(found, killed, killed + decided[-1] + AFTERWARDS))
            epochs.append(gap_around(committed, killed))
        attempts = {e.attempt_number for v in job.details().vertices for e in v.executions}
        job.cancel()
    ray.shutdown()
    print(f"kill to decision            {told(decided)}, of {len(decided)}")
    print(f"longest gap after a kill    {told(output)}")
    print(f"the same without a kill     {told(undisturbed)}, in a second each")
    print(f"between commits, a kill     {told(epochs)}")
    print(f"the same without a kill     {told(between)}")
    print(f"attempt numbers             {sorted(attempts)}")
    if attempts != {0}:
        raise SystemExit("tasks were restarted")
    kill = f"SIGKILL of a JobMaster at {arguments.per_second:,.0f} records/s"
    kill += " every few seconds" if arguments.in_a_row else ""
    row = "_in_a_row" if arguments.in_a_row else ""
    what = f"{kill}: p99 of the longest gap of the output"
    shown, peer = f"{{}}, {told(output)}", f"without a kill: {told(undisturbed)}"
    p99 = quantile(output, 0.99) * 1e3
    results.add(Figure(f"gap{row}", what, p99, MOST_GAP, "ms", shown=shown, peer=peer))
    what = f"{kill}: time between two commits, checkpoints {arguments.interval:g} s apart, longest"
    shown, peer = f"{{}}, {told(epochs)}", f"without a kill: {told(between)}"
    results.add(
        Figure(f"commits{row}", what, max(epochs), MOST_BETWEEN, "s", shown=shown, peer=peer)
    )
    results.raw = {"decided": decided, "gaps": output, "between commits": epochs}
    results.end()


if __name__ == "__main__":
    main()
