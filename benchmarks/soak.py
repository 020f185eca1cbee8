"""Thousands of short jobs on one cluster, on Ray and a real ZooKeeper: what stays of them, and what
their masters grow by.

    python benchmarks/soak.py [--jobs N] [--minutes M] [--at-once K]

In turns: a Python function, a stream with a shuffle and checkpoints whose sums are checked, a
function that fails, and a function that is cancelled.  Printed are resident memory (unique to the
process, MB) and open files of the masters, which are never killed here, and how many actors and
placement groups Ray has.  Ray keeps about 0.3 MB of each job in a Dispatcher; so masters make way
for fresh ones here when they have grown by 30 MB, which the numbers of their processes show.
Memory must be flat: the most that a master has in the second half of the run is compared with the
most in the first half.

When the last job has ended, nothing of any job may be left but the results that the cluster
remembers: no znode, file, actor, placement group or entry in Ray's key-value store.  When the
cluster has been shut down, nothing at all may be.

Needs ZooKeeper's server (Debian's package ``zookeeper``), which is started on a port of its own.

Exit status 1: something is left, a master has grown, or a job ended otherwise than it had to.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
for place in (HERE, HERE.parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import psutil  # noqa: E402
import ray  # noqa: E402
from _results import Figure, Results, parse  # noqa: E402
from _zookeeper import zookeeper  # noqa: E402
from kazoo.client import KazooClient  # noqa: E402
from ray.util.placement_group import placement_group_table  # noqa: E402

import flinkray  # noqa: E402
from flinkray.client import ClusterClient  # noqa: E402
from flinkray.core.errors import FlinkRayError, JobExecutionError  # noqa: E402
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types  # noqa: E402
from flinkray.rpc.ray.directory import RayDirectory  # noqa: E402
from flinkray.scheduler.shared.states import JobStatus  # noqa: E402
from flinkray.testing.task_jobs import ends, task_job, waits  # noqa: E402
from tests.system.observer import live_actors  # noqa: E402
from tests.zookeeper_server import why_not  # noqa: E402

CLUSTER_ID = "soak"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
ROOT = f"/flinkray/{CLUSTER_ID}"
REMEMBERED = 20
"""Ended jobs, ``jobstore.max-capacity``: what is remembered of more would be taken for growth."""
MASTERS = ("Dispatcher", "ResourceManager")
NUMBERS = 2_000
"""Of a stream job."""
ANSWER = 300.0
"""Seconds for which a job may wait on a busy machine."""
GROWTH = 1.1
"""How much more memory a master may have in the second half than in the first one."""
OPEN_FILES = 1.25
"""The same of its open files.  What a dead process had open to it stays for two minutes
(``PARKED``), so their number follows the jobs per minute."""
_JOB_ID = re.compile(r"[0-9a-f]{32}")


def configuration(hosts: str, storage: Path) -> dict[str, str]:
    return {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": hosts,
        "cluster.standby-masters": "1",
        "jobstore.max-capacity": str(REMEMBERED),
        "storage.dir": str(storage),
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.cpu.cores": "0.1",
        "taskmanager.memory": "100m",
        "cluster.max-master-growth": "30m",
        "heartbeat.timeout": "120 s",
    }


# --- jobs -----------------------------------------------------------------------------------------


def fail(task: object) -> None:
    raise ZeroDivisionError("as it is to")


def run_function(client: ClusterClient, storage: Path) -> None:
    client.submit(task_job(ends)).result(ANSWER)


def run_stream(client: ClusterClient, storage: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    checkpoints = {
        "execution.checkpointing.interval": "100 ms",
        "execution.checkpointing.dir": str(storage / "checkpoints"),
    }
    env.configure(Configuration.from_dict(checkpoints)).set_parallelism(2)
    numbers = env.from_collection(list(range(NUMBERS)), Types.LONG())
    sums = numbers.map(lambda n: (n % 7, n)).key_by(lambda pair: pair[0])
    with sums.reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect() as results:
        last = dict(results)
    if sum(last.values()) != sum(range(NUMBERS)):
        raise AssertionError(f"the sums are {last}")


def run_failing(client: ClusterClient, storage: Path) -> None:
    try:
        client.submit(task_job(fail)).result(ANSWER)
    except JobExecutionError as error:
        if "as it is to" in str(error):
            return
        raise
    raise AssertionError("it has not failed")


def run_cancelled(client: ClusterClient, storage: Path) -> None:
    job = client.submit(task_job(waits))
    deadline = time.monotonic() + ANSWER
    while job.status() is not JobStatus.RUNNING and time.monotonic() < deadline:
        time.sleep(0.05)
    job.cancel()
    status = job.wait(ANSWER)
    if status is not JobStatus.CANCELED:
        raise AssertionError(f"it is {status}")


KINDS: Sequence[Callable[[ClusterClient, Path], None]] = (
    run_function,
    run_stream,
    run_failing,
    run_function,
    run_stream,
    run_cancelled,
)


# --- what masters have ----------------------------------------------------------------------------


class Master(NamedTuple):
    pid: int
    memory: float
    """Megabytes that it has alone."""
    files: int
    """Open ones."""


def measured(directory: RayDirectory) -> dict[str, Master]:
    """By name of the process; without those that are being started again."""
    found = {}
    for name in sorted(itertools.chain.from_iterable(map(directory.names, MASTERS))):
        record = directory.get(name)
        with contextlib.suppress(psutil.NoSuchProcess):
            if record is not None:
                process = psutil.Process(record.pid)
                memory = process.memory_full_info().uss / 2**20
                found[name] = Master(record.pid, memory, process.num_fds())
    return found


def show(number: int, began: float, now: dict[str, Master]) -> None:
    cells = [f"{name} ({it.pid}) {it.memory:.1f} MB {it.files} files" for name, it in now.items()]
    groups = [it for it in placement_group_table().values() if it["state"] != "REMOVED"]
    minutes = (time.monotonic() - began) / 60
    print(
        f"{number:>6} jobs {minutes:>6.1f} min  {'; '.join(cells)}; {len(live_actors())} actors, "
        f"{len(groups)} placement groups",
        flush=True,
    )


def grown(looks: Sequence[dict[str, Master]]) -> Iterator[str]:
    half = len(looks) // 2
    for kind in MASTERS:
        first, second = (
            [it for look in part for name, it in look.items() if name.startswith(kind)]
            for part in (looks[:half], looks[half:])
        )
        memory = [max(it.memory for it in part) for part in (first, second)]
        files = [max(it.files for it in part) for part in (first, second)]
        print(
            f"most of a {kind}: {memory[0]:.1f} MB and {files[0]} files in the first half, "
            f"{memory[1]:.1f} MB and {files[1]} files in the second"
        )
        if memory[1] > memory[0] * GROWTH:
            yield f"a {kind} had up to {memory[0]:.1f} MB, and then {memory[1]:.1f}"
        if files[1] > files[0] * OPEN_FILES:
            yield f"a {kind} had up to {files[0]} open files, and then {files[1]}"


# --- what is left ---------------------------------------------------------------------------------


def znodes_below(znodes: KazooClient, path: str) -> Iterator[str]:
    for child in znodes.get_children(path):
        yield f"{path}/{child}"
        yield from znodes_below(znodes, f"{path}/{child}")


def left_of_jobs(
    znodes: KazooClient, storage: Path, directory: RayDirectory, remembered: set[str]
) -> list[str]:
    """What has the id of a job in its name, but for what is remembered of the last ones."""
    names = [f"znode {path}" for path in znodes_below(znodes, ROOT)]
    names += [f"file {path}" for path in storage.rglob("*") if path.is_file()]
    names += [f"actor {it.name}" for it in live_actors() if it.namespace == NAMESPACE]
    names += [
        f"placement group {it['name']}"
        for it in placement_group_table().values()
        if it["state"] != "REMOVED"
    ]
    names += [f"Ray's entry {name}" for name in directory.names("")]
    return [name for name in names if (id_ := _job_in(name)) and id_ not in remembered]


def _job_in(name: str) -> str | None:
    """The first id: others are those of contenders and of the writers of files."""
    found = _JOB_ID.search(name)
    return None if found is None or "/latch/" in name else found[0]


def left_of_cluster(znodes: KazooClient, storage: Path, directory: RayDirectory) -> list[str]:
    names = [f"znode {path}" for path in znodes_below(znodes, "") if path.startswith(ROOT)]
    names += [f"file {path}" for path in storage.rglob("*") if path.is_file()]
    names += [f"actor {it.name}" for it in live_actors() if it.namespace == NAMESPACE]
    return names + [f"Ray's entry {name}" for name in directory.names("")]


def until_nothing(look: Callable[[], list[str]], seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


# --- the run --------------------------------------------------------------------------------------


def soak(
    client: ClusterClient, storage: Path, arguments: argparse.Namespace, results: Results
) -> list[str]:
    """What masters have grown by, and which jobs have ended otherwise than they had to."""
    directory = RayDirectory(NAMESPACE)
    began = time.monotonic()
    every = max(arguments.jobs // 80, arguments.at_once)
    done: Counter[str] = Counter()
    faults: list[str] = []
    looks = [measured(directory)]
    show(0, began, looks[0])
    with ThreadPoolExecutor(arguments.at_once) as threads:
        while done.total() < arguments.jobs:
            if time.monotonic() - began > arguments.minutes * 60:
                break
            kinds = [KINDS[(done.total() + n) % len(KINDS)] for n in range(every)]
            for future in [threads.submit(kind, client, storage) for kind in kinds]:
                try:
                    future.result()
                except (FlinkRayError, AssertionError) as error:
                    faults.append(str(error))
                    print(error)
            done.update(kind.__name__ for kind in kinds)
            looks.append(measured(directory))
            show(done.total(), began, looks[-1])
    print(f"{done.total()} jobs: {dict(done)}")
    what = f"short jobs in {arguments.minutes:g} minutes"
    goal = arguments.jobs
    results.add(Figure("jobs", what, done.total(), goal, "jobs", at_least=True))
    return [*faults, *grown(looks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2_000, help="(2,000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most (60)")
    parser.add_argument("--at-once", type=int, default=3, help="jobs at the same time (3)")
    arguments = parse(parser)
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    results = Results(arguments, "flinkray", "ray", "kazoo")
    ray.init(address="local", num_cpus=8, include_dashboard=True, log_to_driver=False)
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="flinkray-soak-") as folder:
        storage = Path(folder)
        directory = RayDirectory(NAMESPACE)
        with zookeeper() as (hosts, znodes):
            with flinkray.connect(
                cluster_id=CLUSTER_ID, configuration=configuration(hosts, storage)
            ) as client:
                faults += soak(client, storage, arguments, results)
                remembered = {job.job_id.hex() for job in client.list_jobs()}
                print(f"{len(remembered)} jobs are remembered")
                faults += until_nothing(
                    lambda: left_of_jobs(znodes, storage, directory, remembered), 60
                )
            faults += until_nothing(lambda: left_of_cluster(znodes, storage, directory), 60)
    ray.shutdown()
    for fault in faults:
        print(fault)
    what = "after short jobs: masters that grew, things that are left, jobs with a wrong end"
    results.add(Figure("faults", what, len(faults), 0))
    results.raw["faults"] = faults
    results.end()


if __name__ == "__main__":
    main()
