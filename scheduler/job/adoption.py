"""Adopts the tasks of the last JobMaster, or begins the job anew from its last checkpoint.
:mod:`flinkray.scheduler.job.take_over` decides which tasks keep running."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from flinkray.core.ids import JobVertexID
from flinkray.scheduler.checkpoints.events import CheckpointAnswered
from flinkray.scheduler.checkpoints.messages import AwaitCheckpoint
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import CoordinatorKind
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_notebook import JobNotebook
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    AdoptSlots,
    CancelTasks,
    JobRestarts,
    ReleasePartitions,
)
from flinkray.scheduler.job.operator_coordinators import OperatorCoordinators
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.take_over import (
    Strays,
    TakeOver,
    TakeOverPlan,
    failure_of_contradicting,
    failure_of_missing,
    latest_attempt,
    strays_only,
)
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes, TaskExecutorReport


@dataclass(frozen=True, slots=True)
class NotedGraph:
    """The execution graph that the last JobMaster's notes describe, rebuilt by this JobMaster, and
    the decision which of its tasks keep running."""

    graph: ExecutionGraph
    """The current attempts have the noted numbers."""
    regions: PipelinedRegions
    slots: RegionSlots
    plan: TakeOverPlan

    @classmethod
    def planned(
        cls,
        graph: ExecutionGraph,
        notes: JobNotes,
        finished: Iterable[FinishedTask],
        reports: tuple[TaskExecutorReport, ...],
        now: float,
        coordinated: Collection[JobVertexID],
        *,
        latest_completed: int | None,
    ) -> NotedGraph:
        """Decide which tasks keep running, and continue the noted attempts in *graph*.

        Args:
            graph: new execution graph with the id and the parallelisms of the notes.
            finished: notes about finished attempts.
            coordinated: Spark stages whose drivers still exist.
            latest_completed: id of the last complete checkpoint, if the notes are a copy that may
                be outdated; None if they are the last notes.

        Raises:
            CannotTakeOverError: no task can keep running.
        """
        regions = PipelinedRegions(graph)
        slots = RegionSlots(graph, regions)
        take_over = TakeOver(graph, notes, regions, slots.groups, coordinated)
        plan = take_over.plan(finished, reports)
        if latest_completed is not None:
            take_over.refuse_doubts(plan, latest_completed)
        for vertex in graph.vertices:
            at_work = plan.max_parallelism.get(vertex.vertex.vertex_id)
            vertex.max_parallelism = at_work or vertex.max_parallelism
        for subtask, number in zip(graph.subtasks, take_over.attempt_numbers, strict=True):
            if number is not None:
                subtask.go_on_from(number, now)
        graph.restores = notes.restores
        return cls(graph, regions, slots, plan)


class JobAdoption:
    """Brings an execution graph into the state in which the last JobMaster left its tasks. If no
    task can keep running, starts the job on the graph from its last checkpoint."""

    def __init__(
        self,
        graph: ExecutionGraph,
        job: JobRecord,
        execution: JobExecution,
        region_slots: RegionSlots,
        coordinators: OperatorCoordinators,
        notebook: JobNotebook,
    ) -> None:
        self._graph = graph
        self._job = job
        self._execution = execution
        self._region_slots = region_slots
        self._coordinators = coordinators
        self._notebook = notebook

    def begin_anew(
        self,
        why: str,
        notes: JobNotes | None,
        reports: tuple[TaskExecutorReport, ...],
        now: float,
        *,
        has_run: bool,
    ) -> Steps:
        """Cancel all tasks that still run, and start the job from its last checkpoint. If any task
        was deployed before, this counts as a restart, and attempt numbers continue.

        Args:
            why: why no task can keep running.
            has_run: tasks of the job were deployed, even if neither notes nor reports say so.
        """
        strays = strays_only(reports)
        steps: list[Step] = [AdoptSlots(())] if reports else []
        latest = latest_attempt(notes, reports)
        text = f"The JobMaster was lost, and the job begins from its last checkpoint: {why}"
        failure = Failure(text)
        if latest is None and has_run:
            latest = 0
        if latest is not None and not (notes is not None and notes.is_being_scaled):
            cause = self._job.count_restart(failure)
            steps.append(JobRestarts(self._job.restarts, cause, 0.0))
            for subtask in self._graph.subtasks:
                subtask.go_on_from(latest + 1, now)
        if notes is not None or strays.running or has_run:
            self._job.add_failure(failure, now)
        if notes is not None:
            self._notebook.begins_after(notes)
            self._coordinators.count_on(notes.coordinators)
            if notes.source_coordinator is not None:
                steps += self._coordinators.replace_adopted(
                    CoordinatorKind.SOURCE_ENUMERATORS, notes.source_coordinator.attempt_number, now
                )
        return [*steps, *_without(strays), t.StartJob()]

    def adopt(
        self,
        plan: TakeOverPlan,
        notes: JobNotes,
        begun_checkpoints: Mapping[int, str],
        coordinated: Collection[JobVertexID],
        now: float,
    ) -> Steps:
        """Continue all attempts of *plan* as if this JobMaster had deployed them. What happened to
        them since, such as their ends, is then applied like later events.

        Args:
            begun_checkpoints: checkpoints that the last JobMaster began and may not have completed:
                id -> directory.
            coordinated: Spark stages whose drivers still exist.
        """
        subtasks, execution = self._graph.subtasks, self._execution
        since = partial(self._job.since, now=now)
        running = ((subtasks[a.ordinal].current, a.slot) for a in plan.running)
        adopted = self._region_slots.adopt(running, plan.free)
        for a in plan.running:
            execution.adopt(subtasks[a.ordinal].current, a.slot, a.state, since(a.deployed_at))
        for e in plan.ended:
            deployed_at = since(e.deployed_at)
            execution.adopt(
                subtasks[e.ordinal].current, e.slot, ExecutionState.RUNNING, deployed_at
            )
        for ordinal, _ in plan.missing:
            execution.adopt_missing(subtasks[ordinal].current, now)
        place = notes.source_coordinator
        if place is not None:
            self._coordinators.adopt(CoordinatorKind.SOURCE_ENUMERATORS, place.attempt_number, now)
        if self._notebook.has_deployed:
            self._coordinators.tasks_were_deployed()
        deployed = plan.deployed
        new = tuple(subtask for subtask in subtasks if subtask.ordinal not in deployed)
        of_sources = notes.restores if place is None else place.restores
        restores = max(notes.restores, of_sources or 0)
        steps: list[Step] = [adopted, *self._job.change(JobStatus.RUNNING, now, plan.summary)]
        self._job.runs_since(notes.running_since, now)
        if notes.coordinators:
            self._job.result = notes.result
            finished_at = {vertex_id: since(at) for vertex_id, at in plan.finished_stages.items()}
            steps += self._coordinators.adopt_of_regions(
                notes.coordinators, coordinated, finished_at, now
            )
        finished, failed = plan.ends
        if finished:
            times = {a.state.attempt_id: since(a.finished_at) for a in plan.ended}
            steps.append(t.StatesReported(finished, times))
        unheard = {state.attempt_id for state in failed}
        steps.append(t.CheckpointsAdopted(restores, begun_checkpoints, unheard))
        if new:
            self._notebook.not_deployed(new)
            steps.append(t.RestoreState(new, ()))
        job_id = self._graph.job_graph.job_id
        awaiting = tuple(
            AwaitCheckpoint(job_id, subtasks[a.ordinal].current.attempt_id, a.awaits_checkpoint)
            for a in plan.running
            if a.awaits_checkpoint is not None
        )
        if awaiting:
            steps.append(CheckpointAnswered(awaiting))
        if plan.kv_states:
            steps.append(t.KvStatesRegistered(tuple(plan.kv_states)))
        steps.append(t.StartScheduling())
        steps += _without(plan.strays)
        cause = "it did not report to the next JobMaster"
        steps += [t.TaskExecutorLost(resource_id, cause) for resource_id in plan.lost]
        if failed:  # only now: StartScheduling must not schedule their regions
            steps.append(t.StatesReported(failed))
        if plan.missing:
            ends = [
                (subtasks[o].current, failure_of_missing(subtasks[o], r)) for o, r in plan.missing
            ]
            steps.append(t.AttemptsFailed(tuple(ends)))
        if plan.contradicting:
            failures = [
                ((o,), failure_of_contradicting(subtasks[o], r)) for o, r in plan.contradicting
            ]
            steps.append(t.SubtasksFailed(tuple(failures)))
        if of_sources is not None and of_sources != notes.restores:
            text = f"the sources were restored {of_sources} times, and tasks {notes.restores} times"
            steps.append(t.GlobalFailure(Failure(text)))
        return steps


def _without(strays: Strays) -> Iterator[Step]:
    for location, attempts in strays.running.items():
        yield CancelTasks(location, tuple(attempts))
    for location, partitions in strays.partitions.items():
        yield ReleasePartitions(location, tuple(partitions))
