"""``ray job submit`` runs flinkray: what launch/kuberay/job.yaml has a Ray job do, done by one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ray.job_submission import JobSubmissionClient
from ray.util.state import list_actors

from flinkray.testing import wait_until
from tests.ray_client_server import ENVIRONMENT, RAY, free_port
from tests.ray_nodes import ray_nodes

ROOT = Path(__file__).parents[2]
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
FLINKRAY = f"{shlex.quote(sys.executable)} -m flinkray"

pytestmark = [pytest.mark.ray, pytest.mark.own_ray, pytest.mark.slow]


def manifests() -> tuple[str, str]:
    """What the Ray job runs, and its program."""
    job, program = yaml.safe_load_all((ROOT / "launch/kuberay/job.yaml").read_text("utf-8"))
    return job["spec"]["entrypoint"], program["data"]["program.py"]


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """Of a Ray of its own: Ray's agents, which start jobs, serve nothing where another Ray of the
    machine has their port."""
    port = free_port()
    with ray_nodes({**NO_TOKEN, "RAY_worker_niceness": "0"}) as nodes:
        options = ("--include-dashboard=true", f"--dashboard-port={port}", "--num-cpus=4")
        nodes.start_head({}, *options)
        yield f"http://127.0.0.1:{port}"


def submit(dashboard: str, entrypoint: str, folder: Path) -> tuple[int, str]:
    """As KubeRay does: the entry point is pasted into a line of a shell."""
    line = f"{RAY} job submit --address {dashboard} --working-dir . -- {entrypoint}"
    ends: list[tuple[int, str]] = []

    def has_been_taken() -> bool:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env={**ENVIRONMENT, **NO_TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
        )
        ends.append((done.returncode, done.stdout))
        return "No available agent" not in done.stdout  # it is ready after all others

    wait_until(has_been_taken, 300, "Ray's agent, which starts jobs")
    return ends[-1]


def test_ray_jobs_start_a_cluster_run_a_program_and_leave_no_actors(
    dashboard: str, tmp_path: Path
) -> None:
    entrypoint, program = manifests()
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "beside.py").write_text("def ones_digit(n):\n    return n % 10\n")
    program = program.replace("lambda n: n % 10", "ones_digit")
    (folder / "program.py").write_text(f"from beside import ones_digit\n{program}")
    entrypoint = (
        entrypoint.replace("s3://my-bucket/flinkray", str(tmp_path / "storage"))
        .replace("/home/ray/program/", "")
        .replace("flinkray ", f"{FLINKRAY} ")
    )
    code, log = submit(dashboard, entrypoint, folder)
    assert code == 0, log
    assert "started ResourceManager and Dispatcher" in log
    # the program's results: sums of the numbers up to 1000 with the same last digit
    printed = {int(line) for line in log.splitlines() if line.isdecimal()}
    assert {49_500 + 100 * digit for digit in range(1, 11)} <= printed

    code, log = submit(dashboard, f"{FLINKRAY} cluster down --address auto", folder)
    assert code == 0, log
    jobs = JobSubmissionClient(dashboard).list_jobs()
    assert [job.status.value for job in jobs if job.submission_id] == ["SUCCEEDED"] * 2

    def left() -> list[str]:
        alive = list_actors(dashboard, filters=[("state", "!=", "DEAD")])
        return [f"{actor.class_name} {actor.name}" for actor in alive]

    wait_until(lambda: left() == [], 300, "the end of what the jobs have started")


def test_ray_job_fails_if_its_program_fails(dashboard: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("raise SystemExit(7)\n")
    entrypoint = (
        f'bash -c "{FLINKRAY} cluster up --address auto -D storage.dir={tmp_path}/storage'
        f' && {FLINKRAY} run --address auto --python program.py"'
    )
    code, log = submit(dashboard, entrypoint, tmp_path)
    assert code == 1, log
    assert "exit code 7" in log
