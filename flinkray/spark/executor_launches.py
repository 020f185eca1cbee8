"""Tracks executors that TaskExecutors start: their launches, and their ends before registration."""

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
    """The stage has ended or is ending, and takes no more executors."""


@dataclass(slots=True)
class _Executor:
    slot: ExecutorSlot
    pid: int | None = None
    was_registered: bool = False
    has_ended: bool = False


class ExecutorDesk:
    """Connects the TaskExecutors of a stage with its Spark application; usable from any thread.

    A TaskExecutor asks here how to launch an executor in its slot, and reports start and end.
    """

    def __init__(self, on_failed: Callable[[str], None]) -> None:
        """Make a desk that is not open yet.

        *on_failed* is called at most once, with the reason why a slot has no executor.
        """
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
        """Set the function that creates launches. From now on :meth:`launch` works."""
        with suppress(InvalidStateError):  # closed in the meantime
            self.application.set_result(launch_of)

    def close(self) -> None:
        """Refuse all launches, because the stage has ended. No effect if the desk was opened
        before."""
        with suppress(InvalidStateError):
            self.application.set_exception(StageEndedError("the Spark stage has ended"))

    def launch(self, slot: ExecutorSlot) -> ExecutorLaunch:
        """Return the launch of a new executor for a slot. Call this only when :attr:`application`
        is done.
        """
        launch_of = self.application.result(timeout=0)
        with self._lock:
            executor_id = str(len(self._executors))
            self._executors[executor_id] = _Executor(slot)
        return launch_of(executor_id, slot)

    def started(self, executor_id: str, pid: int) -> None:
        with self._lock:
            self._executors[executor_id].pid = pid

    def ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        """Handle the end of an executor, as :meth:`SparkExecutorsGateway.executor_ended` describes.

        Returns whether another executor must be started in the slot. If the executor was
        registered, the JobMaster notices its loss. If two executors in a row end in a slot before
        they register, the stage fails.
        """
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
        """Return the executors that are active in Spark. See :meth:`SparkHost.executors`."""
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
