"""The driver's record of the executors that TaskExecutors start for it, from launch to
registration.

:mod:`flinkray.spark.executor_process` starts and watches the processes themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

from flinkray.core.errors import FlinkRayError
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot


class StageEndedError(FlinkRayError):
    """Raised when an executor is to be started for a stage that has ended or is ending."""


@dataclass(slots=True)
class _Executor:
    slot: ExecutorSlot
    pid: int | None = None
    was_registered: bool = False
    has_ended: bool = False


class ExecutorDesk:
    """The part of a Spark driver from which TaskExecutors learn which executor to start in a slot.
    A TaskExecutor asks for a launch (command line and environment), and reports the start and the
    end of the executor's process. Used from any thread."""

    def __init__(self, on_failed: Callable[[str], None]) -> None:
        """Create a desk that gives no launches before :meth:`open`. *on_failed* is called at most
        once per slot, with a text that says why the slot has no executor and gets none."""
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._executors: dict[str, _Executor] = {}
        self._failures: dict[int, int] = {}
        """Number of consecutive executors that ended before they registered, by subtask."""
        self.application: Future[Callable[[str, ExecutorSlot], ExecutorLaunch]] = Future()
        """Function that makes the launch of an executor, from its id and its slot.

        The future is done when the application takes executors, and fails if it never will.
        """

    def open(self, launch_of: Callable[[str, ExecutorSlot], ExecutorLaunch]) -> None:
        """Set the function that makes launches, so that :meth:`launch` works from now on. Does
        nothing after :meth:`close`."""
        with suppress(InvalidStateError):  # closed in the meantime
            self.application.set_result(launch_of)

    def close(self) -> None:
        """Refuse all launches, because the stage has ended before it was open. Does nothing after
        :meth:`open`."""
        with suppress(InvalidStateError):
            self.application.set_exception(StageEndedError("the Spark stage has ended"))

    def launch(self, slot: ExecutorSlot) -> ExecutorLaunch:
        """Return the launch (command line and environment) of a new executor for a slot. Raises
        TimeoutError: neither :meth:`open` nor :meth:`close` was called yet. StageEndedError: the
        desk was closed before it was opened."""
        launch_of = self.application.result(timeout=0)
        with self._lock:
            executor_id = str(len(self._executors))
            self._executors[executor_id] = _Executor(slot)
        return launch_of(executor_id, slot)

    def started(self, executor_id: str, pid: int) -> None:
        with self._lock:
            self._executors[executor_id].pid = pid

    def ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        """Note that an executor's process has ended; return whether to start another executor in
        its slot. True: the executor ended with an error before it registered with Spark, for the
        first time in this slot. If the next executor ends in the same way, the stage fails."""
        with self._lock:
            executor = self._executors[executor_id]
            subtask = executor.slot.subtask_index
            if exit_code == 0:  # the driver told it to end, as when a session stops
                return False
            executor.has_ended = True
            if executor.was_registered:
                return False
            failures = self._failures[subtask] = self._failures.get(subtask, 0) + 1
            if failures == 1:
                return True
        if failures == 2:
            self._on_failed(
                f"the executor of slot {subtask} ended before it registered, twice: {how}"
            )
        return False

    def executors(self, active: Iterable[str]) -> tuple[SparkExecutorInfo, ...]:
        """Return those executors of *active* (Spark's ids of the executors that are registered now)
        whose processes run."""
        found = []
        with self._lock:
            for executor_id in active:
                executor = self._executors.get(executor_id)
                if executor is None or executor.pid is None or executor.has_ended:
                    continue
                slot = executor.slot
                executor.was_registered = True
                self._failures.pop(slot.subtask_index, None)
                found.append(
                    SparkExecutorInfo(
                        subtask_index=slot.subtask_index,
                        executor_id=executor_id,
                        actor_id=slot.actor_id,
                        node_id=slot.node_id,
                        pid=executor.pid,
                        bundle_index=slot.bundle_index,
                    )
                )
        return tuple(sorted(found, key=lambda info: (info.bundle_index, int(info.executor_id))))
