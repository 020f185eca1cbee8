"""Jobs that end, fail and are cancelled, as the endpoint tells of them."""

from __future__ import annotations

import pytest

from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.rest.conftest import Counting
from tests.rest.http import Asker

UNKNOWN = JobID(bytes(16)).hex()
RUNS = ["register", "wait"]
ENDS = ["register", "finish"]


def status_of(ask: Asker, job_id: str) -> str:
    return str(ask.get(f"/jobs/{job_id}/status")["status"])


def submitted(cluster: ThreadedCluster, *attempts: list[str]) -> str:
    job = scripted_job(*attempts, restart_strategy=NoRestart())
    return cluster.client.submit(job).job_id.hex()


def test_job_status_and_result_can_be_polled_until_the_job_has_finished(
    cluster: ThreadedCluster, ask: Asker
) -> None:
    """RE-36."""
    job_id = submitted(cluster, ENDS)
    cluster.client.job(job_id).result()
    result = ask.get(f"/jobs/{job_id}/execution-result")
    assert result["status"] == {"id": "COMPLETED"}
    of_job = result["job-execution-result"]
    assert (of_job["id"], of_job["application-status"]) == (job_id, "SUCCEEDED")
    assert of_job["net-runtime"] >= 0
    (line,) = (it for it in ask.get("/jobs/overview")["jobs"] if it["jid"] == job_id)
    assert line["state"] == "FINISHED"
    assert line["end-time"] == line["start-time"] + line["duration"] == line["last-modification"]
    details = ask.get(f"/jobs/{job_id}")
    assert details["timestamps"]["FINISHED"] == details["end-time"]
    assert details["timestamps"]["FAILED"] == 0
    assert {"id": job_id, "status": "FINISHED"} in ask.get("/jobs")["jobs"]


def test_repeated_cancel_is_accepted_and_cancel_of_an_ended_job_is_refused(
    cluster: ThreadedCluster, ask: Asker
) -> None:
    """RE-33."""
    job_id = submitted(cluster, RUNS)
    wait_until(lambda: status_of(ask, job_id) == "RUNNING", 150, "the job to run")
    assert ask.get(f"/jobs/{job_id}/execution-result") == {"status": {"id": "IN_PROGRESS"}}
    stop = ask("PATCH", f"/jobs/{job_id}?mode=stop")
    assert (stop.status, f"/jobs/{job_id}/stop" in stop.error) == (308, True)
    assert ask("PATCH", f"/jobs/{job_id}?mode=pause").status == 400
    assert ask("PATCH", f"/jobs/{job_id}?mode=cancel").status == 202
    wait_until(lambda: status_of(ask, job_id) == "CANCELED", 150, "the job's end")
    result = ask.get(f"/jobs/{job_id}/execution-result")["job-execution-result"]
    assert result["application-status"] == "CANCELED"
    assert "failure-cause" not in result
    assert ask("GET", f"/jobs/{job_id}/yarn-cancel").status == 202  # a second time is fine

    finished = submitted(cluster, ENDS)
    cluster.client.job(finished).result()
    refused = ask("PATCH", f"/jobs/{finished}")
    assert (refused.status, finished in refused.error) == (409, True)
    missing = ask("PATCH", f"/jobs/{UNKNOWN}")
    assert (missing.status, missing.error) == (404, "Job could not be found.")


def test_exceptions_of_a_job_are_listed_newest_first(cluster: ThreadedCluster, ask: Asker) -> None:
    """RE-46."""
    job_id = submitted(cluster, ["register", "fail:no such airport"])
    wait_until(lambda: status_of(ask, job_id) == "FAILED", 150, "the job's end")
    told = ask.get(f"/jobs/{job_id}/exceptions")["exceptionHistory"]
    ours = cluster.client.job(job_id).details().exceptions
    assert told["truncated"] is False
    assert len(told["entries"]) == len(ours) >= 1
    newest = told["entries"][0]
    assert ours[-1].text in newest["stacktrace"]
    assert newest["timestamp"] == round(ours[-1].timestamp * 1000)
    none = ask.get(f"/jobs/{job_id}/exceptions?maxExceptions=0")["exceptionHistory"]
    assert none == {"entries": [], "truncated": True}
    assert ask("GET", f"/jobs/{job_id}/exceptions?maxExceptions=all").status == 400
    labelled = ask.get(f"/jobs/{job_id}/exceptions?failureLabelFilter=kind:user")
    assert labelled == {"exceptionHistory": {"entries": [], "truncated": False}}
    cause = ask.get(f"/jobs/{job_id}/execution-result")["job-execution-result"]["failure-cause"]
    assert ours[-1].text in cause["stack-trace"]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/plan",
        "/config",
        "/status",
        "/exceptions",
        "/accumulators",
        "/checkpoints",
        "/execution-result",
        f"/vertices/{UNKNOWN}",
    ],
)
def test_unknown_job_is_answered_with_404_and_a_malformed_job_id_with_400(
    path: str, ask: Asker
) -> None:
    """RE-03, RE-05."""
    unknown = ask("GET", f"/jobs/{UNKNOWN}{path}")
    assert (unknown.status, UNKNOWN in unknown.error) == (404, True)
    malformed = ask("GET", f"/jobs/nonsense{path}")
    assert (malformed.status, "'nonsense'" in malformed.error) == (400, True)


def test_unknown_vertices_subtasks_and_task_executors_are_answered_with_404(
    cluster: ThreadedCluster, ask: Asker
) -> None:
    """RE-05."""
    job_id = submitted(cluster, RUNS)
    wait_until(lambda: ask.get(f"/jobs/{job_id}")["vertices"], 150, "the job's vertices")
    vertex = ask.get(f"/jobs/{job_id}")["vertices"][0]["id"]
    assert ask("GET", f"/jobs/{job_id}/vertices/{JobVertexID.generate().hex()}").status == 404
    assert ask("GET", f"/jobs/{job_id}/vertices/x").status == 400
    assert ask("GET", f"/jobs/{job_id}/vertices/{vertex}/subtasks/7").status == 404
    assert ask("GET", f"/jobs/{job_id}/vertices/{vertex}/subtasks/x").status == 400
    assert ask("GET", "/taskmanagers/nobody").status == 404
    assert ask("PATCH", f"/jobs/{job_id}").status == 202
    wait_until(lambda: status_of(ask, job_id) == "CANCELED", 150, "the job's end")


def test_job_submission_is_refused_and_a_client_heartbeat_is_accepted(
    ask: Asker, counting: Counting
) -> None:
    refused = ask("POST", "/jobs", {"jobGraphFileName": "graph"})
    assert (refused.status, "flinkray run" in refused.error) == (400, True)
    alive = ask("PATCH", f"/jobs/{UNKNOWN}/clientHeartbeat", {"expiredTimestamp": 1})
    assert alive.status == 202
    assert counting.questions == [f"keep job {UNKNOWN} alive"]
