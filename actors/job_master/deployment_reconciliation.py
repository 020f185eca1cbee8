"""Compares the tasks that a JobMaster has deployed with the tasks that TaskExecutors report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flinkray.core.ids import ExecutionAttemptID, ResourceID


@dataclass(frozen=True, slots=True)
class Differences:
    """Attempts about which JobMaster and TaskExecutor disagreed in two heartbeats in a row.
    A single disagreement does not count, because a message may be under way.
    """

    missing: tuple[ExecutionAttemptID, ...]
    """Attempts that are deployed but do not run on the TaskExecutor.
    Their end will never be reported.
    """
    unknown: tuple[ExecutionAttemptID, ...]
    """Attempts that run on the TaskExecutor but are not deployed. They must be cancelled."""


@dataclass(slots=True)
class _TaskExecutor:
    deployed: dict[ExecutionAttemptID, bool] = field(default_factory=dict)
    """Attempt -> whether the TaskExecutor has acknowledged its deployment."""
    missing: frozenset[ExecutionAttemptID] = frozenset()
    unknown: frozenset[ExecutionAttemptID] = frozenset()


class DeploymentReconciliation:
    """Compares heartbeats with deployments, to find tasks whose messages were lost."""

    def __init__(self) -> None:
        self._task_executors: dict[ResourceID, _TaskExecutor] = {}
        self._places: dict[ExecutionAttemptID, ResourceID] = {}

    def deploying(self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Note that attempts are being sent to a TaskExecutor, which may not have them yet."""
        record = self._task_executors.setdefault(resource_id, _TaskExecutor())
        for attempt_id in attempts:
            record.deployed[attempt_id] = False
            self._places[attempt_id] = resource_id

    def deployed(self, resource_id: ResourceID, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Note that the TaskExecutor has acknowledged attempts: heartbeats must list them now."""
        record = self._task_executors.get(resource_id)
        if record is not None:
            for attempt_id in attempts:
                if attempt_id in record.deployed:
                    record.deployed[attempt_id] = True

    def not_deployed(
        self, resource_id: ResourceID, running: Iterable[ExecutionAttemptID]
    ) -> list[ExecutionAttemptID]:
        """Return those of the *running* attempts that this JobMaster has not deployed to the
        TaskExecutor, or whose end it has noted already."""
        record = self._task_executors.get(resource_id)
        known = {} if record is None else record.deployed
        return [attempt_id for attempt_id in running if attempt_id not in known]

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> None:
        """Note that attempts have ended, or count as ended. Unknown attempts are ignored."""
        for attempt_id in attempts:
            resource_id = self._places.pop(attempt_id, None)
            if resource_id is not None:
                record = self._task_executors[resource_id]
                record.deployed.pop(attempt_id, None)
                if not record.deployed and not record.unknown:
                    del self._task_executors[resource_id]

    def task_executor_lost(self, resource_id: ResourceID) -> None:
        """Remove a lost TaskExecutor, with all attempts that were deployed there."""
        record = self._task_executors.pop(resource_id, None)
        if record is not None:
            for attempt_id in record.deployed:
                self._places.pop(attempt_id, None)

    def heartbeat(
        self, resource_id: ResourceID, running: Iterable[ExecutionAttemptID]
    ) -> Differences:
        """Compare the attempts that a heartbeat reports as *running* with the deployed attempts.
        Returns the differences that the last heartbeat has shown too.
        """
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
