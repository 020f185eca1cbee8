"""cluster.yaml as it is shipped, from `ray up` to `ray down`: a head and a worker on loopback."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.ray_up.private_machine import PrivateMachine, missing

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.ray_up, pytest.mark.timeout(600)]


def on_loopback(key: Path) -> str:
    """cluster.yaml for 127.0.0.1 and 127.0.0.2; what one machine cannot do twice is told apart."""
    configuration = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    configuration["provider"].update(head_ip="127.0.0.1", worker_ips=["127.0.0.2"])
    configuration["auth"].update(ssh_user="root", ssh_private_key=str(key))
    share = "--num-cpus=2 --memory=3000000000 --object-store-memory=200000000"
    head_start, *then = configuration["head_start_ray_commands"]
    head_start = head_start.replace("ray start", f"ray start --node-ip-address=127.0.0.1 {share}")
    configuration["head_start_ray_commands"] = [head_start, *then]
    configuration["worker_start_ray_commands"] = [
        "ray start --address=$RAY_HEAD_IP:6379 --node-ip-address=127.0.0.2 "
        f"--dashboard-agent-listen-port=52366 {share}"
    ]
    return str(yaml.safe_dump(configuration))


class Cluster:
    """Ray's commands for the cluster on a private machine."""

    def __init__(self, machine: PrivateMachine, file: Path) -> None:
        self.machine = machine
        self._file = file

    def ray(self, command: str, *more: str, timeout: float = 120) -> str:
        """`ray COMMAND cluster.yaml MORE`, which must succeed."""
        done = self.machine.run(
            *("ray", command, str(self._file), *more), timeout=timeout, cwd=ROOT
        )
        assert done.returncode == 0, f"ray {command} {more} failed:\n{done.stdout}"
        return done.stdout

    def on_head(self, command: str, timeout: float = 120) -> str:
        return self.ray("exec", command, timeout=timeout)

    def processes_of_ray(self) -> list[str]:
        signs = ("raylet", "gcs_server", "ray::", "ray/dashboard", "monitor.py")
        running = self.machine.processes()
        return [line for line in running if any(sign in line for sign in signs)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Up before the first test; its machine ends after the last, whatever has run in it."""
    reason = missing()
    if reason is not None:
        pytest.skip(f"ray up needs a machine of its own: {reason}")
    place = Path(tempfile.mkdtemp(prefix="ray-up-"))  # short: sockets lie below it
    try:
        with PrivateMachine(place, kept=(ROOT, Path(sys.prefix))) as machine:
            file = place / "cluster.yaml"
            file.write_text(on_loopback(machine.key), encoding="utf-8")
            # the environment is there already: no node has to install anything
            (machine.home / "flinkray-node").mkdir()
            (machine.home / "flinkray-node" / "env").symlink_to(sys.prefix)
            machine.run("ray", "get-auth-token", "--generate", timeout=60, cwd=ROOT)
            cluster = Cluster(machine, file)
            cluster.ray("up", "--yes", "--no-config-cache")
            yield cluster
    finally:
        shutil.rmtree(place)


def test_head_and_worker_join_the_ray_and_flinkray_cluster_status_answers(cluster: Cluster) -> None:
    deadline = time.monotonic() + 120
    while "127.0.0.2" not in cluster.on_head("ray list nodes --filter state=ALIVE"):
        assert time.monotonic() < deadline, "the worker did not join within 120 s"
    assert "127.0.0.1" in cluster.on_head("ray list nodes --filter state=ALIVE")
    assert "Ray namespace flinkray-default" in cluster.on_head("flinkray cluster status")


def test_second_ray_up_restarts_no_master(cluster: Cluster) -> None:
    def masters() -> list[str]:
        listed = cluster.on_head("ray list actors --filter state=ALIVE --detail")
        return sorted(line for line in listed.splitlines() if "actor_id" in line)

    before = masters()
    assert before
    cluster.ray("up", "--yes", "--no-config-cache")
    assert masters() == before


def test_job_runs_on_the_cluster_that_ray_up_has_started(cluster: Cluster) -> None:
    job = ROOT / "tests" / "ray_up" / "squares.py"
    shown = cluster.on_head(f"flinkray run --address auto --parallelism 2 {job}", timeout=240)
    finished = re.search(r"finished in .*: 1 rows at (\S+)", shown)
    assert finished is not None, shown
    read = "import pyarrow.parquet, sys; print(pyarrow.parquet.read_table(sys.argv[1]).to_pylist())"
    assert "[{'total': 332833500}]" in cluster.on_head(f'python -c "{read}" {finished[1]}')
    assert "FINISHED" in cluster.on_head("flinkray list")


def test_ray_down_ends_every_process_of_ray(cluster: Cluster) -> None:
    """Brings the cluster up again at the end, so that the tests may run in any order."""
    cluster.ray("down", "--yes")
    assert cluster.processes_of_ray() == []
    cluster.ray("up", "--yes", "--no-config-cache")
