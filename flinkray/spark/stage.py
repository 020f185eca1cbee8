"""Runs one attempt of one Spark stage, from the check of the machine to its only outcome.

This is the whole driver without its RPC endpoint, so that it can be run and tested by itself.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from flinkray.core.errors import ConfigurationError, FlinkRayError
from flinkray.scheduler.job.coordinator_events import CoordinatorFailure
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.spark.application import SparkApplication
from flinkray.spark.environment import HOST_OPTION, JAVA_HOME_OPTION, RAYDP, check_environment
from flinkray.spark.epochs import EpochHandOver, EpochTaker, WritesItself, handed_over_before
from flinkray.spark.executors import ExecutorDesk
from flinkray.spark.gateway import SparkSessionAccess, SparkStageDescriptor
from flinkray.spark.guest import GuestApplication, GuestView
from flinkray.spark.host import SparkHost
from flinkray.spark.inputs import missing_of, parquet_reader, read_input
from flinkray.spark.micro_batches import (
    EpochsToBatches,
    StreamedFrame,
    gone_through_before,
    publish_stream,
)
from flinkray.spark.progress import ExecutorView
from flinkray.spark.publishing import finished_before, publish
from flinkray.spark.ray_cluster import RayContext
from flinkray.spark.ray_java import check_ray_starts_java
from flinkray.spark.raydp_host import RaydpHost
from flinkray.spark.repeatable_plans import division_before, fixed_division
from flinkray.spark.result import (
    NO_RESULT,
    input_failure,
    store_result,
    system_failure,
    user_failure,
)
from flinkray.spark.session_guests import HeldSparkSession, SessionGuests
from flinkray.spark.session_requests import HeldSession
from flinkray.spark.stage_code import SparkFunction
from flinkray.spark.standalone_host import StandaloneHost
from flinkray.user_code import UserCodeError, load_function

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_START_LOOK_INTERVAL = 0.25
_RUN_LOOK_INTERVAL = 0.5
"""Seconds between two checks of Spark's state.

The first value applies until all executors have been registered once, the second from then on.
"""


Application = SparkApplication | GuestApplication
"""The application in which a stage runs: its own, or that of a shared session."""


class StageListener(Protocol):
    """Receives the events of a stage, from several threads, but never from two at once. The last
    call is either ``finished`` or ``failed``. There is no call after :meth:`SparkStage.stop`."""

    def executors_changed(self, registered: tuple[SparkExecutorInfo, ...]) -> None: ...

    def progress(self, progress: SparkProgress) -> None: ...

    def finished(self, result: SparkResult) -> None: ...

    def failed(self, failure: CoordinatorFailure) -> None: ...


class StageRun(Protocol):
    """Interface to a stage, as its driver needs it."""

    @property
    def desk(self) -> ExecutorDesk:
        """The object from which TaskExecutors get the executors to start in their slots."""

    @property
    def guests(self) -> SessionGuests:
        """The guests of the shared session that this stage keeps open. Other stages have an object
        that no guest can attach to."""

    def session_lost(self, reason: str) -> None:
        """Fail the stage, because the shared session in which it is a guest has ended; *reason*
        says why."""

    def start(self) -> None:
        """Start the stage; returns at once."""

    def stop(self) -> None:
        """Stop the stage; blocks until all its processes have ended. Can be called again."""


class SparkStage:
    """Runs a stage in threads of its own. :meth:`start` returns at once, :meth:`stop` blocks. One
    per process: PySpark cannot be used again in a process whose JVM has ended."""

    def __init__(
        self,
        stage: SparkStageDescriptor,
        code: bytes,
        ray: RayContext,
        listener: StageListener,
        executor_timeout: float = 180.0,
        access: SparkSessionAccess | None = None,
        place: SparkExecutorInfo | None = None,
    ) -> None:
        """Prepare a stage.

        Args:
            code: the user's function, pickled.
            access: access to the session in which the stage is a guest; None: it is no guest.
            place: description of this process as an executor, if it runs in the stage's slot.
            executor_timeout: seconds that each step of the start of Spark may take, and then until
                all executors must be registered.
        """
        self._stage = stage
        self._code = code
        self._ray = ray
        self._listener = listener
        self._executor_timeout = executor_timeout
        self._lock = threading.RLock()
        self._over = False
        self._stopping = threading.Event()
        self._are_complete = False
        self._registered: tuple[SparkExecutorInfo, ...] = ()
        self._application: Application | None = None
        self._access = access
        self._place = place
        self.guests = SessionGuests(stage.session_idle_timeout)
        self.desk = ExecutorDesk(lambda why: self._fail(system_failure("SparkExecutorLost", why)))
        self._look_lock = threading.Lock()
        """Lock held until an observation is reported.

        Because of the lock no older observation is reported after the last one.
        """
        self.timings: dict[str, float] = {}
        """Duration of each step, in seconds."""

    def start(self) -> None:
        threading.Thread(target=self._run, name="spark-stage", daemon=True).start()

    def stop(self) -> None:
        """End everything that the stage started, in at most 15 s. Can be called at any time, and
        again. User code that ignores the end of its session keeps running in its daemon thread."""
        with self._lock:
            self._over = True
            self._stopping.set()
            application = self._application
        self.desk.close()
        self.guests.close()
        if application is not None:
            application.close()

    # --- the stage's thread -------------------------------------------------------------------

    def _run(self) -> None:
        outcome = _Outcome()
        with outcome:
            self._run_to_the_end()
        if outcome.error is None:
            return
        has_begun = self._application is not None
        if isinstance(outcome.error, FlinkRayError) or not has_begun or not self._is_spark_gone():
            self._fail(_failure_of(outcome.error))
        else:
            self._fail(self._spark_gone(outcome.error))

    def _run_to_the_end(self) -> None:
        published_location = self._stage.published_location
        result = None
        epochs_location, execution = self._stage.epochs_location, self._stage.stream_execution
        if published_location is not None and epochs_location is not None:
            result = gone_through_before(epochs_location, published_location, execution)
        elif published_location is not None:
            result = finished_before(published_location)
        elif epochs_location is not None:
            result = handed_over_before(epochs_location, execution)
        if result is not None:
            self._finish(result)
            return
        application = self._launch()
        if application is None:
            return
        function = load_function(self._code)  # while the JVM starts
        self._watch_start(application)
        session = application.open()
        self.timings.update(application.timings)
        self._watch_executors(application)
        # The function does not wait for all executors: planning and first tasks need only some.
        if not self._stopping.is_set():
            self._run_user_code(function, session)

    def session_lost(self, reason: str) -> None:
        assert self._stage.session is not None
        text = f"the Spark session {self._stage.session.name!r} has ended: {reason}"
        self._fail(system_failure("SparkSessionLost", text))

    def _launch(self) -> Application | None:
        """Start the Spark application, or prepare the guest's. None: the stage was stopped
        before."""
        if self._access is not None:
            return self._begin_as_guest(self._access)
        java_home = self._stage.configuration.get(JAVA_HOME_OPTION)
        host_name = self._stage.configuration.get(HOST_OPTION, RAYDP)
        environment = check_environment(java_home, host=host_name)
        if host_name == RAYDP:
            check_ray_starts_java()
        with self._lock:
            if self._over:
                return None
            host: SparkHost
            if host_name == RAYDP:
                host = RaydpHost(self._stage, environment, self._ray)
            else:
                host = StandaloneHost(self._stage, environment, self._ray, self.desk)
            application = SparkApplication.launch(
                self._stage, environment, self._ray, sys.executable, host
            )
            self._application = application
        application.jvm.on_exit(self._on_jvm_exit)
        return application

    def _begin_as_guest(self, access: SparkSessionAccess) -> GuestApplication | None:
        assert self._place is not None
        with self._lock:
            if self._over:
                return None
            application = GuestApplication(self._stage, access, self._place, sys.executable)
            self._application = application
        return application

    def _executors_missing(self, application: Application) -> CoordinatorFailure:
        missing = sorted(
            set(range(self._stage.parallelism)) - {e.bundle_index for e in self._registered}
        )
        return system_failure(
            "SparkStartError",
            f"the executors of slots {missing} did not register within "
            f"{self._executor_timeout:g} s; their logs are "
            f"{application.host.executor_logs(self._ray.logs_directory)}, "
            f"the driver's is {application.jvm.log_file}",
        )

    def _run_user_code(self, function: SparkFunction, session: SparkSession) -> None:
        outcome = _Outcome()
        epochs_location = self._stage.epochs_location
        hand_over = None
        if epochs_location is not None:
            published = self._stage.published_location
            execution = self._stage.stream_execution
            taker: EpochTaker = WritesItself()
            if published is not None:
                taker = EpochsToBatches(published, execution, self._stopping)
            hand_over = EpochHandOver(epochs_location, execution, taker)
        with outcome:
            self._report_before_stop(session.sparkContext)
            if hand_over is None:
                division = self._divide(session)
                frames = [read_input(session, read) for read in self._stage.inputs]
                result = self._keep(function(session, *frames), division)
            else:
                result = hand_over.run(parquet_reader(session), function, self._stopping)
        if outcome.error is None:
            self._report_final_progress()
            self._finish(result)
        elif self._is_spark_gone():
            # The user's function saw the end of Spark; why Spark ended is the cause to report.
            self._fail(self._spark_gone(outcome.error))
        elif missing := missing_of(self._stage.inputs):
            # also for failures of the function while its executors read
            self._fail(input_failure(outcome.error, missing))
        elif hand_over is not None:
            self._fail(hand_over.failure(outcome.error))
        else:
            self._fail(user_failure(outcome.error))

    def _divide(self, session: SparkSession) -> dict[str, str]:
        """Fix how Spark divides rows among partitions, and return the settings that decide it;
        empty if no stream reads the stage. The user's function runs later and may set something
        else."""
        location = self._stage.published_location
        if location is None:
            return {}
        before = {}
        if self._stage.is_divided_as_before:
            before = division_before(location, self._stopping)
        return fixed_division(session, before)

    def _keep(self, returned: object, division: dict[str, str]) -> SparkResult:
        stage = self._stage
        if isinstance(returned, HeldSession):
            self._hold_session()
            return NO_RESULT
        if isinstance(returned, StreamedFrame):
            assert stage.published_location is not None
            return publish_stream(
                returned,
                stage.published_location,
                stage.stream_execution,
                self._stopping,
                goes_on=stage.begins_from_savepoint,
            )
        if stage.published_location is not None:
            return publish(returned, stage.published_location, stage.attempt_name, division)
        return store_result(returned, stage.result_location, is_read=stage.is_result_read)

    def _hold_session(self) -> None:
        application = self._application
        assert isinstance(application, SparkApplication)
        assert application.session is not None
        held = HeldSparkSession(self._stage, application.session, application.jvm)
        self.guests.hold(held, self._stopping)

    def _is_spark_gone(self) -> bool:
        application = self._application
        if application is None or application.session is None:
            return True
        # A killed JVM closes its sockets before it can be waited for.
        application.jvm.wait_briefly()
        if not application.jvm.is_alive:
            return True
        return application.is_context_stopped() and application.host.is_lost()

    def _spark_gone(self, error: BaseException | None) -> CoordinatorFailure:
        assert self._application is not None
        jvm = self._application.jvm
        if not jvm.is_alive:
            text = f"the Spark driver's JVM (pid {jvm.pid}) ended: {jvm.describe_end()}"
            return system_failure("SparkDriverJvmLost", text)
        loss = self._application.host.loss
        return system_failure("SparkHostLost", f"{loss}; log: {jvm.log_file}", error)

    # --- the watching threads -----------------------------------------------------------------

    def _on_jvm_exit(self) -> None:
        if not self._stopping.is_set():
            self._fail(self._spark_gone(None))

    def _watch_start(self, application: Application) -> None:
        """Start a thread that fails the stage if the start of Spark hangs: Spark itself waits
        forever for its app master, even for a dead one."""
        threading.Thread(
            target=self._look_until_open, args=(application,), name="spark-start", daemon=True
        ).start()

    def _look_until_open(self, application: Application) -> None:
        steps, since = 0, time.monotonic()
        while application.session is None and not self._stopping.wait(_START_LOOK_INTERVAL):
            if application.host.is_lost():
                self._fail(self._spark_gone(None))
            elif len(application.timings) > steps:
                steps, since = len(application.timings), time.monotonic()
            elif time.monotonic() - since > self._executor_timeout:
                self._fail(self._start_hangs(application))

    def _start_hangs(self, application: Application) -> CoordinatorFailure:
        done = ", ".join(application.timings) or "nothing"
        return system_failure(
            "SparkStartError",
            f"Spark does not start: for {self._executor_timeout:g} s no step has ended; done: "
            f"{done}; log: {application.jvm.log_file}",
        )

    def _watch_executors(self, application: Application) -> None:
        view = application.executor_view()
        threading.Thread(
            target=self._look_repeatedly,
            args=(application, view),
            name="spark-executors",
            daemon=True,
        ).start()

    def _look_repeatedly(
        self,
        application: Application,
        view: ExecutorView | GuestView,
    ) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        reported = SparkProgress()
        opened = time.monotonic()
        while not self._stopping.wait(self._look_interval):
            try:
                if view.is_stopped():
                    if application.host.is_lost():
                        self._fail(self._spark_gone(None))
                    continue  # else the function is stopping its session
                with self._look_lock:
                    registered, progress = view.look()
                    self._report_executors(registered, time.monotonic() - opened)
                    if progress != reported:
                        reported = progress
                        self._tell(partial(self._listener.progress, progress))
                why = view.missed() if len(registered) < self._stage.parallelism else None
                if why is not None:
                    self._fail(system_failure("SparkExecutorLost", why))
                    return
            except (Py4JError, OSError) as error:
                application.jvm.wait_briefly()
                if application.jvm.is_alive and self._is_stopped_by_function(application):
                    continue
                if application.jvm.is_alive:  # the app master did not answer
                    self._fail(self._spark_gone(error))
                return  # else the JVM has ended; its watcher reports that
            if not self._are_complete and time.monotonic() - opened > self._executor_timeout:
                self._fail(self._executors_missing(application))
                return

    def _is_stopped_by_function(self, application: Application) -> bool:
        return application.is_context_stopped() and not application.host.is_lost()

    @property
    def _look_interval(self) -> float:
        return _RUN_LOOK_INTERVAL if self._are_complete else _START_LOOK_INTERVAL

    def _report_before_stop(self, context: SparkContext) -> None:
        """Replace the context's method ``stop``, so that a call by the user's function first
        reports the final progress."""
        stop = context.stop

        def report_and_stop() -> None:
            if not self._stopping.is_set():
                self._report_final_progress()
            stop()

        context.stop = report_and_stop  # type: ignore[method-assign]

    def _report_final_progress(self) -> None:
        """Report the final progress. If Spark does not answer, the last report stays."""
        from py4j.protocol import Py4JError

        assert self._application is not None
        try:
            with self._look_lock:
                progress = self._application.executor_view().final_progress()
                self._tell(partial(self._listener.progress, progress))
        except (Py4JError, OSError) as error:
            logger.info("no final progress of %s: %s", self._stage.job_text, error)

    def _report_executors(
        self, registered: tuple[SparkExecutorInfo, ...], seconds_since_open: float
    ) -> None:
        if registered == self._registered:
            return
        self._registered = registered
        self._tell(lambda: self._listener.executors_changed(registered))
        if len(registered) == self._stage.parallelism and not self._are_complete:
            self._are_complete = True
            self.timings["executors"] = seconds_since_open

    # --- one outcome --------------------------------------------------------------------------

    def _finish(self, result: SparkResult) -> None:
        self._end(lambda: self._listener.finished(result))

    def _fail(self, failure: CoordinatorFailure) -> None:
        def report() -> None:
            logger.warning("Spark stage of %s failed: %s", self._stage.job_text, failure.text)
            self._listener.failed(failure)

        self._end(report)

    def _end(self, report: Callable[[], None]) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
            self._stopping.set()
            report()

    def _tell(self, report: Callable[[], None]) -> None:
        with self._lock:
            if not self._over:
                report()


class _Outcome:
    """Context manager that catches any error of its block, also ``SystemExit``, and keeps it in
    ``error``.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.error = error
        return True


def _failure_of(error: BaseException) -> CoordinatorFailure:
    """Return the failure to report for an error before the user's function ran."""
    if isinstance(error, (UserCodeError, ConfigurationError)):
        return user_failure(error)
    kind = type(error).__name__
    text = str(error) if isinstance(error, FlinkRayError) else f"{kind}: {error}"
    return system_failure(kind, text, error)
