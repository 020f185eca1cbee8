"""What Flink's API has no place for: why jobs wait, attempts, what runs on a TaskExecutor."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.core.errors import ConfigurationError, FlinkRayError, JobNotFoundError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.rest import job_json
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, NoRestart
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.job_info import (
    JobDetails,
    JobSettings,
    StageProgressInfo,
    VertexInfo,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.rest.http import Asker
from tests.rest.test_server import served

UNKNOWN = JobID(bytes(16)).hex()
VERTEX = JobVertexID(b"v" * 16)


def execution(
    subtask: int, attempt: int, state: ExecutionState, actor: str | None
) -> ExecutionInfo:
    return ExecutionInfo(
        subtask,
        attempt,
        state,
        "TaskExecutor-1 bundle 0 on 10.0.0.1",
        executor_actor_id=actor,
        executor_pid=None if actor is None else 77,
        state_timestamps={"RUNNING": 3.0, "DEPLOYING": 1.5},
        failure="boom" if state is ExecutionState.FAILED else None,
    )


STAGE = JobDetails(
    JobID(b"j" * 16),
    "flights",
    JobStatus.RUNNING,
    1.0,
    None,
    {},
    restarts=2,
    failovers=7,
    vertices=(
        VertexInfo(
            VERTEX,
            "stage",
            1,
            (execution(0, 2, ExecutionState.RUNNING, "abc"),),
            active_stages=(StageProgressInfo(4, "collect", 8, 2, 5, 1),),
            completed_stages=3,
            completed_tasks=21,
            failed_tasks=1,
            prior_executions=(execution(0, 1, ExecutionState.FAILED, "abb"),),
        ),
    ),
    pending_reason="1 of 2 slots",
    warnings=("too few cores",),
)


def test_progress_of_a_spark_stage_has_its_stages_and_task_counts() -> None:
    found = job_json.progress(STAGE, JobSettings(NoRestart(), "hashmap", None, True, ()))
    assert found["failovers"] == 7
    assert (found["restarts"], found["pending-reason"], found["warnings"], found["is-elastic"]) == (
        2,
        "1 of 2 slots",
        ["too few cores"],
        True,
    )
    (vertex,) = found["vertices"]
    assert vertex == {
        "id": VERTEX.hex(),
        "spark-executors": 1,
        "active-stages": [
            {
                "stage-id": 4,
                "name": "collect",
                "num-tasks": 8,
                "active-tasks": 2,
                "completed-tasks": 5,
                "failed-tasks": 1,
            }
        ],
        "completed-stages": 3,
        "completed-tasks": 21,
        "failed-tasks": 1,
    }


def test_attempts_are_listed_oldest_first_with_their_failures() -> None:
    found = job_json.attempts(STAGE.vertices[0], 9.0)
    assert (found["id"], found["name"], found["now"]) == (VERTEX.hex(), "stage", 9000)
    first, second = found["attempts"]
    assert (first["attempt"], first["status"], first["failure"]) == (1, "FAILED", "boom")
    assert (second["attempt"], second["status"], second["failure"]) == (2, "RUNNING", None)
    assert list(second["timestamps"].items()) == [("DEPLOYING", 1500), ("RUNNING", 3000)]
    assert (second["taskmanager-id"], second["endpoint"]) == ("TaskExecutor-1", "10.0.0.1")
    assert second["spark-executor"] == {"actor-id": "abc", "pid": 77}


def test_tasks_of_a_task_executor_list_its_spark_executors() -> None:
    (task,) = job_json.tasks_on("TaskExecutor-1", [STAGE])["tasks"]
    assert (task["jid"], task["name"]) == (STAGE.job_id.hex(), "flights")
    assert (task["vertex"], task["vertex-name"], task["subtask"]) == (VERTEX.hex(), "stage", 0)
    assert task["spark-executor"] == {"actor-id": "abc", "pid": 77}
    assert job_json.tasks_on("TaskExecutor-2", [STAGE])["tasks"] == []


def test_job_restarted_after_a_failure_lists_both_attempts_and_the_running_tasks(
    cluster: ThreadedCluster, ask: Asker
) -> None:
    job = scripted_job(
        ["register", "fail"], ["register", "wait"], restart_strategy=FixedDelayRestart(1, 0.0)
    )
    handle = cluster.client.submit(job)
    job_id = handle.job_id.hex()

    def runs_again() -> bool:
        job = ask.get(f"/jobs/{job_id}")
        restarts = ask.get(f"/jobs/{job_id}/progress")["restarts"]
        return bool(restarts == 1 and job["status-counts"]["RUNNING"])

    wait_until(runs_again, 150, "the second attempt")
    vertex = ask.get(f"/jobs/{job_id}")["vertices"][0]["id"]
    attempts = ask.get(f"/jobs/{job_id}/vertices/{vertex}/attempts")["attempts"]
    assert [it["attempt"] for it in attempts if it["subtask"] == 0] == [0, 1]
    executors = [it["id"] for it in ask.get("/taskmanagers")["taskmanagers"]]
    tasks = [it for name in executors for it in ask.get(f"/taskmanagers/{name}/tasks")["tasks"]]
    of_job = [it for it in tasks if it["jid"] == job_id]
    assert {(it["vertex"], it["attempt"], it["status"]) for it in of_job} == {
        (vertex, 1, "RUNNING")
    }
    progress = ask.get(f"/v1/jobs/{job_id}/progress")
    assert (progress["is-elastic"], progress["pending-reason"]) == (False, None)
    none = ask("GET", f"/jobs/{job_id}/checkpoints")
    assert (none.status, none.error) == (404, "Checkpointing has not been enabled.")
    handle.cancel()
    handle.wait(300)


@pytest.mark.parametrize(
    "error", [JobNotFoundError(STAGE.job_id), ConfigurationError("10 s is shorter than 20 s")]
)
def test_progress_of_a_job_whose_settings_are_unknown_is_still_answered(
    error: FlinkRayError, cluster: ThreadedCluster
) -> None:
    """The job may have been submitted to a cluster with another configuration."""

    class Forgetful:
        async def ask(self, question: str, call: object, timeout: float | None) -> Any:
            if question.startswith("get the settings"):
                raise error
            return STAGE

    with served(cluster, Forgetful()) as ask:
        progress = ask.get(f"/jobs/{STAGE.job_id}/progress")
        none = ask("GET", f"/jobs/{STAGE.job_id}/checkpoints")
    assert (progress["restarts"], progress["is-elastic"]) == (2, False)
    assert (none.status, none.error) == (404, "Checkpointing has not been enabled.")


@pytest.mark.parametrize(
    "path",
    [f"jobs/{UNKNOWN}/progress", f"jobs/{UNKNOWN}/vertices/{UNKNOWN}/attempts"],
)
def test_progress_of_an_unknown_job_or_worker_is_answered_with_404(path: str, ask: Asker) -> None:
    """RE-05."""
    assert ask("GET", f"/{path}").status == 404
    assert ask("GET", f"/{path.replace(UNKNOWN, 'x')}").status == 400
    assert ask("GET", "/taskmanagers/nobody/tasks").status == 404
