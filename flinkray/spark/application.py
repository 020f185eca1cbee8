"""Runs the driver's side of a Spark application in this process: its JVM and its session.

The executors run elsewhere, provided by a host.

See docs/design/0005-spark-hosting.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flinkray.core.private_files import create_folders
from flinkray.spark.environment import SparkEnvironment
from flinkray.spark.gateway import SparkStageDescriptor
from flinkray.spark.host import SparkHost
from flinkray.spark.jvm import DriverJvm, SparkStartError, quiet_gateway_logging
from flinkray.spark.processes import (
    end_leftovers,
    marker_environment,
    remove_scratch,
    stage_name,
)
from flinkray.spark.progress import ExecutorView, StatusStore
from flinkray.spark.ray_cluster import RayContext
from flinkray.spark.stage_properties import StageProperties, stage_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkApplication:
    """Runs the Spark application of one stage attempt: its JVM, its session and its executors. Call
    :meth:`launch`, then :meth:`open`, use the session, and call :meth:`close`. Methods block;
    :meth:`close` may be called at any time, also from another thread."""

    def __init__(
        self,
        stage: SparkStageDescriptor,
        ray: RayContext,
        properties: StageProperties,
        host: SparkHost,
        jvm: DriverJvm,
    ) -> None:
        self._stage = stage
        self._ray = ray
        self._properties = properties
        self.host = host
        self.jvm = jvm
        self._gateway: Any = None
        self._java_context: Any = None
        """SparkContext of the JVM: PySpark drops its own reference when the session stops."""
        self.session: SparkSession | None = None
        self.timings: dict[str, float] = {}
        """Duration of each step of the start, in seconds."""

    @classmethod
    def launch(
        cls,
        stage: SparkStageDescriptor,
        environment: SparkEnvironment,
        ray: RayContext,
        python: str,
        host: SparkHost,
    ) -> SparkApplication:
        """Start the driver's JVM, and return the application at once, before the JVM answers.
        Raises ConfigurationError: the user has set a property that the job decides, or the slot is
        too small for an executor. SparkStartError: Java cannot be executed."""
        properties = stage_properties(stage, ray, python, host.properties)
        name = stage_name(stage.job_id, stage.attempt_name)
        create_folders(Path(ray.session_directory, name))
        variables = {
            "SPARK_HOME": str(environment.spark_home),
            "JAVA_HOME": str(environment.java.home),
            "PYSPARK_PYTHON": properties.python,
            "PYSPARK_DRIVER_PYTHON": properties.python,
        }
        os.environ.update(variables)  # PySpark in this process reads them
        for name_of_other_spark in ("SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "PYSPARK_SUBMIT_ARGS"):
            os.environ.pop(name_of_other_spark, None)
        quiet_gateway_logging()
        jvm = DriverJvm(
            (str(environment.java.executable), *properties.driver_command),
            {
                **os.environ,
                **host.properties.driver_environment,
                **marker_environment(stage.job_id, stage.attempt_name),
            },
            Path(ray.logs_directory, f"flinkray-{name}.log"),
        )
        return cls(stage, ray, properties, host, jvm)

    def open(self) -> SparkSession:
        """Connect to the JVM, and open the session with the master that the host starts. The
        executors register later. Raises SparkStartError: the JVM ended, or Ray or Spark refused;
        the text has their reason."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        try:
            self._gateway = self._timed("jvm", self.jvm.connect)
            master_url = self.host.start(self._gateway, self._timed)
            session: SparkSession = self._timed("session", lambda: self._open_session(master_url))
            self._java_context = session.sparkContext._jsc.sc()
            self.session = session
            self.host.opened(self._java_context)
        except (Py4JError, OSError) as error:
            if not self.jvm.is_alive:
                raise SparkStartError(
                    f"the driver's JVM ended during start-up: {self.jvm.describe_end()}"
                ) from error
            raise SparkStartError(
                f"Spark did not start: {error}; log: {self.jvm.log_file}"
            ) from error
        return session

    def is_context_stopped(self) -> bool:
        """Return whether Spark has shut down: it does when its host is lost, or when the user's
        function has stopped its session."""
        from py4j.protocol import Py4JError

        assert self._java_context is not None
        try:
            return bool(self._java_context.isStopped())
        except (Py4JError, OSError):
            return True

    def executor_view(self) -> ExecutorView:
        assert self._java_context is not None
        return ExecutorView(StatusStore(self._gateway, self._java_context), self.host)

    def close(self, grace: float = 4.0) -> None:
        """Cancel Spark's jobs, stop the session, end the JVM and the executors, and remove their
        files. Spark gets *grace* seconds to stop by itself, then its JVM is killed. Returns when
        the executors have ended, within a bounded time."""
        if self.session is not None and self.jvm.is_alive:
            stopper = threading.Thread(target=self._stop_session, name="spark-stop", daemon=True)
            stopper.start()
            stopper.join(grace)
        self.jvm.end()
        self.host.await_end()
        end_leftovers(self._stage.job_id, self._stage.attempt_name)
        remove_scratch(self._ray.session_directory, self._stage.job_id, self._stage.attempt_name)

    def _stop_session(self) -> None:
        from py4j.protocol import Py4JError

        assert self.session is not None
        try:
            if not self.is_context_stopped():
                self._java_context.cancelAllJobs()
                self.session.stop()
            self.host.stop()
        except (Py4JError, OSError):
            return  # the JVM is ending; close() makes sure of its end

    def _open_session(self, master_url: str) -> SparkSession:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master_url)
        for key, value in self._properties.spark.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    def _timed(self, step: str, function: Callable[[], Any]) -> Any:
        begin = time.monotonic()
        result = function()
        self.timings[step] = time.monotonic() - begin
        return result
