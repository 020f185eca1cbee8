"""What a JobMaster believes to run on its TaskExecutors, held against what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flinkray.core.ids import ExecutionAttemptID, ResourceID


@dataclass(frozen=True, slots=True)
class Differences:
    """Two heartbeats in a row have shown them: of one alone a message may be under way."""

    missing: tuple[ExecutionAttemptID, ...]
    """Deployed, and not running there: nobody will ever report their end."""
    unknown: tuple[ExecutionAttemptID, ...]
    """Running there, and not deployed, or given up: they must not go on."""


@dataclass(slots=True)
class _TaskExecutor:
    deployed: dict[ExecutionAttemptID, bool] = field(default_factory=dict)
    """Attempt -> whether the TaskExecutor has acknowledged it."""
    missing: frozenset[ExecutionAttemptID] = frozenset()
    unknown: frozenset[ExecutionAttemptID] = frozenset()


class DeploymentReconciliation:
    """Messages about tasks are lost with connections that break; heartbeats find it out."""

    def __init__(self) -> None:
        self._task_executors: dict[ResourceID, _TaskExecutor] = {}
        self._places: dict[ExecutionAttemptID, ResourceID] = {}

    def deploying(self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID]) -> None:
        """They are being sent."""
        record = self._task_executors.setdefault(resource_id, _TaskExecutor())
        for attempt_id in attempts:
            record.deployed[attempt_id] = False
            self._places[attempt_id] = resource_id

    def deployed(self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID]) -> None:
        """They are acknowledged."""
        record = self._task_executors.get(resource_id)
        if record is not None:
            for attempt_id in attempts:
                if attempt_id in record.deployed:
                    record.deployed[attempt_id] = True

    def not_deployed(
        self, resource_id: ResourceID, running: Iterable[ExecutionAttemptID]
    ) -> list[ExecutionAttemptID]:
        """Those that run there and were never sent there, or have been given up."""
        record = self._task_executors.get(resource_id)
        known = {} if record is None else record.deployed
        return [attempt_id for attempt_id in running if attempt_id not in known]

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        """They have ended, or are taken to; those that are unknown are fine."""
        for attempt_id in attempts:
            resource_id = self._places.pop(attempt_id, None)
            if resource_id is not None:
                record = self._task_executors[resource_id]
                record.deployed.pop(attempt_id, None)
                if not record.deployed and not record.unknown:
                    del self._task_executors[resource_id]

    def task_executor_lost(self, resource_id: ResourceID) -> None:
        """With all that ran there."""
        record = self._task_executors.pop(resource_id, None)
        if record is not None:
            for attempt_id in record.deployed:
                self._places.pop(attempt_id, None)

    def heartbeat(
        self, resource_id: ResourceID, running: Iterable[ExecutionAttemptID]
    ) -> Differences:
        """What a TaskExecutor says that it runs."""
        here = frozenset(running)
        record = self._task_executors.get(resource_id)
        if record is None:
            if not here:
                return Differences((), ())
            record = self._task_executors[resource_id] = _TaskExecutor()
        missing = frozenset(
            a for a, is_there in record.deployed.items() if is_there and a not in here
        )
        unknown = frozenset(a for a in here if a not in record.deployed)
        found = Differences(
            tuple(sorted(missing & record.missing, key=str)),
            tuple(sorted(unknown & record.unknown, key=str)),
        )
        record.missing, record.unknown = missing, unknown
        if not record.deployed and not unknown:
            self._task_executors.pop(resource_id, None)
        return found
