"""Records of the SlotManager: worker groups, their bundles, and requests for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from flinkray.core.ids import JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile

STABLE_AFTER = 30.0
"""Seconds for which a TaskExecutor must live so that its death is not taken for a failed start."""


def back_off(failures: int) -> float:
    """Seconds to wait after that many failures in a row: 0, 1, 2, 4, 8, then 10."""
    return 0.0 if failures <= 1 else float(min(10, 2 ** (failures - 2)))


class BundleState(Enum):
    """STARTING: a TaskExecutor is to register.  REGISTERED: it has.  EMPTY: there is none."""

    STARTING = "starting"
    REGISTERED = "registered"
    EMPTY = "empty"


@dataclass(slots=True, eq=False)
class Bundle:
    """One bundle of a group and the TaskExecutor in it."""

    index: int
    profile: ResourceProfile
    state: BundleState = BundleState.EMPTY
    resource_id: ResourceID | None = None
    deadline: float = 0.0
    """STARTING: when it is given up."""
    failures: int = 0
    """Deaths and failed starts in a row."""
    last_cause: str | None = None

    def starting(self, deadline: float) -> None:
        self.state, self.resource_id, self.deadline = BundleState.STARTING, None, deadline

    def registered(self, resource_id: ResourceID) -> None:
        self.state, self.resource_id = BundleState.REGISTERED, resource_id

    def emptied(self, cause: str, lived: float) -> None:
        """Its TaskExecutor is gone, *lived* seconds after it registered (0: it never did)."""
        self.failures = 1 if lived >= STABLE_AFTER else self.failures + 1
        self.state, self.resource_id, self.last_cause = BundleState.EMPTY, None, cause


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """A started placement group."""

    group_id: WorkerGroupId
    bundles: dict[int, Bundle]
    slots_per_bundle: int
    job_id: JobID | None
    """The job whose own it is; None: shared."""
    unneeded_since: float | None = None
    """Since when nothing in it is used or wanted; None: it is needed."""
    is_known: bool = True
    """False: one of its TaskExecutors registered before the group was recovered; nothing is given
    from it."""

    @property
    def profiles(self) -> tuple[ResourceProfile, ...]:
        return tuple(bundle.profile for _, bundle in sorted(self.bundles.items()))

    def count(self, state: BundleState) -> int:
        return sum(bundle.state is state for bundle in self.bundles.values())


@dataclass(slots=True, eq=False)
class GroupRequest:
    """An unanswered StartWorkerGroup."""

    number: int
    profiles: tuple[ResourceProfile, ...]
    slots_per_bundle: int
    job_id: JobID | None
    since: float


@dataclass(slots=True)
class GroupFailures:
    """Failed StartWorkerGroups in a row, of one job or (None) for shared workers."""

    count: int = 0
    not_before: float = 0.0
    cause: str = ""


@dataclass(slots=True)
class GroupBooks:
    """All groups and requests, oldest first."""

    started: dict[WorkerGroupId, WorkerGroup] = field(default_factory=dict)
    requests: dict[int, GroupRequest] = field(default_factory=dict)
    failures: dict[JobID | None, GroupFailures] = field(default_factory=dict)
    released: dict[WorkerGroupId, None] = field(default_factory=dict)
    next_request_number: int = 1

    def of_job(self, job_id: JobID) -> WorkerGroup | None:
        """The dedicated group of a job."""
        return next((g for g in self.started.values() if g.job_id == job_id), None)

    def request_of_job(self, job_id: JobID) -> GroupRequest | None:
        """The unanswered request of a job's dedicated group."""
        return next((r for r in self.requests.values() if r.job_id == job_id), None)

    def new_request(
        self,
        profiles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        job_id: JobID | None,
        now: float,
    ) -> GroupRequest:
        request = GroupRequest(self.next_request_number, profiles, slots_per_bundle, job_id, now)
        self.requests[request.number] = request
        self.next_request_number += 1
        return request

    def request_failed(self, job_id: JobID | None, cause: str, now: float) -> None:
        failures = self.failures.setdefault(job_id, GroupFailures())
        failures.count += 1
        failures.not_before = now + max(1.0, back_off(failures.count))
        failures.cause = cause
