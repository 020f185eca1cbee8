"""Keeps the SlotManager's worker groups, their bundles, and the requests for groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from flinkray.core.ids import JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import WorkerGroupOwner

STABLE_AFTER = 30.0
"""Seconds that a TaskExecutor must live so that its death does not count as a failed start."""
ROOM_PATIENCE = 1.0
"""Seconds after which an unanswered request for a worker group counts as finding no room."""


def back_off(failures: int) -> float:
    """Return the seconds to wait after this many failures in a row: 0, 1, 2, 4, 8, then 10."""
    return 0.0 if failures <= 1 else float(min(10, 2 ** (failures - 2)))


GroupKind = WorkerGroupOwner | ResourceProfile
"""What the worker groups of a kind have in common: their owner, or the resources of the worker in a
shared group. Each shared group has one worker."""


class BundleState(Enum):
    """State of a bundle's TaskExecutor.
    STARTING: it is expected to register.  REGISTERED: it has registered.  EMPTY: there is none."""

    STARTING = "starting"
    REGISTERED = "registered"
    EMPTY = "empty"


@dataclass(slots=True, eq=False)
class Bundle:
    """One bundle of a group and its TaskExecutor.  Only the WorkerGroup changes a Bundle."""

    index: int
    profile: ResourceProfile
    state: BundleState = BundleState.EMPTY
    resource_id: ResourceID | None = None
    failures: int = 0
    """Number of deaths and failed starts in a row."""
    last_cause: str | None = None


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """A started placement group, with the TaskExecutors in its bundles."""

    group_id: WorkerGroupId
    slots_per_bundle: int
    owner: WorkerGroupOwner | None
    """Owner of the group; None for a shared group."""
    bundles: dict[int, Bundle] = field(default_factory=dict)
    unneeded_since: float | None = None
    """Monotonic seconds since when nothing in the group is used or wanted; None if it is needed."""
    is_known: bool = True
    """Whether the group was started or recovered.
    False: a TaskExecutor of the group registered before the group was recovered; until then no
    slots of the group are given."""
    empty: dict[int, Bundle] = field(default_factory=dict)
    """Bundles in which no TaskExecutor exists or is being started."""
    number_starting: int = 0
    profiles: tuple[ResourceProfile, ...] = ()
    """Profiles of the bundles, in their order."""

    @property
    def is_shared(self) -> bool:
        """Whether any job may get slots of the group."""
        return self.owner is None and self.is_known

    @property
    def text(self) -> str:
        """``worker group '<name>' (<id>)``, for users; shared groups have no name."""
        if self.owner is None:
            return f"worker group {self.group_id}"
        return f"worker group {self.owner.name!r} ({self.group_id})"

    @property
    def kind(self) -> GroupKind:
        return self.profiles[0] if self.owner is None else self.owner

    def add_bundle(self, index: int, profile: ResourceProfile) -> None:
        self.bundles[index] = self.empty[index] = Bundle(index, profile)
        self.profiles = tuple(b.profile for _, b in sorted(self.bundles.items()))

    def add_bundles(self, profiles: tuple[ResourceProfile, ...]) -> None:
        """Add one bundle for each profile to a group without bundles."""
        self.bundles = {index: Bundle(index, profile) for index, profile in enumerate(profiles)}
        self.empty = dict(self.bundles)
        self.profiles = profiles

    def starting(self, bundle: Bundle) -> None:
        """Mark the bundle as STARTING: a TaskExecutor is being started in it."""
        self._enter(bundle, BundleState.STARTING, None)

    def registered(self, bundle: Bundle, resource_id: ResourceID) -> None:
        self._enter(bundle, BundleState.REGISTERED, resource_id)

    def emptied(self, bundle: Bundle, cause: str, lived: float) -> None:
        """Mark the bundle as EMPTY, because its TaskExecutor no longer exists. *lived*: seconds
        since it registered; 0 if it never did."""
        bundle.failures = 1 if lived >= STABLE_AFTER else bundle.failures + 1
        bundle.last_cause = cause
        self._enter(bundle, BundleState.EMPTY, None)

    def _enter(self, bundle: Bundle, state: BundleState, resource_id: ResourceID | None) -> None:
        self.number_starting -= bundle.state is BundleState.STARTING
        self.empty.pop(bundle.index, None)
        bundle.state, bundle.resource_id = state, resource_id
        self.number_starting += state is BundleState.STARTING
        if state is BundleState.EMPTY:
            self.empty[bundle.index] = bundle


@dataclass(slots=True, eq=False)
class GroupRequest:
    """An unanswered request for a worker group (StartWorkerGroup)."""

    number: int
    profiles: tuple[ResourceProfile, ...]
    slots_per_bundle: int
    owner: WorkerGroupOwner | None
    since: float

    @property
    def kind(self) -> GroupKind:
        return self.profiles[0] if self.owner is None else self.owner

    @property
    def number_of_slots(self) -> int:
        return len(self.profiles) * self.slots_per_bundle

    def waits_for_room(self, now: float) -> bool:
        """Return whether the request has been unanswered for so long that no node seems to have
        room for it."""
        return now >= self.since + ROOM_PATIENCE


@dataclass(slots=True)
class GroupFailures:
    """Counts how many requests for worker groups of one kind have failed in a row."""

    count: int = 0
    not_before: float = 0.0
    cause: str = ""


@dataclass(slots=True)
class GroupBooks:
    """Indexes all worker groups and the requests for groups, oldest first. :meth:`noted` must be
    called for each group that was added, changed or removed."""

    started: dict[WorkerGroupId, WorkerGroup] = field(default_factory=dict)
    requests: dict[int, GroupRequest] = field(default_factory=dict)
    failures: dict[GroupKind, GroupFailures] = field(default_factory=dict)
    released: dict[WorkerGroupId, None] = field(default_factory=dict)
    next_request_number: int = 1
    shared_requests: dict[int, GroupRequest] = field(default_factory=dict)
    shared_starting: dict[WorkerGroupId, WorkerGroup] = field(default_factory=dict)
    """Shared groups in which TaskExecutors are being started."""
    shared_empty: dict[WorkerGroupId, WorkerGroup] = field(default_factory=dict)
    """Shared groups with empty bundles."""
    _slots_coming: dict[WorkerGroupId, int] = field(default_factory=dict)
    """Number of slots of TaskExecutors that are being started, by group."""
    number_of_slots_coming: int = 0
    shared_workers_coming: Counter[ResourceProfile] = field(default_factory=Counter)
    """Number of TaskExecutors of shared groups that are being started, by their resources."""
    _shared_coming: dict[WorkerGroupId, int] = field(default_factory=dict)
    _of_owner: dict[WorkerGroupOwner, WorkerGroup] = field(default_factory=dict)
    _request_of_owner: dict[WorkerGroupOwner, GroupRequest] = field(default_factory=dict)
    _owners: dict[JobID, dict[WorkerGroupOwner, None]] = field(default_factory=dict)
    """Owners that have a group or an unanswered request, by job."""

    def of_owner(self, owner: WorkerGroupOwner) -> WorkerGroup | None:
        """Return the owner's group; None if it has none."""
        return self._of_owner.get(owner)

    def request_of_owner(self, owner: WorkerGroupOwner) -> GroupRequest | None:
        """Return the unanswered request for the owner's group; None if there is none."""
        return self._request_of_owner.get(owner)

    def owners_of_job(self, job_id: JobID) -> tuple[WorkerGroupOwner, ...]:
        """Return the owners of worker groups in this job that have a group or an unanswered
        request, in order of creation."""
        return tuple(self._owners.get(job_id, ()))

    def _note_owner(self, owner: WorkerGroupOwner) -> None:
        if owner in self._of_owner or owner in self._request_of_owner:
            self._owners.setdefault(owner.job_id, {})[owner] = None
            return
        owners = self._owners.get(owner.job_id, {})
        owners.pop(owner, None)
        if not owners:
            self._owners.pop(owner.job_id, None)

    def noted(self, group: WorkerGroup) -> None:
        """Update the indices after a change of the group."""
        group_id = group.group_id
        is_there = self.started.get(group_id) is group
        is_starting = is_there and group.number_starting > 0
        for wanted, index in (
            (is_starting and group.is_shared, self.shared_starting),
            (is_there and bool(group.empty) and group.is_shared, self.shared_empty),
        ):
            if wanted:
                index[group_id] = group
            else:
                index.pop(group_id, None)
        workers = group.number_starting if group_id in self.shared_starting else 0
        change = workers - self._shared_coming.pop(group_id, 0)
        if change:
            self.shared_workers_coming[group.profiles[0]] += change
            if not self.shared_workers_coming[group.profiles[0]]:
                del self.shared_workers_coming[group.profiles[0]]
        if workers:
            self._shared_coming[group_id] = workers
        coming = group.number_starting * group.slots_per_bundle if is_starting else 0
        self.number_of_slots_coming += coming - self._slots_coming.pop(group_id, 0)
        if coming:
            self._slots_coming[group_id] = coming
        if group.owner is not None:
            if is_there:
                self._of_owner[group.owner] = group
            elif self._of_owner.get(group.owner) is group:
                del self._of_owner[group.owner]
            self._note_owner(group.owner)

    def new_request(
        self,
        profiles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        owner: WorkerGroupOwner | None,
        now: float,
    ) -> GroupRequest:
        request = GroupRequest(self.next_request_number, profiles, slots_per_bundle, owner, now)
        self.requests[request.number] = request
        self.number_of_slots_coming += request.number_of_slots
        if owner is None:
            self.shared_requests[request.number] = request
        else:
            self._request_of_owner[owner] = request
            self._note_owner(owner)
        self.next_request_number += 1
        return request

    def take_request(self, number: int) -> GroupRequest | None:
        """Remove and return the request *number*, because it is answered or canceled. None if it
        was removed before."""
        request = self.requests.pop(number, None)
        if request is not None:
            self.number_of_slots_coming -= request.number_of_slots
            self.shared_requests.pop(number, None)
            owner = request.owner
            if owner is not None and self._request_of_owner.get(owner) is request:
                del self._request_of_owner[owner]
                self._note_owner(owner)
        return request

    def shared_requests_of(self, worker: ResourceProfile) -> list[GroupRequest]:
        """Return the unanswered requests for shared workers with these resources, oldest first."""
        return [r for r in self.shared_requests.values() if r.profiles[0] == worker]

    def request_failed(self, kind: GroupKind, cause: str, now: float) -> float:
        """Count a failed request.  Returns the time from which it may be repeated."""
        failures = self.failures.setdefault(kind, GroupFailures())
        failures.count += 1
        failures.not_before = now + max(1.0, back_off(failures.count))
        failures.cause = cause
        return failures.not_before
