"""Keys and types of what is answered are Flink's: flink_shapes.json has those of a Flink 2.3.0 with
a running job of two vertices and checkpoints, of each list the first element."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import newest, settings, tallies
from tests.rest.http import Asker

FLINK: dict[str, Any] = json.loads(Path(__file__).with_name("flink_shapes.json").read_text())

ABSENT = {
    "/jobs/overview": {"jobs[].jobType", "jobs[].schedulerType"},
    "/jobs/{job}": {"application-id", "schedulerType", "vertices[].slotSharingGroupId"},
    "/taskmanagers/{executor}": {"metrics"},
}
"""What Flink has and we do not: docs/rest.md says so, too."""

OF_AN_ID = re.compile(r"[0-9a-f]{32}")
OPTIONAL = re.compile(
    r".*status-duration\.[A-Z]+|plan\.nodes\[\]\.inputs"
    r"|history\[\]\.(external_path|discarded)"
)
"""Of states that a task was in; of vertices that read from others; of complete checkpoints."""


def kind_of(value: object) -> str:
    kinds = {type(None): "null", str: "text", bool: "flag", int: "integer", float: "number"}
    return kinds[type(value)]


def differences(found: object, shape: object, path: str = "") -> Iterator[str]:
    """What is there and should not be, or the other way round."""
    if isinstance(shape, dict):
        if not isinstance(found, dict):
            yield f"{path} is {found!r}"
        elif any(map(OF_AN_ID.fullmatch, shape)):
            for value in found.values():
                yield from differences(value, next(iter(shape.values())), f"{path}.*")
        else:
            for name in sorted({*shape, *found}):
                inner = f"{path}.{name}".lstrip(".")
                if (name not in found or name not in shape) and OPTIONAL.fullmatch(inner):
                    continue
                if name not in found:
                    yield f"-{inner}"
                elif name not in shape:
                    yield f"+{inner}"
                else:
                    yield from differences(found[name], shape[name], inner)
    elif isinstance(shape, list):
        if not isinstance(found, list):
            yield f"{path} is {found!r}"
        elif shape:
            for value in found:
                yield from differences(value, shape[0], f"{path}[]")
    elif "null" not in (shape, kind_of(found)) and kind_of(found) != shape:
        yield f"{path} is {kind_of(found)}, not {shape}"


@pytest.fixture(scope="module")
def job(cluster: ThreadedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of a stream job that runs and has checkpoints."""
    folder = tmp_path_factory.mktemp("job")
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(settings(folder / "checkpoints")))
    program = tallies(env.set_parallelism(2), 10**9, 10_000.0, folder / "witness")
    program.sink_to(DiscardingSink())
    client = env.execute_async("tallies")
    wait_until(lambda: newest(folder / "checkpoints") > 1, 150, "two checkpoints")
    yield client.get_job_id().hex()
    client.cancel().result(timeout=300)
    cluster.client.job(client.get_job_id().hex()).wait(300)


@pytest.mark.parametrize("path", FLINK)
def test_each_rest_answer_has_the_keys_and_types_of_flinks_answer(
    path: str, ask: Asker, job: str
) -> None:
    vertex = ask.get(f"/jobs/{job}")["vertices"][-1]["id"]
    checkpoint = ask.get(f"/jobs/{job}/checkpoints")["latest"]["completed"]["id"]
    executor = ask.get("/taskmanagers")["taskmanagers"][0]["id"]
    asked = path.format(job=job, vertex=vertex, checkpoint=checkpoint, executor=executor)
    absent = {f"-{name}" for name in ABSENT.get(path, ())}
    if path.endswith("/backpressure"):  # of what is between two looks
        wait_until(lambda: ask.get(asked)["status"] == "ok", 150, "the second look")
    assert set(differences(ask.get(asked), FLINK[path])) == absent


def test_times_and_task_counts_of_a_running_job_agree_in_rest_answers(ask: Asker, job: str) -> None:
    found = ask.get(f"/v1/jobs/{job}")
    assert found["state"] == "RUNNING"
    assert found["end-time"] == -1
    assert found["start-time"] + found["duration"] == found["now"]
    assert [node["id"] for node in found["plan"]["nodes"]] == [it["id"] for it in found["vertices"]]
    assert sum(found["status-counts"].values()) == len(found["vertices"])
    (line,) = (it for it in ask.get("/jobs/overview")["jobs"] if it["jid"] == job)
    assert line["tasks"]["total"] == sum(it["parallelism"] for it in found["vertices"])
    assert line["tasks"]["running"] == line["tasks"]["total"]
    source = found["vertices"][0]
    assert source["metrics"]["write-records"] > 0
    of_source = ask.get(f"/jobs/{job}/vertices/{source['id']}")
    assert [it["subtask"] for it in of_source["subtasks"]] == [0, 1]
    places = ask.get(f"/jobs/{job}/vertices/{source['id']}/taskmanagers")["taskmanagers"]
    executors = {it["id"] for it in ask.get("/taskmanagers")["taskmanagers"]}
    assert {it["taskmanager-id"] for it in places} <= executors
    assert sum(it["status-counts"]["RUNNING"] for it in places) == 2


def test_details_of_a_checkpoint_are_found_by_its_id(ask: Asker, job: str) -> None:
    latest = ask.get(f"/jobs/{job}/checkpoints")["latest"]["completed"]
    found = ask.get(f"/jobs/{job}/checkpoints/details/{latest['id']}")
    assert (found["className"], found["status"]) == ("completed", "COMPLETED")
    assert found["num_acknowledged_subtasks"] == found["num_subtasks"] > 0
    missing = ask("GET", f"/jobs/{job}/checkpoints/details/999999")
    assert (missing.status, "999999" in missing.error) == (404, True)
    assert ask("GET", f"/jobs/{job}/checkpoints/details/-1").status == 400
