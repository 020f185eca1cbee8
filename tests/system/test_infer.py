"""Replicas of models on Ray: what they survive, who shares them, how many there are."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flinkray.client import ClusterClient
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    Configuration,
    DataStream,
    ModelContext,
    ModelFunction,
    OutputTag,
    Row,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.connectors import IteratorSource
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.waiting import wait_until
from tests.system.failures import FailsOnce
from tests.system.resource_sampler import Look, Sampler

pytestmark = pytest.mark.ray

RECORDS = 2_000


class Slot(TypedDict):
    cpu: float
    memory: str


SLOT: Slot = {"cpu": 0.25, "memory": "150m"}


class Squares(ModelFunction):
    """Writes a file for each time that it is loaded, named by process. Waits *seconds* for each
    batch."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self.folder = folder
        self.seconds = seconds

    def open(self, context: ModelContext) -> None:
        devices = ",".join(context.devices)
        name = f"{os.getpid()}-{uuid.uuid4().hex}"
        (self.folder / name).write_text(f"{context.replica} {devices}")

    def infer(self, batch: pa.RecordBatch) -> pa.Array:
        time.sleep(self.seconds)
        return pc.multiply(batch["n"], batch["n"])


def processes(folder: Path) -> list[int]:
    """The processes that have loaded the model, each as often as it has."""
    return [int(path.name.partition("-")[0]) for path in folder.iterdir()]


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    folder = tmp_path / "loaded"
    folder.mkdir()
    return folder


def environment(cluster: ClusterClient, folder: Path) -> StreamExecutionEnvironment:
    settings = {
        "execution.checkpointing.interval": "20 ms",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
    }
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    return env.configure(Configuration.from_dict(settings)).set_parallelism(1)


def numbers(env: StreamExecutionEnvironment, half_way: Any) -> DataStream[Row]:
    """Rows of one number; *half_way* is called before the middle one."""

    def count(_: int, offset: int) -> Iterator[int]:
        for number in range(offset + 1, RECORDS + 1):
            if number == RECORDS // 2:
                half_way()
            yield number

    source = env.from_source(IteratorSource(count), type_info=Types.LONG())
    return source.map(lambda n: Row(n=n), Types.ROW_NAMED(["n"], [Types.LONG()]))


def test_replicas_stay_loaded_while_their_callers_restart(
    cluster: ClusterClient, tmp_path: Path, loaded: Path
) -> None:
    env = environment(cluster, tmp_path)
    checkpoints = tmp_path / "checkpoints"

    def half_way() -> None:
        wait_until(lambda: any(checkpoints.glob("**/_metadata")), 60, "a checkpoint")

    squares = numbers(env, half_way).infer(Squares(loaded), replicas=2, **SLOT)
    results = squares.map(lambda row: row.result, Types.LONG()).map(
        FailsOnce(RECORDS // 2), Types.LONG()
    )
    found = list(results.execute_and_collect())
    assert sorted(found) == [n * n for n in range(1, RECORDS + 1)]
    assert len(processes(loaded)) == 2
    assert len(set(processes(loaded))) == 2
    ended = [job for job in cluster.list_jobs() if job.name.startswith("Model Squares")]
    assert [job.status for job in ended] == [JobStatus.CANCELED]


def test_other_replicas_answer_what_a_killed_one_was_asked(
    cluster: ClusterClient, tmp_path: Path, loaded: Path
) -> None:
    """The job does not restart; the killed replica is replaced."""

    def half_way() -> None:
        def both() -> list[int]:
            found = processes(loaded)
            return found if len(found) == 2 else []

        os.kill(wait_until(both, 60, "two replicas")[0], signal.SIGKILL)

    env = environment(cluster, tmp_path)
    squares = numbers(env, half_way).infer(Squares(loaded), replicas=2, batch_size=16, **SLOT)
    results = squares.map(lambda row: row.result, Types.LONG())
    job = results.execute_and_collect()
    assert sorted(job) == [n * n for n in range(1, RECORDS + 1)]
    details = [one for one in cluster.list_jobs() if not one.name.startswith("Model")]
    assert not cluster.job(details[-1].job_id).exceptions()


def test_jobs_share_the_replicas_of_a_model_with_a_name(
    cluster: ClusterClient, tmp_path: Path, loaded: Path
) -> None:
    both_run = tmp_path / "both run"

    def half_way() -> None:
        wait_until(both_run.exists, 120, "the first result of the second job")

    def job(name: str) -> Any:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        rows = numbers(env.set_parallelism(1), half_way)
        squares = rows.infer(Squares(loaded), batch_size=16, shared="squares", **SLOT)
        return squares.execute_and_collect(name)

    expected = [n * n for n in range(1, RECORDS + 1)]
    with job("one") as first, job("two") as second:
        results = [[next(first).result], [next(second).result]]
        both_run.touch()
        for own, job_results in zip(results, (first, second), strict=True):
            assert sorted(own + [row.result for row in job_results]) == expected
    assert len(processes(loaded)) == 1


def test_more_replicas_start_while_batches_wait(cluster: ClusterClient, loaded: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.set_parallelism(1)
    stop = loaded.parent / "stop"

    def endless(_: int, offset: int) -> Iterator[int]:
        while not stop.exists():
            offset += 1
            yield offset

    source = env.from_source(IteratorSource(endless), type_info=Types.LONG())
    rows = source.map(lambda n: Row(n=n % 1000), Types.ROW_NAMED(["n"], [Types.LONG()]))
    squares = rows.infer(Squares(loaded, 0.05), replicas=(1, 3), batch_size=4, **SLOT)
    with squares.execute_and_collect() as results:
        next(results)
        assert len(processes(loaded)) == 1
        wait_until(lambda: len(set(processes(loaded))) == 3, 120, "two more replicas")
        stop.touch()
        assert all(row.result == row.n * row.n for row in results)


def test_replica_knows_the_devices_of_its_slot(cluster: ClusterClient, loaded: Path) -> None:
    """At no moment is any resource of Ray assigned twice, devices included."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    table = env.from_arrow(pa.table({"n": [1, 2]}))
    scored = table.infer(Squares(loaded), replicas=2, gpu=1, **SLOT)
    with Sampler(Look(cluster)) as sampler:
        assert sorted(row.result for row in scored.execute_and_collect()) == [1, 4]
    assert sampler.count
    devices = [path.read_text().split() for path in loaded.iterdir()]
    assert len({device for _, device in devices}) == len(devices)


def test_job_fails_with_the_reason_why_its_model_cannot_be_loaded(cluster: ClusterClient) -> None:
    class Broken(ModelFunction):
        def open(self, context: ModelContext) -> None:
            raise ValueError("no such file: the model")

        def infer(self, batch: pa.RecordBatch) -> pa.Array:
            return batch["n"]

    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    settings = {"restart-strategy.attempts-with-same-error": "2"}
    env.configure(Configuration.from_dict(settings))
    scored = env.from_arrow(pa.table({"n": [1]})).infer(Broken(), **SLOT)
    with pytest.raises(JobExecutionError, match="no such file: the model"):
        list(scored.execute_and_collect())


def test_record_for_which_the_model_fails_goes_to_the_side_output(cluster: ClusterClient) -> None:
    class Roots(ModelFunction):
        def infer(self, batch: pa.RecordBatch) -> pa.Array:
            if pc.min(batch["n"]).as_py() < 0:
                raise ValueError("negative")
            return pc.sqrt(batch["n"])

    errors: OutputTag[Row] = OutputTag("errors")
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.set_parallelism(1)
    table = env.from_arrow(pa.table({"n": [1, -4, 9] * 50}))
    scored = table.infer(Roots(), errors=errors, retries=0, **SLOT)
    rows = scored.map(lambda row: row.result).union(
        scored.get_side_output(errors).map(lambda row: row.record.n)
    )
    found = sorted(rows.execute_and_collect())
    assert found == [-4] * 50 + [1.0] * 50 + [3.0] * 50
