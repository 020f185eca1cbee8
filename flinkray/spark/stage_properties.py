"""Computes the Spark properties and JVM command lines of a stage from its descriptor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flinkray.core.errors import ConfigurationError
from flinkray.core.private_files import variables
from flinkray.spark.environment import HOST_OPTION, JAVA_HOME_OPTION
from flinkray.spark.executor_memory import MIB, split_memory
from flinkray.spark.gateway import SparkStageDescriptor
from flinkray.spark.host import HostProperties
from flinkray.spark.processes import marker_environment, marker_options, stage_name
from flinkray.spark.ray_cluster import RayContext

_OWNED: Mapping[str, str] = {
    "spark.master": "the stage runs in the slots of its job",
    "spark.submit.deployMode": "the driver is a process of the cluster",
    "spark.app.id": "it comes from the job",
    "spark.driver.host": "it is the address of the node that the driver was placed on",
    "spark.driver.bindAddress": "it is the address of the node that the driver was placed on",
    "spark.executor.instances": "a stage has one executor per slot: set the stage's parallelism",
    "spark.executor.cores": "cores come from the slot's resource profile",
    "spark.executor.memory": "memory comes from the slot's resource profile",
    "spark.dynamicAllocation.enabled": "executors are the job's slots: set the stage's parallelism",
    "spark.shuffle.service.enabled": "RayDP would start it outside of the job's slots",
    "spark.local.dir": "it lies in the Ray session's directory, where it is cleaned up",
    "spark.javaagent": "it is RayDP's",
    "spark.jars.packages": "put the archives on every node and name them in spark.jars",
    "spark.submit.pyFiles": "call session.sparkContext.addPyFile in the function",
}
_OWNED_PREFIX = "spark.ray."

_OPENED_PACKAGES = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.math",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)

MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
)
"""JVM options that open packages on Java 17; without them, exchanges with Ray kill executors."""


@dataclass(frozen=True, slots=True)
class StageProperties:
    """Properties and command lines of a stage's JVMs."""

    spark: dict[str, str]
    """Properties of the SparkSession without the master, which is known once the host has one."""
    driver_command: tuple[str, ...]
    """Arguments of ``java`` for the driver."""
    class_path: str
    python: str
    """Interpreter of the Python workers."""


def stage_properties(
    stage: SparkStageDescriptor, ray: RayContext, python: str, host: HostProperties
) -> StageProperties:
    """Return everything that decides how a stage's driver and executors are started.

    Raises:
        ConfigurationError: the user set a property that follows from the job, or the slot's profile
            is too small for an executor; the text names the property or the size.
    """
    user = user_properties(stage)
    refuse_owned(user)
    heap, overhead = split_memory(stage.slot_profile, user.get("spark.executor.memoryOverhead"))
    cores = executor_cores(stage)
    scratch = f"{ray.session_directory}/{stage_name(stage.job_id, stage.attempt_name)}"
    defaults = {
        "spark.app.name": stage.job_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # By default a task that starts within 100 ms of another is not counted until an executor's
        # next heartbeat, up to 20 s later: nothing else happens while tasks run.
        "spark.ui.liveUpdate.period": "0",
        # By default it depends on the number of executors registered at the first use.
        "spark.default.parallelism": str(max(2, stage.parallelism * cores)),
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
    owned = {
        "spark.submit.deployMode": "client",
        "spark.driver.host": ray.node_ip,
        "spark.driver.bindAddress": ray.node_ip,
        "spark.executor.instances": str(stage.parallelism),
        "spark.executor.cores": str(cores),
        "spark.executor.memory": f"{heap // MIB}m",
        "spark.executor.memoryOverhead": f"{overhead // MIB}m",
        "spark.dynamicAllocation.enabled": "false",
        "spark.shuffle.service.enabled": "false",
        "spark.local.dir": scratch,
        "spark.executor.extraJavaOptions": " ".join(executor_java_options(stage)),
        **host.spark,
    }
    of_executors = {
        **marker_environment(stage.job_id, stage.attempt_name),
        **variables(stage.storage_permissions),
    }
    for name, value in of_executors.items():
        owned[f"spark.executorEnv.{name}"] = value
    class_path = _class_path(host.class_path, user)
    return StageProperties(
        spark={**defaults, **user, **owned},
        driver_command=_driver_command(stage, ray, user, class_path, host.driver_options),
        class_path=class_path,
        python=user.get("spark.pyspark.python", python),
    )


def user_properties(stage: SparkStageDescriptor) -> dict[str, str]:
    """Return the Spark properties that the user has set for a stage."""
    ours = (JAVA_HOME_OPTION, HOST_OPTION)
    return {key: value for key, value in stage.configuration.items() if key not in ours}


def executor_cores(stage: SparkStageDescriptor) -> int:
    """Return how many tasks one executor runs at the same time."""
    return max(1, math.floor(stage.slot_profile.cpu))


def executor_java_options(stage: SparkStageDescriptor) -> tuple[str, ...]:
    """Return an executor's JVM options without heap size; the user's options come last."""
    return (
        *MODULE_OPTIONS,
        # As many threads for collection and compilation as the slot has cores, not as the node has.
        f"-XX:ActiveProcessorCount={executor_cores(stage)}",
        *marker_options(stage.job_id, stage.attempt_name),
        *stage.configuration.get("spark.executor.extraJavaOptions", "").split(),
    )


def refuse_owned(configuration: Mapping[str, str]) -> None:
    """Check that a user sets only Spark properties that the job does not decide itself.

    Raises:
        ConfigurationError: a key is no Spark property, or the job decides its value.
    """
    for key in sorted(configuration):
        if not key.startswith("spark."):
            raise ConfigurationError(
                f"{key} is no Spark property (those start with 'spark.'; the one other key that a "
                f"Spark stage knows is {JAVA_HOME_OPTION})"
            )
        reason = _OWNED.get(key)
        if reason is None and key.startswith(_OWNED_PREFIX):
            reason = "RayDP's placement is that of the job's slots"
        if reason is not None:
            raise ConfigurationError(f"{key} cannot be set for a Spark stage: {reason}")


def _class_path(spark: str, user: Mapping[str, str]) -> str:
    """Return the driver's class path; the user's archives come last, as in Spark."""
    extra = [
        *user.get("spark.driver.extraClassPath", "").split(":"),
        *(jar for jar in user.get("spark.jars", "").split(",") if "://" not in jar),
    ]
    return ":".join([spark, *(entry.strip() for entry in extra if entry.strip())])


def _driver_command(
    stage: SparkStageDescriptor,
    ray: RayContext,
    user: Mapping[str, str],
    class_path: str,
    host_options: tuple[str, ...],
) -> tuple[str, ...]:
    return (
        *MODULE_OPTIONS,
        f"-Xmx{_spark_size(user.get('spark.driver.memory', '1g'))}",
        *host_options,
        f"-Djava.io.tmpdir={ray.session_directory}/{stage_name(stage.job_id, stage.attempt_name)}",
        *marker_options(stage.job_id, stage.attempt_name),
        *user.get("spark.driver.extraJavaOptions", "").split(),
        "-cp",
        class_path,
        "org.apache.spark.api.python.PythonGatewayServer",
    )


def _spark_size(text: str) -> str:
    """Return a size in the form of ``-Xmx``; a size without a unit is in MiB, as in Spark."""
    return f"{text.strip()}m" if text.strip().isdigit() else text.strip()
