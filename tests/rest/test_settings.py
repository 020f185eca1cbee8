"""How a job is run, and with which parallelism it is to go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.ids import JobID, JobVertexID
from flinkray.datastream import Configuration, StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.rest import settings_json
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from flinkray.scheduler.reports.job_info import JobSettings
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import settings
from tests.rest.conftest import Counting
from tests.rest.http import Asker

UNKNOWN = JobID(bytes(16)).hex()


@pytest.fixture
def elastic(cluster: ThreadedCluster, ask: Asker, folder: Path) -> Iterator[str]:
    """A stream that runs until it is cancelled, with two subtasks at most."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    values = {
        **settings(folder, "1 h"),
        "execution.checkpointing.timeout": "7 s",
        "jobmanager.scheduler": "adaptive",
    }
    env.configure(Configuration.from_dict(values))
    source = DataGeneratorSource(lambda n: n, 10**9, 1000.0)
    stream = env.set_parallelism(2).from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers"
    )
    stream.sink_to(DiscardingSink())
    job_id = env.execute_async("numbers").get_job_id().hex()
    until_runs_with(ask, job_id, 2)
    yield job_id
    ask("PATCH", f"/jobs/{job_id}")
    cluster.client.job(job_id).wait(300)


def until_runs_with(ask: Asker, job_id: str, parallelism: int) -> None:
    def runs() -> bool:
        vertices = ask.get(f"/jobs/{job_id}")["vertices"]
        return bool(vertices) and all(
            it["parallelism"] == it["tasks"]["RUNNING"] == parallelism for it in vertices
        )

    wait_until(runs, 150, f"{parallelism} subtasks of each vertex")


def bounds(lower: int, upper: int) -> dict[str, Any]:
    return {"parallelism": {"lowerBound": lower, "upperBound": upper}}


def test_put_of_new_parallelism_bounds_rescales_an_elastic_job(elastic: str, ask: Asker) -> None:
    path = f"/jobs/{elastic}/resource-requirements"
    found = ask.get(path)
    assert set(map(str, found.values())) == {str(bounds(1, 2))}
    assert ask("PUT", path, {vertex: bounds(-1, 1) for vertex in found}).status == 200
    assert ask.get(path) == {vertex: bounds(1, 1) for vertex in found}
    until_runs_with(ask, elastic, 1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"nonsense": bounds(1, 1)},
        {JobVertexID.generate().hex(): 4},
        {JobVertexID.generate().hex(): {"parallelism": 4}},
        {JobVertexID.generate().hex(): bounds(2, 1)},
        {JobVertexID.generate().hex(): bounds(0, 1)},
        {JobVertexID.generate().hex(): bounds(1, 1 << 70)},
        {JobVertexID.generate().hex(): {"parallelism": {"lowerBound": 1}}},
        {JobVertexID.generate().hex(): {"parallelism": {"upperBound": True}}},
    ],
)
def test_put_of_malformed_parallelism_bounds_is_answered_with_400(body: object, ask: Asker) -> None:
    """RE-03."""
    assert ask("PUT", f"/jobs/{UNKNOWN}/resource-requirements", body).status == 400


def test_put_of_parallelism_bounds_for_a_job_that_is_not_elastic_is_refused(
    cluster: ThreadedCluster, ask: Asker
) -> None:
    handle = cluster.client.submit(scripted_job(["register", "wait"], parallelism=2))
    path = f"/jobs/{handle.job_id.hex()}/resource-requirements"
    ((vertex, found),) = ask.get(path).items()
    assert found == bounds(2, 2)
    refused = ask("PUT", path, {vertex: bounds(1, 1)})
    assert (refused.status, "jobmanager.scheduler" in refused.error) == (409, True)
    handle.cancel()
    handle.wait(300)
    assert ask.get(path) == {vertex: bounds(2, 2)}, "of an ended job, too"
    assert ask("PUT", path, {vertex: bounds(1, 1)}).status == 409


def test_job_configuration_shows_checkpointing_and_restart_settings(
    elastic: str, cluster: ThreadedCluster, ask: Asker
) -> None:
    """RE-45."""
    config = ask.get(f"/v1/jobs/{elastic}/checkpoints/config")
    assert (config["mode"], config["interval"], config["timeout"]) == (
        "exactly_once",
        3_600_000,
        7_000,
    )
    assert config["externalization"] == {"enabled": False, "delete_on_cancellation": True}
    assert config["state_backend"] == "HashMapStateBackend"
    of_job = ask.get(f"/jobs/{elastic}/config")
    assert (of_job["jid"], of_job["name"]) == (elastic, "numbers")
    assert of_job["execution-config"]["job-parallelism"] == 2
    assert of_job["execution-config"]["restart-strategy"].startswith("Restart with")

    without = cluster.client.submit(scripted_job(["register", "finish"]))
    without.result()
    missing = ask("GET", f"/jobs/{without.job_id.hex()}/checkpoints/config")
    assert (missing.status, "not enabled" in missing.error) == (404, True)


@pytest.mark.parametrize("path", ["config", "checkpoints/config", "resource-requirements"])
def test_settings_of_an_unknown_job_are_answered_with_404(path: str, ask: Asker) -> None:
    """RE-05."""
    unknown = ask("GET", f"/jobs/{UNKNOWN}/{path}")
    assert (unknown.status, UNKNOWN in unknown.error) == (404, True)
    assert ask("GET", f"/jobs/nonsense/{path}").status == 400


def test_checkpoint_settings_are_answered_without_asking_the_job_master(
    elastic: str, ask: Asker, counting: Counting
) -> None:
    counting.questions.clear()
    ask.get(f"/jobs/{elastic}/checkpoints/config")
    assert counting.questions == [f"get the settings of job {elastic}"]


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (NoRestart(), "Restart deactivated."),
        (FixedDelayRestart(3, 0.5), "Restart with fixed delay (500 ms). #3 attempts."),
        (
            FailureRateRestart(2, 60.0, 1.0),
            "Failure rate restart with maximum of 2 failures within interval 60000 ms and fixed "
            "delay 1000 ms.",
        ),
        (
            ExponentialDelayRestart(),
            "Restart with exponential delay: starting at 1000 ms, increasing by 1.5, with max "
            "60000 ms.",
        ),
        (
            ExponentialDelayRestart(attempts=4),
            "Restart with exponential delay: starting at 1000 ms, increasing by 1.5, with max "
            "60000 ms. #4 attempts.",
        ),
    ],
)
def test_restart_strategies_are_described_in_flinks_words(
    strategy: RestartStrategy, text: str
) -> None:
    found = settings_json.execution_config(JobSettings(strategy, "hashmap", None, False, ()))
    assert found["restart-strategy"] == text


def test_checkpoint_config_without_interval_has_flinks_maximum_and_shows_retention() -> None:
    checkpoints = CheckpointConfiguration(
        is_exactly_once=False,
        retention=CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
    )
    found = settings_json.checkpoint_config(checkpoints, "rocksdb")
    assert found["interval"] == 2**63 - 1
    assert found["mode"] == "at_least_once"
    assert found["externalization"] == {"enabled": True, "delete_on_cancellation": False}
    assert found["state_backend"] == "EmbeddedRocksDBStateBackend"
