"""Streaming jobs whose processes are killed and stopped at random: nothing is lost, doubled or out
of order, and what was killed goes on from its last checkpoint, or where it was.

This takes long and is run on request only: ``FLINKRAY_KILLS=20 FLINKRAY_STOPS=2
FLINKRAY_KILLS_SEED=1 pytest --log-cli-level=INFO tests/system/test_exactly_once_kills.py``.
``FLINKRAY_KILLS_OF`` chooses sources, sinks, modes and state backends by their names, jobs with a
model or without (``model``, ``no-model``), and what is killed:
``FLINKRAY_KILLS_OF=files,postgresql,unaligned,TaskProcess``. Where masters alone are killed, by
``FLINKRAY_KILLS_OF=masters``, it is ``test_master_kills.py`` that runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import flinkray
from flinkray.checkpoint.errors import CheckpointNotFoundError
from flinkray.client import ClusterClient
from flinkray.datastream import (
    Configuration,
    DataStream,
    ModelFunction,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.testing.waiting import wait_until
from tests.datastream.numbers import SOURCES
from tests.datastream.tallies import (
    Tally,
    by_key,
    differences,
    newest,
    restarted_from,
    settings,
)
from tests.system.kills.from_outside import SINKS, Outside, from_kafka, outside, to_text
from tests.system.kills.only_job import the_job
from tests.system.kills.victims import KINDS, Moments, Victims
from tests.system.observer import traces

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
STOPS = int(os.environ.get("FLINKRAY_STOPS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
CHOSEN = [name for name in os.environ.get("FLINKRAY_KILLS_OF", "").split(",") if name]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.kill,
    pytest.mark.skipif(KILLS + STOPS == 0, reason="FLINKRAY_KILLS and FLINKRAY_STOPS say how many"),
    pytest.mark.skipif("masters" in CHOSEN, reason="test_master_kills.py is for them"),
]

log = logging.getLogger(__name__)

CLUSTER_ID = "kills"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100000",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "jobmaster.max-failovers": "100000",
    "heartbeat.interval": "2 s",
    "heartbeat.timeout": "20 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
}
COUNT, PER_SECOND = 16_000, 4_000.0
MOST_OF_ONE = 16
"""Processes of one job that are killed or stopped; then it may end, and there is another one."""
END = 300.0
"""Seconds within which a job ends that nothing happens to any more, also on a busy machine."""

MODES = {
    "aligned": {},
    "unaligned": {"execution.checkpointing.unaligned.enabled": "true"},
    "aligned-with-timeout": {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "20 ms",
    },
}
BACKENDS = {"heap": {}, "disk": {"state.backend.type": "rocksdb"}}
COLLECTED, KAFKA, MODEL = "collected", "kafka", "model"
PARALLELISM = (1, 2, 4)


@dataclass(frozen=True)
class Setting:
    """Of one job."""

    source: str
    sink: str
    mode: str
    backend: str
    model: str
    parallelism: int

    def __str__(self) -> str:
        parts = self.source, self.sink, self.mode, self.backend, self.model, self.parallelism
        return "-".join(map(str, parts))


def chosen(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in CHOSEN] or list(names)


def in_turn(random: Random, values: Sequence[Any]) -> Iterator[Any]:
    """All of them, in an order of the seed's, again and again."""
    shuffled = list(values)
    while True:
        random.shuffle(shuffled)
        yield from shuffled


def settings_in_turn(random: Random) -> Iterator[Setting]:
    """Each source, sink, mode, backend and parallelism is there as often as the others."""
    of_sources = [*SOURCES, KAFKA]
    parts = [
        chosen(list(names))
        for names in (of_sources, [COLLECTED, *SINKS], MODES, BACKENDS, [MODEL, "no-model"])
    ]
    turns = [in_turn(random, part) for part in (*parts, PARALLELISM)]
    return (Setting(*values) for values in zip(*turns, strict=True))


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with outside(tmp_path_factory.mktemp("outside")) as servers:
        yield servers


class Unchanged(ModelFunction):
    def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def through_model(numbers: DataStream) -> DataStream:
    """Send the numbers to two replicas of a model, which return them unchanged, in their order."""
    rows = numbers.map(lambda number: (number,), Types.TUPLE([Types.LONG()])).uid("rows of numbers")
    results = rows.infer(
        Unchanged(), replicas=2, cpu=0.5, memory="200m", ordered=True, output="replace", retries=50
    )
    return results.uid("model").map(lambda row: row.f0, Types.LONG()).uid("numbers of rows")


def executed(
    env: StreamExecutionEnvironment,
    results: DataStream,
    sink_name: str,
    there: Outside,
    folder: Path,
) -> Callable[[], list[Any]]:
    """Submitted; gives what came out, when it has ended."""
    if sink_name == COLLECTED:
        return partial(list, results.execute_and_collect())
    sink, written = SINKS[sink_name](there, folder)
    texts: DataStream = results.map(to_text, Types.STRING()).uid("texts")
    if sink_name == "postgresql":
        texts = texts.map(lambda text: (text,)).uid("rows")
    texts.sink_to(sink).uid("results")
    job = env.execute_async(folder.name)

    def read() -> list[Any]:
        job.get_job_execution_result().result()
        return written()

    return read


def started(
    setting: Setting,
    streams: ClusterClient,
    there: Outside,
    folder: Path,
    threads: ThreadPoolExecutor,
) -> Future[list[Any]]:
    """A job that runs, and its results to come."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    options = {
        **settings(folder / "checkpoints", "300 ms"),
        **MODES[setting.mode],
        **BACKENDS[setting.backend],
    }
    env.configure(Configuration.from_dict(options))
    env.set_parallelism(setting.parallelism)
    if setting.source == KAFKA:
        numbers, of_part = from_kafka(there, env, COUNT, PER_SECOND)
    else:
        numbers, of_part = SOURCES[setting.source](env, COUNT, PER_SECOND, folder)
    if setting.model == MODEL:
        numbers = through_model(numbers)
    results = by_key(numbers, Tally(of_part, echoes=True, starts=folder / "starts"))
    return threads.submit(executed(env, results, setting.sink, there, folder))


def assert_never_from_the_beginning(starts: Path, since: float | None) -> None:
    """*since* then there was a checkpoint."""
    if since is not None:
        late = [start for start in restarted_from(starts) if start[0] > since + 1.0]
        assert all(is_restored for *_, is_restored in late), (since, late)


@pytest.mark.timeout(900 + 60 * KILLS + 120 * STOPS)
def test_no_record_is_lost_doubled_or_out_of_order_under_random_kills_and_stops(
    streams: ClusterClient, there: Outside, tmp_path: Path
) -> None:
    """E2E-04: runs one job after another until the wanted number of processes is killed and
    stopped."""
    random = Random(SEED)
    victims = Victims(Random(random.random()), NAMESPACE, chosen(list(KINDS)), KILLS, STOPS)
    begin = time.monotonic()
    jobs = 0
    with ThreadPoolExecutor() as threads, victims.none_left_stopped():
        for setting in settings_in_turn(random):
            if victims.is_over:
                break
            jobs += 1
            folder = tmp_path / str(jobs)
            folder.mkdir()
            log.info("job %d: %s", jobs, setting)
            results = started(setting, streams, there, folder, threads)
            handle = the_job(streams)
            is_over = threading.Event()
            results.add_done_callback(lambda _, it=is_over: it.set())  # type: ignore[misc]
            moments = Moments(folder / "checkpoints", is_over)
            before = victims.counts
            since = None
            first = 0
            most = sum(before) + MOST_OF_ONE
            while not (is_over.wait(victims.pause()) or victims.is_over or victims.total >= most):
                with suppress(CheckpointNotFoundError):  # it was subsumed while it was looked at
                    latest = newest(folder / "checkpoints")
                    first = first or latest
                    if since is None and latest > first:
                        since = time.time()  # the first has its pointer when the second is stored
                victims.hit_next(moments)
            with suppress(TimeoutError):
                results.result(timeout=END)
            assert results.done(), f"job {handle.job_id} ({setting}) has not ended in {END:g} s"
            difference = differences(results.result(), COUNT)
            kills, stops = (now - then for now, then in zip(victims.counts, before, strict=True))
            log.info(
                "%.0f s: job %d, %s, %s has ended after %d kills and %d stops: %s",
                time.monotonic() - begin,
                jobs,
                handle.job_id,
                setting,
                kills,
                stops,
                difference or "right",
            )
            assert not difference
            assert_never_from_the_beginning(folder / "starts", since)
            wait_until(lambda: not traces(handle.job_id), END, "everything of it to be gone")  # noqa: B023
            wait_until(
                lambda: not list(folder.glob("checkpoints/*/chk-*/*")),  # noqa: B023
                END,
                "its checkpoints to be gone",
            )
    log.info("%d jobs ended right after %s and %s", jobs, victims.killed, victims.stopped)
