"""Executors that TaskExecutors start: who is to start what, and what has become of it."""

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
    """The stage has ended, or is about to: it takes no executors any more."""


@dataclass(slots=True)
class _Executor:
    slot: ExecutorSlot
    pid: int | None = None
    was_registered: bool = False
    has_ended: bool = False


class ExecutorDesk:
    """Between the TaskExecutors of a stage and its application; any thread may use it."""

    def __init__(self, on_failed: Callable[[str], None]) -> None:
        """*on_failed* is told, once at most, why a slot cannot have an executor."""
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._executors: dict[str, _Executor] = {}
        self._failures: dict[int, int] = {}
        """Subtask -> how many of its executors in a row have ended before they registered."""
        self.application: Future[Callable[[str, ExecutorSlot], ExecutorLaunch]] = Future()
        """What makes the launch of an executor, by its id, for a slot; done when the application
        takes executors, failed when it never will."""

    def open(self, launch_of: Callable[[str, ExecutorSlot], ExecutorLaunch]) -> None:
        """From now on executors may come."""
        with suppress(InvalidStateError):  # closed meanwhile
            self.application.set_result(launch_of)

    def close(self) -> None:
        """No executor may come, unless they may already."""
        with suppress(InvalidStateError):
            self.application.set_exception(StageEndedError("the Spark stage has ended"))

    def launch(self, slot: ExecutorSlot) -> ExecutorLaunch:
        """A new executor, for a slot; :attr:`application` must be done."""
        launch_of = self.application.result(timeout=0)
        with self._lock:
            executor_id = str(len(self._executors))
            self._executors[executor_id] = _Executor(slot)
        return launch_of(executor_id, slot)

    def started(self, executor_id: str, pid: int) -> None:
        with self._lock:
            self._executors[executor_id].pid = pid

    def ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        """See :meth:`SparkExecutorsGateway.executor_ended`.

        One that had been registered is missed by the JobMaster.  One that had not is followed by
        another one, and the stage fails if that does not register either.
        """
        with self._lock:
            executor = self._executors[executor_id]
            subtask = executor.slot.subtask_index
            if exit_code == 0:  # its driver has told it to end, as it does when a session stops
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
        """See :meth:`SparkHost.executors`."""
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
