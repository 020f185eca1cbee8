"""The life of an elastic job, which runs with what slots there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from flinkray.core.ids import ExecutionGraphID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.elastic.parallelism import Parallelism, desired_slots, with_bounds
from flinkray.scheduler.elastic.scaling import (
    ElasticScaling,
    Execute,
    ScalingAction,
    ScalingSettings,
    StartTimer,
)
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.job_graph import (
    JobGraph,
    ParallelismBounds,
    RestartStrategy,
    SchedulerMode,
)
from flinkray.scheduler.job.job_execution import StateRestorer
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    DeclareRequirements,
    JobSchedulerAction,
    ScheduleScalingTimer,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirement, ResourceRequirements
from flinkray.scheduler.shared.states import JobStatus


class ElasticJobScheduler(JobScheduler):
    """Declares all slots that the job would like to have, and executes it with those that come.

    Each change of the parallelism is an execution graph of its own, whose attempts are numbered on.
    Every failure restarts the whole job: with the slots that there are by then.
    """

    def __init__(
        self,
        job_graph: JobGraph,
        job_master_address: str,
        *,
        new_graph_id: Callable[[], ExecutionGraphID],
        default_restart_strategy: RestartStrategy,
        epoch_offset: float,
        now: float,
        slot_request_timeout: float = 300.0,
        random: Callable[[], float] = lambda: 0.5,
        state: StateRestorer | None = None,
        scaling: ScalingSettings | None = None,
    ) -> None:
        """As of :class:`~flinkray.scheduler.job.job_scheduler.JobScheduler`."""
        super().__init__(
            replace(job_graph, restart_all=True),
            job_master_address,
            new_graph_id=new_graph_id,
            default_restart_strategy=default_restart_strategy,
            epoch_offset=epoch_offset,
            now=now,
            slot_request_timeout=slot_request_timeout,
            random=random,
            state=state,
        )
        self._job_master_address = job_master_address
        self._scaling = ElasticScaling(job_graph, scaling)
        self._is_executing = False
        self._used: Counter[ResourceProfile] = Counter()
        """Slots that are requested, and so need not be declared."""

    # events

    def _begin(self, now: float) -> list[JobSchedulerAction]:
        self._execution.enter(JobStatus.RUNNING, now)
        self._declare()
        self._scale(self._scaling.start(now), now)
        return self._outbox.take()

    def slots_changed(
        self, slots: tuple[AllocatedSlot, ...], now: float
    ) -> list[JobSchedulerAction]:
        """All slots the pool holds now; those that run something are told of by ``slot_events``."""
        self._at(now)
        if self.status in (JobStatus.RUNNING, JobStatus.RESTARTING) and not self._job.is_ending:
            self._scale(self._scaling.slots_changed([s.profile for s in slots], now), now)
        return self._outbox.take()

    def scaling_timer(self, generation: int, now: float) -> list[JobSchedulerAction]:
        """The delay of a ScheduleScalingTimer is over."""
        self._at(now)
        if not self._job.is_ending:
            self._scale(self._scaling.timer(generation, now), now)
        return self._outbox.take()

    def resize(self, bounds: Sequence[ParallelismBounds], now: float) -> list[JobSchedulerAction]:
        """Other bounds for some vertices; the same ones change nothing.

        Raises:
            JobStateError: see :func:`~flinkray.scheduler.elastic.parallelism.with_bounds`.
        """
        changed = with_bounds(self._job_graph, bounds)
        if changed == self._job_graph or self._job.is_ending:
            return []
        self._at(now)
        self._job_graph = changed
        actions = self._scaling.resize(changed, now)
        if self.status in (JobStatus.RUNNING, JobStatus.RESTARTING):
            self._declare(is_total=True)
            self._scale(actions, now)
        return self._outbox.take()

    def slot_pool_lost(self, cause: str, now: float) -> list[JobSchedulerAction]:
        """The SlotPool is gone with all slots; the requirements are declared again."""
        if not self.status.is_terminal:
            self._used.clear()
            self._declare()
        return super().slot_pool_lost(cause, now)

    def _why_pending(self) -> str | None:
        if self._is_executing or self._job.is_ending or self.status is JobStatus.CREATED:
            return super()._why_pending()
        return " ".join(s.reason for s in self._shortages) or "too few slots have come yet."

    # decisions

    def _declare(self, is_total: bool = False) -> None:
        """All that the job would like, less what it is about to request.

        *is_total*: it has requested that already, and what is declared takes its place.
        """
        wanted: Counter[ResourceProfile] = Counter()
        for requirement in desired_slots(self._job_graph):
            wanted[requirement.profile] += requirement.count
        if not is_total:
            wanted.subtract(self._used)
        declared = ResourceRequirements(
            self._job_graph.job_id,
            self._job_master_address,
            tuple(ResourceRequirement(p, n) for p, n in wanted.items() if n > 0),
        )
        self._outbox.add(DeclareRequirements(declared))

    def _scale(self, actions: list[ScalingAction], now: float) -> None:
        for action in actions:
            if isinstance(action, StartTimer):
                self._outbox.add(ScheduleScalingTimer(action.delay, action.generation))
            elif not isinstance(action, Execute):
                failure = Failure(f"NoResourceAvailableError: {action.reason}")
                self._execution.fail_job(failure, now)
            elif self._is_executing:
                self._execution.restart_everything(now, f"to be scaled: {action.reason}")
            else:
                self._execute(action.parallelism, action.reason, now)

    def _nothing_runs(self, now: float) -> None:
        """In place of a restart of what ran."""
        self._is_executing = False
        self._used.clear()
        self._declare()
        self._scale(self._scaling.nothing_runs(now), now)

    def _execute(self, parallelism: Parallelism, reason: str, now: float) -> None:
        assert self._shared is not None
        attempts = [subtask.current.attempt_number for subtask in self._graph.subtasks]
        graph = ExecutionGraph(
            self._job_graph,
            self._new_graph_id(),
            now,
            parallelism=parallelism,
            first_attempt=max(attempts) + 1,
        )
        requests_made = self._shared.requests_made
        self._build(graph, self._execution.next_generation())
        self._place(requests_made)
        self._execution.instead_of_restart = self._nothing_runs
        self._is_executing = True
        self._formats.reset((), is_global=True)
        if self.status is JobStatus.RESTARTING:
            self._execution.enter(JobStatus.RUNNING, now, reason)
        executions = [subtask.current for subtask in graph.subtasks]
        failure = self._state.restore(executions, is_global=True)
        if failure is not None:
            self._execution.fail(failure, (), now, is_global=True)
            return
        self._used = Counter()
        for group in self._shared.groups:
            self._used[group.profile] += 1
        self._declare()
        self._execution.begin(now)


def new_job_scheduler(
    job_graph: JobGraph,
    job_master_address: str,
    *,
    new_graph_id: Callable[[], ExecutionGraphID],
    default_restart_strategy: RestartStrategy,
    epoch_offset: float,
    now: float,
    slot_request_timeout: float = 300.0,
    random: Callable[[], float] = lambda: 0.5,
    state: StateRestorer | None = None,
    scaling: ScalingSettings | None = None,
) -> JobScheduler:
    """The scheduler of the job's mode; *scaling* is for elastic jobs."""
    kind: Callable[..., JobScheduler] = JobScheduler
    if job_graph.scheduler_mode is SchedulerMode.ADAPTIVE:
        kind = partial(ElasticJobScheduler, scaling=scaling)
    return kind(
        job_graph,
        job_master_address,
        new_graph_id=new_graph_id,
        default_restart_strategy=default_restart_strategy,
        epoch_offset=epoch_offset,
        now=now,
        slot_request_timeout=slot_request_timeout,
        random=random,
        state=state,
    )
