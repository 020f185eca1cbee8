"""One Spark application on Ray, hosted by this process: driver JVM, app master, session.

RayDP's ``init_spark`` starts a Python master actor, a gateway JVM and then the driver's JVM.  Here
the driver's JVM is itself the Ray driver: it creates RayDP's app master (an actor whose options
decide in which bundles executors start) and opens the session at it.  See
docs/design/0005-spark-hosting.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flinkray.spark.environment import SparkEnvironment
from flinkray.spark.executors import ExecutorView
from flinkray.spark.gateway import SparkStageDescriptor
from flinkray.spark.jvm import DriverJvm, SparkStartError, quiet_gateway_logging
from flinkray.spark.processes import (
    end_leftovers,
    marker_environment,
    note_application,
    remove_scratch,
    stage_name,
)
from flinkray.spark.ray_cluster import RayContext, ray_actors, ray_executor_actors
from flinkray.spark.session import StageProperties, stage_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APP_MASTER = "app-master"
_EXECUTORS_END = 5.0
_RESOURCE_PREFIX = "spark.ray.raydp_spark_master.actor.resource."


class SparkApplication:
    """Life: :meth:`launch` → :meth:`open` → use → :meth:`close`, which may come at any time.

    Methods block; ``open`` and ``close`` may run in different threads.
    """

    def __init__(
        self,
        stage: SparkStageDescriptor,
        ray: RayContext,
        properties: StageProperties,
        jvm: DriverJvm,
    ) -> None:
        self._stage = stage
        self._ray = ray
        self._properties = properties
        self.jvm = jvm
        self.namespace = f"flinkray-{stage_name(stage.job_id, stage.attempt_name)}"
        self._gateway: Any = None
        self._app_master: Any = None
        self._java_context: Any = None
        """Kept, because PySpark drops its own reference when the function stops the session."""
        self.session: SparkSession | None = None
        self.timings: dict[str, float] = {}
        """Seconds that each step of the start took."""

    @classmethod
    def launch(
        cls,
        stage: SparkStageDescriptor,
        environment: SparkEnvironment,
        ray: RayContext,
        python: str,
    ) -> SparkApplication:
        """Start the driver's JVM; returns at once.

        Raises:
            ConfigurationError: see :func:`stage_properties`.
            SparkStartError: Java cannot be executed.
        """
        properties = stage_properties(stage, environment, ray, python)
        name = stage_name(stage.job_id, stage.attempt_name)
        Path(ray.session_directory, name).mkdir(parents=True, exist_ok=True)
        variables = {
            "SPARK_HOME": str(environment.spark_home),
            "JAVA_HOME": str(environment.java.home),
            "PYSPARK_PYTHON": properties.python,
            "PYSPARK_DRIVER_PYTHON": properties.python,
        }
        os.environ.update(variables)  # read by PySpark in this process
        for name_of_other_spark in ("SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "PYSPARK_SUBMIT_ARGS"):
            os.environ.pop(name_of_other_spark, None)
        quiet_gateway_logging()
        jvm = DriverJvm.launch(
            (str(environment.java.executable), *properties.driver_command),
            {**os.environ, **marker_environment(stage.job_id, stage.attempt_name)},
            Path(ray.logs_directory, f"flinkray-{name}.log"),
        )
        return cls(stage, ray, properties, jvm)

    def open(self) -> SparkSession:
        """Connect to Ray, create the app master, open the session; executors follow by themselves.

        Raises:
            SparkStartError: the JVM ended, or Ray or Spark refused; the text has their reason.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            self._gateway = self._timed("jvm", self.jvm.connect)
            self._timed("ray", self._gateway.jvm.io.ray.api.Ray.init)
            master_url = self._timed("app_master", self._create_app_master)
            session: SparkSession = self._timed("session", self._open_session, master_url)
            self._java_context = session.sparkContext._jsc.sc()
            self.session = session
            note_application(
                self._ray.session_directory,
                self._stage.job_id,
                self._stage.attempt_name,
                self._ask_application_id(),
            )
        except (Py4JError, OSError) as error:
            if not self.jvm.is_alive:
                raise SparkStartError(
                    f"the driver's JVM ended during start-up: {self.jvm.describe_end()}"
                ) from error
            raise SparkStartError(
                f"Spark did not start: {error}; log: {self.jvm.log_file}"
            ) from error
        return session

    def is_app_master_lost(self) -> bool:
        master = ray_actors(self.namespace).get(_APP_MASTER)
        return master is not None and master.is_dead

    def is_context_stopped(self) -> bool:
        """Whether Spark has shut itself down, as it does when the app master dies, or the function
        has stopped its session."""
        from py4j.protocol import Py4JError

        assert self._java_context is not None
        try:
            return bool(self._java_context.isStopped())
        except (Py4JError, OSError):
            return True

    def executor_view(self) -> ExecutorView:
        assert self._java_context is not None
        return ExecutorView(
            self._gateway, self._java_context, self._restarted_executors, self.namespace
        )

    def close(self, grace: float = 4.0) -> None:
        """Cancel Spark's jobs, stop the session, end the JVM and what is left, remove its files.

        Bounded: Spark gets *grace* seconds to stop by itself, then its JVM is killed; Ray ends app
        master and executors when the JVM is gone.  Returns when Ray has seen them end.
        """
        if self.session is not None and self.jvm.is_alive:
            stopper = threading.Thread(target=self._stop_session, name="spark-stop", daemon=True)
            stopper.start()
            stopper.join(grace)
        self.jvm.end()
        self._await_executors_end()
        end_leftovers(self._stage.job_id, self._stage.attempt_name)
        remove_scratch(self._ray.session_directory, self._stage.job_id, self._stage.attempt_name)

    def _await_executors_end(self) -> None:
        """The group may then be removed: none of its bundles is in use by a starting executor."""
        deadline = time.monotonic() + _EXECUTORS_END
        while time.monotonic() < deadline:
            if all(actor.is_dead for actor in ray_executor_actors(self.namespace).values()):
                return
            time.sleep(0.05)

    def _stop_session(self) -> None:
        from py4j.protocol import Py4JError

        assert self.session is not None
        try:
            if not self.is_context_stopped():
                self._java_context.cancelAllJobs()
                self.session.stop()
            self._utilities.stopAppMaster(self._app_master)
            self._gateway.jvm.io.ray.api.Ray.shutdown()
        except (Py4JError, OSError):
            return  # the JVM is going; that it ends is seen to by close()

    def _create_app_master(self) -> str:
        jvm = self._gateway.jvm
        options = jvm.java.util.ArrayList()
        for option in self._properties.app_master_options:
            options.add(option)
        resources = jvm.java.util.HashMap()
        for name, amount in self._properties.app_master_resources.items():
            resources[_RESOURCE_PREFIX + name] = amount
        class_path = jvm.java.lang.System.getProperty("java.class.path")
        self._app_master = self._utilities.createAppMaster(
            class_path, _APP_MASTER, options, resources
        )
        return str(self._utilities.getMasterUrl(self._app_master))

    def _open_session(self, master_url: str) -> SparkSession:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master_url)
        for key, value in self._properties.spark.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    def _ask_application_id(self) -> str:
        """RayDP's own, which it keeps to itself; SparkContext.applicationId is another."""
        backend = self._java_context.schedulerBackend()
        [field] = [  # Scala's compiler prefixes the name
            field
            for field in backend.getClass().getDeclaredFields()
            if field.getName().endswith("appId")
        ]
        field.setAccessible(True)
        return str(field.get(backend).get())

    def _restarted_executors(self) -> Mapping[str, str]:
        return dict(self._utilities.getRestartedExecutors(self._app_master))

    @property
    def _utilities(self) -> Any:
        return self._gateway.jvm.org.apache.spark.deploy.raydp.RayAppMasterUtils

    def _timed(self, step: str, function: Any, *arguments: Any) -> Any:
        begin = time.monotonic()
        result = function(*arguments)
        self.timings[step] = time.monotonic() - begin
        return result
