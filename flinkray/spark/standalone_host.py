"""Implements the host of executors with Spark's standalone master.

See docs/design/0060-spark-hosts.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from flinkray.core.errors import ConfigurationError
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo
from flinkray.spark.environment import JAVA_HOME_OPTION, SparkEnvironment
from flinkray.spark.executor_memory import MIB, split_memory
from flinkray.spark.executors import ExecutorDesk
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot, SparkStageDescriptor
from flinkray.spark.host import HostProperties, SparkHost
from flinkray.spark.processes import marker_environment, stage_name
from flinkray.spark.ray_cluster import RayContext
from flinkray.spark.stage_properties import (
    executor_cores,
    executor_java_options,
    user_properties,
)

EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"
"""Variable in which Spark looks for the secret first; everybody could read a command line."""

_OWNED = ("spark.authenticate", "spark.authenticate.secret", "spark.cores.max")
_EXECUTOR_VARIABLES = "spark.executorEnv."


class StandaloneHost(SparkHost):
    """Provides executors with a Spark master in the driver's JVM. The master has no workers: each
    TaskExecutor starts an executor's JVM as its child and watches it. So the master decides nothing
    about placement; the job's slots do."""

    loss = "Spark's standalone master was lost"

    def __init__(
        self,
        stage: SparkStageDescriptor,
        environment: SparkEnvironment,
        ray: RayContext,
        desk: ExecutorDesk,
    ) -> None:
        self._stage = stage
        self._ray = ray
        self._desk = desk
        self._secret = secrets.token_hex(32)
        self.properties = standalone_properties(stage, environment, self._secret)

    def start(self, gateway: Any, timed: Callable[[str, Callable[[], Any]], Any]) -> str:
        def master() -> int:
            jvm = gateway.jvm
            configuration = jvm.org.apache.spark.SparkConf(False)
            for key, value in {
                **_authentication(self._secret),
                "spark.master.rest.enabled": "false",
                "spark.ui.killEnabled": "false",
            }.items():
                configuration.set(key, value)
            start = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint
            return int(start(self._ray.node_ip, 0, 0, configuration)._1().address().port())

        return f"spark://{self._ray.node_ip}:{timed('master', master)}"

    def opened(self, java_context: Any) -> None:
        port = java_context.conf().get("spark.driver.port")
        url = f"spark://CoarseGrainedScheduler@{self._ray.node_ip}:{port}"
        application_id = str(java_context.applicationId())

        def launch(executor_id: str, slot: ExecutorSlot) -> ExecutorLaunch:
            return executor_launch(
                self._stage, url, application_id, self._secret, executor_id, slot
            )

        self._desk.open(launch)

    def executors(self, active: Iterable[str]) -> tuple[SparkExecutorInfo, ...]:
        return self._desk.executors(active)

    def missed(self) -> str | None:
        return None  # the desk fails the stage itself

    def is_lost(self) -> bool:
        return False  # the master ends only with the driver's JVM

    def executor_logs(self, logs_directory: str) -> str:
        name = stage_name(self._stage.job_id, self._stage.attempt_name)
        return f"flinkray-{name}-executor-* in {logs_directory}"

    def stop(self) -> None:
        """Do nothing: the master ends with the driver's JVM."""

    def await_end(self) -> None:
        """Make the desk refuse launches if it is not open yet, and return at once. The executors
        end with their driver, or are ended by their TaskExecutors."""
        self._desk.close()


def standalone_properties(
    stage: SparkStageDescriptor, environment: SparkEnvironment, secret: str
) -> HostProperties:
    """Return the properties of a stage's JVMs on the standalone host.

    Raises:
        ConfigurationError: the user set a property that this host decides.
    """
    for key in _OWNED:
        if key in stage.configuration:
            raise ConfigurationError(
                f"{key} cannot be set for a Spark stage on the standalone host: each attempt of a "
                "stage has a secret of its own, and the cores of the job's slots"
            )
    return HostProperties(
        class_path=environment.class_path,
        spark={
            **_authentication(secret),
            "spark.cores.max": str(stage.parallelism * executor_cores(stage)),
            # A worker would report to the driver how an executor ended. Here the driver learns only
            # that the connection has ended.
            "spark.standalone.executorRemoveDelayOnDisconnection": "0s",
        },
        driver_options=(environment.class_data_option,),
        # Addresses of the web pages of the master and of the application, if it has one.
        driver_environment={"SPARK_LOCAL_IP": "127.0.0.1"},
    )


def executor_launch(
    stage: SparkStageDescriptor,
    driver_url: str,
    application_id: str,
    secret: str,
    executor_id: str,
    slot: ExecutorSlot,
) -> ExecutorLaunch:
    """Create the launch of a stage's executor in a slot."""
    user = user_properties(stage)
    heap, _ = split_memory(stage.slot_profile, user.get("spark.executor.memoryOverhead"))
    variables = {
        key.removeprefix(_EXECUTOR_VARIABLES): value
        for key, value in user.items()
        if key.startswith(_EXECUTOR_VARIABLES)
    }
    class_path = user.get("spark.executor.extraClassPath", "").split(":")
    return ExecutorLaunch(
        executor_id=executor_id,
        stage_name=stage_name(stage.job_id, stage.attempt_name),
        java_home=stage.configuration.get(JAVA_HOME_OPTION),
        java_options=(
            *executor_java_options(stage),
            f"-Xmx{heap // MIB}m",
            "-Dspark.authenticate=true",
        ),
        class_path=tuple(entry.strip() for entry in class_path if entry.strip()),
        arguments=(
            EXECUTOR_CLASS,
            *("--driver-url", driver_url),
            *("--executor-id", executor_id),
            *("--hostname", slot.node_ip),
            *("--bind-address", slot.node_ip),
            *("--cores", str(executor_cores(stage))),
            *("--app-id", application_id),
            *("--resourceProfileId", "0"),
        ),
        environment={
            **variables,
            **marker_environment(stage.job_id, stage.attempt_name),
            _SECRET_VARIABLE: secret,
        },
    )


def _authentication(secret: str) -> dict[str, str]:
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret}
