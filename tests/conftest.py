"""What all tests share."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray
from hypothesis import HealthCheck, Phase, settings
from ray._private import parameter, worker
from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET

from flinkray.client.ray_runtime import ports_for_agents
from flinkray.spark.environment import CACHE_VARIABLE, RAYDP, STANDALONE, check_environment
from flinkray.spark.ray_java import java_on_path

# A Ray that starts beside many others takes longer than the 30 s that Ray gives it.  A raylet that
# has died is waited for as long, so more would only delay the next try.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "90")

# how long an example takes says more about the machine than about the code; a run says the same as
# the one before, and others are looked for with --hypothesis-profile explore
settings.register_profile("explore", deadline=None)
settings.register_profile("flinkray", deadline=None, derandomize=True)
# for tools/mutants: that an example fails is enough, and a loaded machine is no failure
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("flinkray")

pytest_plugins = ["flinkray.testing.pytest_plugin", "pytester"]
if find_spec("xdist") is not None:
    pytest_plugins.append("tests.two_processes")


_REAL_PARTS = ("ray", "own_ray", "ray_up", "spark", "kill")
"""Markers of tests of real parts."""
_OF_REAL_PARTS = frozenset(
    {"ray_cluster", "cluster", "own_cluster", "zookeeper", "broker", "browser", "spark"}
)
"""Fixtures that start such parts, or a whole cluster in threads."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ``make test`` leaves to ``make test-system``."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        parameters = item.name.partition("[")[2]
        if (
            any(item.get_closest_marker(name) for name in _REAL_PARTS)
            or not _OF_REAL_PARTS.isdisjoint(fixtures)
            or parameters.startswith(("ray", "zookeeper"))
            or "-ray" in parameters
        ):
            item.add_marker("system")


def pytest_collection_finish() -> None:
    """Ten thousand tests and what they import are there to the end: what looks for unreachable
    objects need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A process that runs tests cannot send what has halves of characters in it to the one that
    reports them."""
    report = yield
    report.sections = [(title, _sendable(text)) for title, text in report.sections]
    return report


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """A shell starts what runs in its background with SIGINT ignored; Ctrl-C is to be tested."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def any_ray() -> Iterator[None]:
    """Tests start Ray by themselves.  It must see a Java then, and its workers would get next to
    nothing of a machine on which other tests run beside, as they have nice 15."""
    with java_on_path(), pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_worker_niceness", "0")
        # what Ray does all the time beside the tests, but they need not
        environment.setenv("RAY_prestart_worker_first_driver", "0")
        environment.setenv("AUTOSCALER_UPDATE_INTERVAL_S", "30")
        environment.setenv("LOG_NAME_UPDATE_INTERVAL_S", "3")  # a twentieth of a processor, at 0.5
        environment.setenv("REPORTER_UPDATE_INTERVAL_MS", "15000")
        # JVMs of Spark live for seconds here: the optimizing compiler costs more than it saves
        environment.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        # goes with the environment that it is of
        environment.setenv(CACHE_VARIABLE, f"{sys.prefix}/flinkray-cache")
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail at once if the Ray that tests share has died, as each test would wait for its limit."""
    ray_node = worker._global_node
    if ray_node is not None and "ray_cluster" in getattr(item, "fixturenames", ()):
        dead = {kind for kind, _ in ray_node.dead_processes()}
        if dead & {PROCESS_TYPE_RAYLET, PROCESS_TYPE_GCS_SERVER}:
            logs = ray_node.get_logs_dir_path()
            pytest.fail(f"{', '.join(dead)} of the tests' Ray has died; see {logs}", pytrace=False)


@pytest.fixture(scope="session")
def class_data(any_ray: None) -> Path:
    """The archive of classes that JVMs of Spark start with; one process of several makes it."""
    host = RAYDP if find_spec("raydp") is not None else STANDALONE
    _, archive = check_environment(host=host).class_data
    archive.parent.mkdir(exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            program = [sys.executable, "-m", "flinkray.spark.class_data", host]
            subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    return archive


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests on Spark have it, as they start faster then."""
    if isinstance(item, pytest.Function) and item.get_closest_marker("spark") is not None:
        item.fixturenames.append("class_data")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray cluster on this machine for the whole session; use namespaces of your own in it.

    With its dashboard, which serves Ray's state API.
    """
    with pytest.MonkeyPatch.context() as environment:
        # its workers are to find the examples, as pytest does
        examples = str(Path(__file__).parents[1] / "examples")
        environment.setenv("PYTHONPATH", examples, prepend=os.pathsep)
        # at 10 s whoever looks at the metrics endpoint would wait for it; at 1 s Ray's agents take
        # a tenth of a processor all the time
        environment.setenv("RAY_metrics_report_interval_ms", "5000")
        # Ray's log monitor takes a twentieth of a processor, for drivers that show workers' output
        of_ray = partial(parameter.RayParams, include_log_monitor=False)  # type: ignore[arg-type]
        environment.setattr(parameter, "RayParams", of_ray)
        with ports_for_agents():
            ray.init(
                address="local",
                num_cpus=4,
                num_gpus=4,  # nobody computes with these: tests look at who is given which
                include_dashboard=True,
                log_to_driver=False,
            )
    yield
    ray.shutdown()
