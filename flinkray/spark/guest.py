"""Connects this process to the JVM of a Spark session that jobs share, as a guest.

The function gets its own session (``newSession``): docs/design/0069-shared-spark-sessions.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress
from flinkray.spark.gateway import SparkSessionAccess, SparkStageDescriptor
from flinkray.spark.jvm import SparkStartError, quiet_gateway_logging
from flinkray.spark.progress import StatusStore, progress_of_stages
from flinkray.spark.session_requests import check_session, thread_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDING = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class GuestApplication:
    """Runs a stage in a shared session, as a guest; the counterpart of
    :class:`~flinkray.spark.application.SparkApplication`, which has executors of its own. One per
    process. Methods block."""

    def __init__(
        self,
        stage: SparkStageDescriptor,
        access: SparkSessionAccess,
        place: SparkExecutorInfo,
        python: str,
    ) -> None:
        """Prepare to run *stage* as a guest of the session to which *access* leads. *place*:
        description of this process as the only executor of the stage. *python*: interpreter for the
        Python workers, unless the stage sets one."""
        assert stage.session is not None
        self._stage = stage
        self._access = access
        self._place = place
        self._python = stage.configuration.get("spark.pyspark.python", python)
        self._java_context: Any = None
        self._gateway: Any = None
        self.jvm = JvmOfSession(stage.session.name, access)
        self.host = SessionAsHost(stage.session.name, self)
        self.session: SparkSession | None = None
        self.timings: dict[str, float] = {}

    def open(self) -> SparkSession:
        """Connect to the JVM, and open a session for the function.

        Raises:
            SparkSessionMismatchError: the session differs from the requested one.
            SparkStartError: the session's JVM does not answer.
        """
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        begin = time.monotonic()
        try:
            session = self._connect()
            to_set = check_session(self._stage, self._access, session.conf.isModifiable)
            for key, value in to_set.items():
                if value is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, value)
        except (Py4JError, OSError) as error:
            raise SparkStartError(
                f"the Spark session {self.jvm.name!r} does not answer: {error}; "
                f"log: {self.jvm.log_file}"
            ) from error
        self.session = session
        self.timings["session"] = time.monotonic() - begin
        return session

    def _connect(self) -> SparkSession:
        os.environ["PYSPARK_GATEWAY_PORT"] = str(self._access.port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = self._access.secret
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = self._python
        quiet_gateway_logging()
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        first = gateway.jvm.SparkSession.getDefaultSession().get()
        java_context = gateway.jvm.JavaSparkContext.fromSparkContext(first.sparkContext())
        self._gateway, self._java_context = gateway, java_context.sc()
        _tag_all_threads(gateway, self._java_context, self._access.tag)
        context = SparkContext(
            conf=SparkConf(_jconf=java_context.getConf()), gateway=gateway, jsc=java_context
        )
        context.stop = lambda: _leave(context)  # type: ignore[method-assign]
        SparkSession.stop = _stop_session  # type: ignore[method-assign,assignment]
        # A process's first session becomes the JVM's default; the JVM has its default already.
        session = SparkSession(context, first).newSession()
        SparkSession._instantiatedSession = SparkSession._activeSession = session
        gateway.jvm.SparkSession.setActiveSession(session._jsparkSession)
        return session

    def is_context_stopped(self) -> bool:
        """Return whether the session has been stopped, for all of its guests."""
        from py4j.protocol import Py4JError

        try:
            return bool(self._java_context.isStopped())
        except (Py4JError, OSError):
            return True

    def executor_view(self) -> GuestView:
        assert self._java_context is not None
        store = StatusStore(self._gateway, self._java_context)
        return GuestView(store, self._access.tag, self._place)

    def close(self) -> None:
        """Do nothing: the session cancels running work when this process detaches from it."""


class JvmOfSession:
    """Observes the JVM of a shared session's driver, from another process on its node."""

    def __init__(self, name: str, access: SparkSessionAccess) -> None:
        self.name = name
        self.pid = access.jvm_pid
        self.log_file = Path(access.log_file)

    @property
    def is_alive(self) -> bool:
        try:
            return psutil.Process(self.pid).status() not in _ENDING
        except psutil.NoSuchProcess:
            return False

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Do nothing: the driver watches the process of the session, which ends with the JVM."""

    def wait_briefly(self, timeout: float = 0.5) -> None:
        """Wait until the JVM has ended, at most *timeout* seconds. Called after a broken
        connection, whose cause may be the end of the JVM."""
        deadline = time.monotonic() + timeout
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)

    def describe_end(self) -> str:
        return f"it was that of the Spark session {self.name!r}; log: {self.log_file}"


class SessionAsHost:
    """The host of executors of a stage that is a guest. It starts and ends nothing, because the
    session has the executors."""

    def __init__(self, name: str, application: GuestApplication) -> None:
        self.loss = f"the Spark session {name!r} was stopped"
        self._application = application

    def is_lost(self) -> bool:
        application = self._application
        return application.session is not None and application.is_context_stopped()

    def executor_logs(self, logs_directory: str) -> str:
        return f"those of its Spark session, in {logs_directory}"


class GuestView:
    """Observes the Spark jobs of one guest of a shared session; a replacement for ExecutorView."""

    def __init__(self, store: StatusStore, tag: str, place: SparkExecutorInfo) -> None:
        self._store = store
        self._tag = tag
        self._place = place
        self._jobs = GuestJobs(store.job)

    def is_stopped(self) -> bool:
        return self._store.is_stopped()

    def missed(self) -> str | None:
        return None  # the session's stage watches its executors

    def look(self) -> tuple[tuple[SparkExecutorInfo, ...], SparkProgress]:
        """Return the registered executors (this process, as the only one) and the progress of the
        guest's jobs."""
        return (self._place,), self._progress()

    def final_progress(self) -> SparkProgress:
        """Wait until Spark has processed all events so far, and return the guest's progress."""
        self._store.wait_until_booked()
        return self._progress()

    def _progress(self) -> SparkProgress:
        return self._jobs.look(self._store.jobs_tagged(self._tag), self._store.active_stages())


class GuestJobs:
    """Adds up the progress of one guest's Spark jobs. Each job is fetched until it has ended; it
    still counts when Spark has forgotten it. Jobs of other guests are not fetched.

    Args:
        fetch: returns a job by its id; None: Spark has forgotten the job.
    """

    def __init__(self, fetch: Callable[[int], Mapping[str, Any] | None]) -> None:
        self._fetch = fetch
        self._ended: set[int] = set()
        """Ids of ended jobs that Spark still remembers."""
        self._total = SparkProgress()
        """Total progress of all jobs that have ended."""

    def look(self, job_ids: Iterable[int], stages: Iterable[Mapping[str, Any]]) -> SparkProgress:
        """Return the progress of the guest's jobs.

        Args:
            job_ids: ids of the guest's jobs that Spark remembers.
            stages: the running stages of all guests.
        """
        known = set(job_ids)
        self._ended &= known
        own_stages: set[int] = set()
        now = self._total
        for job_id in sorted(known - self._ended):
            job = self._fetch(job_id)
            if job is None:
                continue
            now = _with_job(now, job)
            if job["status"] in _ENDED:
                self._ended.add(job_id)
                self._total = _with_job(self._total, job)
            else:
                own_stages.update(job["stageIds"])
        mine = (stage for stage in stages if stage["stageId"] in own_stages)
        return replace(now, active_stages=progress_of_stages(mine))


_ENDED = ("SUCCEEDED", "FAILED")
"""Final values of Spark's JobExecutionStatus."""


def _with_job(total: SparkProgress, job: Mapping[str, Any]) -> SparkProgress:
    return SparkProgress(
        completed_stages=total.completed_stages + job["numCompletedStages"],
        completed_tasks=total.completed_tasks + job["numCompletedTasks"],
        failed_tasks=total.failed_tasks + job["numFailedTasks"],
    )


def _tag_all_threads(gateway: Any, java_context: Any, tag: str) -> None:
    """Make the Spark jobs of all threads of this process carry the guest's tag. Each thread has its
    own connection to a thread of the JVM; the jobs carry the tags of this JVM thread. The thread is
    named after the tag, so that the session recognises it."""
    client = gateway._gateway_client
    connect = client._create_new_connection

    def mark() -> None:
        gateway.jvm.java.lang.Thread.currentThread().setName(thread_name(tag))
        java_context.addJobTag(tag)

    def connect_and_mark() -> Any:
        connection = connect()
        mark()
        return connection

    client._create_new_connection = connect_and_mark
    mark()


def _leave(context: Any) -> None:
    """Disconnect this process from the SparkContext as ``SparkContext.stop`` does in Python, but
    let the JVM's context run on for other guests."""
    from pyspark import SparkContext

    if context._accumulatorServer is not None:
        context._accumulatorServer.shutdown()
        context._accumulatorServer = None
    context._jsc = None
    SparkContext._active_spark_context = None


def _stop_session(session: Any) -> None:
    """Stop the Python session as ``SparkSession.stop`` does, but keep the JVM's default session for
    other guests."""
    from pyspark.sql import SparkSession

    session.sparkContext.stop()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
