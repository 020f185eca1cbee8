"""Implements the host of executors with RayDP: an app master and executors are Java actors of Ray.

The driver's JVM is itself the Ray driver and creates RayDP's app master, an actor whose options
decide in which bundles executors start: docs/design/0005-spark-hosting.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo
from flinkray.spark.environment import RaydpArchives, SparkEnvironment
from flinkray.spark.gateway import SparkStageDescriptor
from flinkray.spark.host import HostProperties, SparkHost
from flinkray.spark.processes import (
    marker_environment,
    marker_options,
    note_application,
    stage_name,
)
from flinkray.spark.progress import join_executors, lost_for_good
from flinkray.spark.ray_cluster import RayContext, ray_actors, ray_executor_actors
from flinkray.spark.stage_properties import MODULE_OPTIONS

_APP_MASTER = "app-master"
_EXECUTORS_END = 5.0
_RESOURCE_PREFIX = "spark.ray.raydp_spark_master.actor.resource."
_ACTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource"


def ray_namespace(stage: SparkStageDescriptor) -> str:
    """Return the Ray namespace of a stage attempt. Applications must not share a namespace, because
    RayDP names the actors of each ``raydp-executor-<n>``."""
    return f"flinkray-{stage_name(stage.job_id, stage.attempt_name)}"


class RaydpHost(SparkHost):
    """Provides executors through RayDP: Ray starts them, and restarts lost executors in their
    bundles."""

    loss = "RayDP's app master was lost, and the executors with it"

    def __init__(
        self, stage: SparkStageDescriptor, environment: SparkEnvironment, ray: RayContext
    ) -> None:
        assert environment.raydp is not None
        self._stage = stage
        self._ray = ray
        self._archives = environment.raydp
        self._namespace = ray_namespace(stage)
        self._gateway: Any = None
        self._app_master: Any = None
        self._known: frozenset[str] = frozenset()
        self._registered: tuple[SparkExecutorInfo, ...] = ()
        self.properties = raydp_properties(stage, environment, ray)

    def start(self, gateway: Any, timed: Callable[[str, Callable[[], Any]], Any]) -> str:
        self._gateway = gateway
        timed("ray", gateway.jvm.io.ray.api.Ray.init)
        return str(timed("app_master", self._create_app_master))

    def opened(self, java_context: Any) -> None:
        note_application(
            self._ray.session_directory,
            self._stage.job_id,
            self._stage.attempt_name,
            _application_id(java_context),
        )

    def executors(self, active: Iterable[str]) -> tuple[SparkExecutorInfo, ...]:
        """Return the registered executors with their processes (:meth:`SparkHost.executors`). Ray
        is asked only if *active* has changed, or if an executor's actor was not known yet."""
        now = frozenset(active)
        if now != self._known or len(now) != len(self._registered):
            self._registered = join_executors(
                sorted(now, key=_by_number),
                dict(self._utilities.getRestartedExecutors(self._app_master)),
                ray_executor_actors(self._namespace),
            )
            self._known = now
        return self._registered

    def missed(self) -> str | None:
        """Return a text that says why a slot has no executor and will get none: RayDP does not
        replace an executor that is killed while it starts. None: there is no such slot."""
        lost = lost_for_good(ray_executor_actors(self._namespace).values())
        if lost is None:
            return None
        logs = self.executor_logs(self._ray.logs_directory)
        return (
            f"the executor of slot {lost.bundle_index} (pid {lost.pid}) has ended, and RayDP "
            f"starts no other one; logs: {logs}; Ray says: {lost.death}"
        )

    def is_lost(self) -> bool:
        master = ray_actors(self._namespace).get(_APP_MASTER)
        return master is not None and master.is_dead

    def executor_logs(self, logs_directory: str) -> str:
        return f"raydp-java-worker-* in {logs_directory}"

    def stop(self) -> None:
        self._utilities.stopAppMaster(self._app_master)
        self._gateway.jvm.io.ray.api.Ray.shutdown()

    def await_end(self) -> None:
        """Wait until the executors have ended, at most some seconds. After that no starting
        executor uses a bundle, so that the placement group can be removed."""
        deadline = time.monotonic() + _EXECUTORS_END
        while time.monotonic() < deadline:
            if all(actor.is_dead for actor in ray_executor_actors(self._namespace).values()):
                return
            time.sleep(0.05)

    def _create_app_master(self) -> str:
        jvm = self._gateway.jvm
        options = jvm.java.util.ArrayList()
        for option in app_master_options(self._stage, self._archives):
            options.add(option)
        resources = jvm.java.util.HashMap()
        # Keeps the app master on the driver's node.  (Never take a resource of the placement
        # group for this: the raylet aborts when the group is removed in the meantime.)
        resources[f"{_RESOURCE_PREFIX}node:{self._ray.node_ip}"] = 0.001
        class_path = jvm.java.lang.System.getProperty("java.class.path")
        self._app_master = self._utilities.createAppMaster(
            class_path, _APP_MASTER, options, resources
        )
        return str(self._utilities.getMasterUrl(self._app_master))

    @property
    def _utilities(self) -> Any:
        return self._gateway.jvm.org.apache.spark.deploy.raydp.RayAppMasterUtils


def raydp_properties(
    stage: SparkStageDescriptor, environment: SparkEnvironment, ray: RayContext
) -> HostProperties:
    """Return the properties that RayDP needs for a stage."""
    assert environment.raydp is not None
    spark = {
        "spark.javaagent": str(environment.raydp.agent),
        "spark.ray.log4j.factory.class": "log4j2",
        "spark.ray.log4j.config.file.name": "log4j2.xml",
        f"{_ACTOR_RESOURCE}.cpu": f"{stage.slot_profile.cpu:g}",
    }
    for name, amount in sorted(stage.slot_profile.extended.items()):
        spark[f"{_ACTOR_RESOURCE}.{name}"] = f"{amount:g}"
    return HostProperties(
        environment.class_path, spark, _driver_options(stage, environment, environment.raydp, ray)
    )


def app_master_options(stage: SparkStageDescriptor, archives: RaydpArchives) -> tuple[str, ...]:
    """Return the JVM options of RayDP's app master, which only hands out executors: for a fast
    start and little memory."""
    return (
        *MODULE_OPTIONS,
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xmx256m",
        f"-javaagent:{archives.agent}",
        "-Dspark.ray.log4j.factory.class=log4j2",
        "-Dlog4j2.configurationFile=log4j2.xml",
        "-Dray.logging.file-prefix=raydp-java-worker",
        f"-Dspark.ray.placement_group={stage.worker_group.value}",
        # RayDP uses only their number; executor e goes to bundle e modulo that number.
        f"-Dspark.ray.bundle_indexes={','.join(map(str, range(stage.parallelism)))}",
        f"-Dspark.executor.instances={stage.parallelism}",
        *marker_options(stage.job_id, stage.attempt_name),
    )


def _driver_options(
    stage: SparkStageDescriptor,
    environment: SparkEnvironment,
    archives: RaydpArchives,
    ray: RayContext,
) -> tuple[str, ...]:
    name = stage_name(stage.job_id, stage.attempt_name)
    properties = {
        "ray.address": ray.address,
        "ray.node-ip": ray.node_ip,
        "ray.run-mode": "CLUSTER",
        "ray.session-dir": ray.session_directory,
        "ray.logging.dir": ray.logs_directory,
        "ray.logging.level": "WARN",
        "ray.logging.file-prefix": f"flinkray-{name}",
        "ray.job.namespace": ray_namespace(stage),
        "spark.ray.log4j.factory.class": "log4j2",
        "log4j2.configurationFile": "log4j2-default.properties",
    }
    java = environment.java
    worker_environment = {
        **marker_environment(stage.job_id, stage.attempt_name),
        "JAVA_HOME": str(java.home),
        "PATH": f"{java.home / 'bin'}:${{PATH}}",  # Ray expands it on each node
        "BASH_ENV": str(Path(__file__).with_name("java_worker.sh")),
        "FLINKRAY_CLASS_DATA_OPTION": environment.class_data_option,
        "FLINKRAY_JVM_LOG": f"{ray.logs_directory}/flinkray-{name}-executors.log",
    }
    for key, value in worker_environment.items():
        properties[f"ray.job.runtime-env.env-vars.{key}"] = value
    return (
        environment.class_data_option,
        f"-javaagent:{archives.agent}",
        *(f"-D{key}={value}" for key, value in properties.items()),
    )


def _application_id(java_context: Any) -> str:
    """Return the id that RayDP gives the application (a private field); it differs from
    SparkContext.applicationId."""
    backend = java_context.schedulerBackend()
    [field] = [  # Scala's compiler prefixes the name
        field
        for field in backend.getClass().getDeclaredFields()
        if field.getName().endswith("appId")
    ]
    field.setAccessible(True)
    return str(field.get(backend).get())


def _by_number(executor_id: str) -> tuple[int, str]:
    return (int(executor_id), "") if executor_id.isdigit() else (0, executor_id)
