"""Who gets which slots, and which workers are started and released: the decisions of a ResourceManager."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.job_info import TaskExecutorInfo
from flinkray.scheduler.shortages import ClusterResources
from flinkray.scheduler.slot_manager_actions import SlotManagerAction
from flinkray.scheduler.slots import (
    ResourceRequirements,
    ResourceShortage,
    SlotReport,
    WorkerLocation,
)


class SlotManager:
    """Matches what jobs require with the slots there are, and starts and releases worker groups.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in monotonic seconds.
    After every event call :meth:`check` again at :meth:`next_check_time`.
    """

    def __init__(
        self,
        *,
        shared_worker_profile: ResourceProfile,
        shared_worker_slots: int,
        new_allocation_id: Callable[[], AllocationID],
        idle_timeout: float = 30.0,
        slot_request_timeout: float = 10.0,
        task_executor_start_timeout: float = 60.0,
    ) -> None:
        """Durations in seconds.

        *task_executor_start_timeout*: a TaskExecutor that has been started and not registered is given up after it.
        """
        raise NotImplementedError

    # jobs

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotManagerAction]:
        """Replace what a job wants (a total).  Empty: nothing new is given, what it has stays until freed (SM-18)."""
        raise NotImplementedError

    def clear_requirements(
        self, job_id: JobID, job_ended: bool, now: float
    ) -> list[SlotManagerAction]:
        """The job's master is gone.

        Ended: its own worker group is released at once and its slots on shared workers are freed.  Else
        (a new master is expected) requests in flight are given up, and its own group waits for the idle time-out.
        """
        raise NotImplementedError

    # TaskExecutors

    def register_task_executor(
        self,
        location: WorkerLocation,
        total_profile: ResourceProfile,
        report: SlotReport,
        now: float,
    ) -> list[SlotManagerAction]:
        """A TaskExecutor has registered and sent its first report; again under the same name: it is new (RM-01)."""
        raise NotImplementedError

    def report_slot_status(
        self, resource_id: ResourceID, report: SlotReport, now: float
    ) -> list[SlotManagerAction]:
        """A heartbeat's report; ignored for TaskExecutors that are not registered."""
        raise NotImplementedError

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """It died or left: its allocations fail, and a wanted group gets a new one in the same bundle."""
        raise NotImplementedError

    def task_executor_start_failed(
        self, group_id: WorkerGroupId, bundle_index: int, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """A StartTaskExecutor failed or its process died before it registered; tried again with back-off."""
        raise NotImplementedError

    def slot_request_succeeded(
        self, slot_id: SlotID, allocation_id: AllocationID, now: float
    ) -> list[SlotManagerAction]:
        """The TaskExecutor has allocated the slot."""
        raise NotImplementedError

    def slot_request_failed(
        self, slot_id: SlotID, allocation_id: AllocationID, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """It refused, or there was no answer: the slot is free again and the job gets another try (SM-05)."""
        raise NotImplementedError

    def slot_freed(
        self, slot_id: SlotID, allocation_id: AllocationID, now: float
    ) -> list[SlotManagerAction]:
        """``notify_slot_available``; ignored unless the slot is held by that allocation."""
        raise NotImplementedError

    # worker groups

    def worker_group_started(
        self, request_number: int, group_id: WorkerGroupId, now: float
    ) -> list[SlotManagerAction]:
        """The placement group is placed; released at once when its request has been cancelled."""
        raise NotImplementedError

    def worker_group_failed(
        self, request_number: int, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """The placement group could not be created (not: it waits); requested again with back-off."""
        raise NotImplementedError

    def worker_group_lost(
        self, group_id: WorkerGroupId, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """The group or one of its bundles is gone (its node died): released, and requested anew if still wanted."""
        raise NotImplementedError

    def recover_worker_group(
        self,
        group_id: WorkerGroupId,
        bundles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        job_id: JobID | None,
        live_bundles: tuple[int, ...],
        now: float,
    ) -> list[SlotManagerAction]:
        """A group of an earlier ResourceManager: adopted, and released if nobody claims it within the idle time-out.

        *live_bundles*: those whose TaskExecutor lives and will register again.
        """
        raise NotImplementedError

    # time

    def check(self, now: float) -> list[SlotManagerAction]:
        """Time-outs, idle releases, delayed retries."""
        raise NotImplementedError

    def next_check_time(self) -> float | None:
        """When :meth:`check` has something to do next; None: not before another event."""
        raise NotImplementedError

    def notify_shortages(self, now: float, cluster: ClusterResources) -> list[SlotManagerAction]:
        """NotifyNotEnoughResources for each job whose shortages differ from what it was told last."""
        raise NotImplementedError

    # questions

    def shortages(
        self, job_id: JobID, now: float, cluster: ClusterResources
    ) -> tuple[ResourceShortage, ...]:
        """Why the job's slots are missing; empty: it has all, or none are required."""
        raise NotImplementedError

    @property
    def has_shortage(self) -> bool:
        """Whether some job misses slots now (then :meth:`notify_shortages` is worth calling)."""
        raise NotImplementedError

    def worker_group_of(self, job_id: JobID) -> WorkerGroupId | None:
        """The dedicated group of a job."""
        raise NotImplementedError

    def worker_groups(self) -> tuple[WorkerGroupId, ...]:
        """All groups that are started and not released."""
        raise NotImplementedError

    def task_executors(self) -> tuple[TaskExecutorInfo, ...]:
        """The registered TaskExecutors, oldest first."""
        raise NotImplementedError

    def story_of(self, resource_id: ResourceID) -> str:
        """What has happened to a TaskExecutor and its slots, a line per event."""
        raise NotImplementedError

    def shut_down(self, reason: str) -> list[SlotManagerAction]:
        """Cancel all requests and release all groups."""
        raise NotImplementedError
