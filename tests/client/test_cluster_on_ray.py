"""Starting, finding and ending clusters on a real Ray."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.state import jobs
from ray.util import list_named_actors, placement_group, placement_group_table
from ray.util.placement_group import remove_placement_group

import flinkray
from flinkray.client import ray_runtime
from flinkray.client.cli import execute
from flinkray.client.ray_runtime import ClusterNotFoundError, ports_for_agents
from flinkray.testing.waiting import wait_until

pytestmark = pytest.mark.ray

Output = Callable[[], tuple[str, str]]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """The session's Ray, where there is one."""
    is_ours = not ray.is_initialized()
    if is_ours:
        with ports_for_agents():
            ray.init(
                address="local",
                include_dashboard=False,
                num_cpus=4,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    yield
    if is_ours:
        ray.shutdown()


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def actors_of(namespace: str) -> set[str]:
    return {
        actor["name"]
        for actor in list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace
    }


def masters_of(namespace: str) -> set[str]:
    """Without the processes that stand by, which may be started by now or not."""
    return {name for name in actors_of(namespace) if not name.startswith("Prestarted-")}


def said_by_a_process(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command line that is not ours.  It leaves Ray by ending:
    Ray is to know that."""
    address = ray.get_runtime_context().gcs_address
    line = [sys.executable, "-m", "flinkray", *arguments, "--address", address]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()

    def has_left() -> bool:
        return any(job["DriverPid"] == process.pid and job["IsDead"] for job in jobs())

    wait_until(has_left, 150, "the end of the driver")
    return process.returncode, out, err


def test_connect_without_a_running_cluster_says_how_to_start_a_cluster() -> None:
    with pytest.raises(ClusterNotFoundError, match="flinkray cluster up --cluster-id nowhere"):
        flinkray.connect("auto", cluster_id="nowhere")
    assert ray.is_initialized()


@pytest.mark.smoke
def test_cluster_up_starts_masters_once_and_cluster_down_leaves_no_actor(
    output: Output, tmp_path: object
) -> None:
    named = ["--cluster-id", "up-and-down"]
    assert execute(["cluster", "status", *named]) == 3
    assert "no flinkray cluster 'up-and-down' runs in this Ray" in output()[1]

    up = ["cluster", "up", *named, "-D", f"storage.dir={tmp_path}"]
    assert execute(up) == 0
    out, _ = output()
    assert "cluster 'up-and-down' is up: started ResourceManager and Dispatcher" in out
    assert "ray list actors --filter ray_namespace=flinkray-up-and-down" in out
    assert masters_of("flinkray-up-and-down") == {"Dispatcher", "ResourceManager"}
    assert execute(up) == 0
    assert "is running already" in output()[0]

    assert execute(["cluster", "status", *named]) == 0
    out, _ = output()
    assert "jobs        0 running, 0 ended" in out
    dashboard = ray_runtime.present_ray().dashboard_url
    assert f"dashboard   {dashboard or 'none'}\n" in out  # processes of a cluster suppose 8265
    assert execute(["list", *named]) == 0
    assert output()[0] == "no jobs\n"
    with pytest.raises(ClusterNotFoundError, match="'up-and-down'"):
        flinkray.connect("auto", cluster_id="another")

    for answer in ("is down", "was not running"):
        assert execute(["cluster", "down", *named]) == 0
        out, err = output()
        assert out == f"cluster 'up-and-down' {answer}\n"
        assert err == ""
        assert actors_of("flinkray-up-and-down") == set()


def test_cluster_up_restarts_a_missing_master_with_the_running_configuration(
    output: Output, tmp_path: Path
) -> None:
    """The masters of a cluster that was half ended must not differ in their configuration."""
    named, space = ["--cluster-id", "halfway"], "flinkray-halfway"
    first, second = ([f"-Dstorage.dir={tmp_path / name}"] for name in ("first", "second"))
    assert execute(["cluster", "up", *named, *first]) == 0
    ray.kill(ray.get_actor("Dispatcher", namespace=space))
    wait_until(lambda: "Dispatcher" not in actors_of(space), 150, "the Dispatcher's end")
    output()

    assert execute(["cluster", "up", *named, *second]) == 0

    started = "is up: started Dispatcher, configured as what ran already"
    assert f"cluster 'halfway' {started}" in output()[0]
    record = ray_runtime.recall_cluster("halfway")
    assert record is not None
    assert record.storage_dir == f"{tmp_path}/first/halfway"
    assert execute(["cluster", "down", *named]) == 0


def test_cluster_started_by_a_client_ends_with_the_client_but_ray_keeps_running() -> None:
    """DI-19: a client that starts a cluster for a single job has fetched the result before it ends.
    A detached job is refused there (tests/client/test_cli.py)."""
    with flinkray.connect(cluster_id="embedded") as client:
        assert client.list_jobs() == ()
        assert masters_of("flinkray-embedded") == {"Dispatcher", "ResourceManager"}
        with flinkray.connect("auto", cluster_id="embedded") as other:
            assert other.cluster_overview().jobs == ()
        assert said_by_a_process("list", "--json", "--cluster-id", "embedded") == (0, "[]\n", "")
        code, _, error = said_by_a_process("info", "abcd", "--cluster-id", "embedded")
        assert (code, error) == (4, "Error: no job's id begins with abcd (see: flinkray list)\n")
        assert client.list_jobs() == ()  # the other one did not start it, and does not end it
    assert actors_of("flinkray-embedded") == set()
    assert ray.is_initialized()


class Straggler:
    """Stands for what a crash may leave."""

    def ping(self) -> None: ...


def start_straggler(name: str, namespace: str) -> Any:
    straggler: Any = ray.remote(Straggler)
    options = {"name": name, "namespace": namespace, "lifetime": "detached", "num_cpus": 0}
    return straggler.options(**options).remote()


def test_cluster_down_removes_only_processes_of_its_own_cluster(output: Output) -> None:
    ours, theirs = "flinkray-left", "flinkray-left-2"
    job = "0123456789abcdef" * 2
    ours_groups = [f"{ours}-{job}-default-0", f"{ours}-shared-1"]
    names = [*ours_groups, f"{theirs}-shared-0", "flinkray-left-over"]
    stragglers = [start_straggler("JobMaster-1", namespace) for namespace in (ours, theirs)]
    ray.get([straggler.ping.remote() for straggler in stragglers])
    groups = [placement_group([{"CPU": 0.1}], name=name, lifetime="detached") for name in names]
    try:
        assert all(group.wait(300) for group in groups)
        assert execute(["cluster", "down", "--cluster-id", "left"]) == 0
        out, err = output()
        assert out == "cluster 'left' was not running\n"
        assert sorted(err.splitlines()) == sorted(
            f"was left and ended: {name}" for name in ("JobMaster-1", *ours_groups)
        )
        assert actors_of(ours) == set()
        assert actors_of(theirs) == {"JobMaster-1"}
        alive = {
            entry["name"]
            for entry in placement_group_table().values()
            if entry["state"] != "REMOVED"
        }
        assert alive & set(names) == set(names[2:])
    finally:
        for straggler in stragglers:
            ray.kill(straggler)
        for group in groups:
            remove_placement_group(group)


def test_head_node_id_found_by_the_client_is_the_id_of_a_ray_node() -> None:
    nodes: list[dict[str, Any]] = ray.nodes()
    assert ray_runtime.head_node_id() in {node["NodeID"] for node in nodes}


def test_cluster_up_refuses_an_unknown_storage_scheme_and_names_the_option(output: Output) -> None:
    named = ["--cluster-id", "no-storage"]
    assert execute(["cluster", "up", *named, "-D", "storage.dir=s3x://bucket"]) == 2
    assert "error: storage.dir is of no use: Unrecognized filesystem type" in output()[1]
    assert actors_of("flinkray-no-storage") == set()


def test_second_of_two_simultaneous_cluster_ups_names_its_options_without_effect(
    tmp_path: Path,
) -> None:
    """Otherwise the two masters could differ in their configuration, or from the recorded one."""
    named = ["--cluster-id", "twice"]
    folders = [tmp_path / name for name in ("one", "other")]
    address = ray.get_runtime_context().gcs_address
    lines = [
        [sys.executable, "-m", "flinkray", "cluster", "up", "--json", "--address", address, *named]
        for _ in folders
    ]
    starting = [
        subprocess.Popen(
            [*line, "-D", f"storage.dir={folder}", "-D", f"taskmanager.numberOfTaskSlots={n}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n, (line, folder) in enumerate(zip(lines, folders, strict=True), 1)
    ]
    told = [process.communicate() for process in starting]
    try:
        assert [process.returncode for process in starting] == [0, 0], told
        started = [json.loads(out)["started"] for out, _ in told]
        assert sorted(started) == [[], ["ResourceManager", "Dispatcher"]]
        winner = 1 if started[0] == [] else 0
        loser = 1 - winner
        record = ray_runtime.recall_cluster("twice")
        assert record is not None
        assert record.storage_dir == f"{folders[winner]}/twice"
        assert record.configuration["taskmanager.numberOfTaskSlots"] == str(winner + 1)
        out, err = told[loser]
        assert json.loads(out)["not_taken"] == {
            "storage.dir": {"asked": str(folders[loser]), "present": str(folders[winner])},
            "taskmanager.numberOfTaskSlots": {"asked": str(loser + 1), "present": str(winner + 1)},
        }
        assert f"taskmanager.numberOfTaskSlots is {winner + 1} in this cluster" in err
        assert "flinkray cluster down" in err
        assert json.loads(told[winner][0])["not_taken"] == {}
        assert masters_of("flinkray-twice") == {"Dispatcher", "ResourceManager"}
    finally:
        assert execute(["cluster", "down", *named]) == 0
