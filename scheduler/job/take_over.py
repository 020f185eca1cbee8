"""Decides which tasks of a job keep running when another JobMaster takes over.
The decision is made once, from the notes of the last JobMaster and the reports of the TaskExecutors
(``docs/design/0051-taking-over.md``)."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.scheduler.execution.execution_graph import (
    ExecutionGraph,
    ExecutionVertex,
    PartitionGroup,
)
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import STREAM, JobGraph, ResultMedium
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import (
    NOT_DEPLOYED,
    FinishedTask,
    JobNotes,
    ReportedGraph,
    ReportedTask,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import (
    PartitionLocations,
    SharedPart,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
    unpack_numbers,
)
from flinkray.scheduler.slots.slot_sharing import ExecutionSlotSharingGroup

_RUNS = (
    ExecutionState.CREATED,
    ExecutionState.SCHEDULED,
    ExecutionState.DEPLOYING,
    ExecutionState.INITIALIZING,
    ExecutionState.RUNNING,
)
"""States of a task that runs and that was not told to end."""

_LARGEST = (1 << 32) - 1


class CannotTakeOverError(Exception):
    """Raised if no task of the job can keep running under the new JobMaster; the text says why."""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that a TaskExecutor runs at the take-over, and the slot in which it runs."""

    ordinal: int
    slot: AllocatedSlot
    state: ExecutionState
    deployed_at: float = 0.0
    """Seconds since the epoch, as in the TaskDeployment."""
    awaits_checkpoint: int | None = None
    covered: int = 0
    """Id of the latest checkpoint for which the attempt wrote state or from which it started."""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended, finished or not, and the slot in which it ran."""

    ordinal: int
    slot: AllocatedSlot
    state: TaskExecutionState
    deployed_at: float
    """Seconds since the epoch, as in the TaskDeployment."""
    finished_at: float = 0.0
    """Seconds since the epoch, as in the FinishedTask.
    0 if no JobMaster has received the report that the attempt finished."""


@dataclass(slots=True)
class Strays:
    """Tasks and partitions of the job on TaskExecutors that the new JobMaster does not adopt. Tasks
    are to be canceled, partitions to be released."""

    running: dict[WorkerLocation, list[ExecutionAttemptID]] = field(default_factory=dict)
    """Attempts to cancel."""
    partitions: dict[WorkerLocation, list[ResultPartitionID]] = field(default_factory=dict)
    """Partitions that finished attempts have left."""
    allocations: dict[AllocationID, None] = field(default_factory=dict)
    """Slots in which the attempts to cancel run."""

    def add(self, at: WorkerLocation, found: _Found) -> None:
        if found.task.ended is None:
            self.running.setdefault(at, []).append(found.attempt_id)
            self.allocations[found.task.deployment.allocation_id] = None
        elif found.task.ended.state is ExecutionState.FINISHED:
            partitions = found.partitions()
            if partitions:
                self.partitions.setdefault(at, []).extend(partitions)


@dataclass(slots=True)
class TakeOverPlan:
    """The decision about each subtask at a take-over; subtasks are given by ordinal. A subtask that
    is in none of the lists was never deployed, or restarts and is not deployed yet."""

    running: list[RunningAttempt] = field(default_factory=list)
    ended: list[EndedAttempt] = field(default_factory=list)
    missing: list[tuple[int, str]] = field(default_factory=list)
    """(ordinal, reason) of subtasks that were deployed and no longer exist."""
    contradicting: list[tuple[int, str]] = field(default_factory=list)
    """(ordinal, reason) of running subtasks whose attempts must not keep running."""
    strays: Strays = field(default_factory=Strays)
    free: list[AllocatedSlot] = field(default_factory=list)
    lost: list[ResourceID] = field(default_factory=list)
    """TaskExecutors on which attempts have finished, and which are not registered."""
    kv_states: list[KvStateRegistration] = field(default_factory=list)
    max_parallelism: dict[JobVertexID, int] = field(default_factory=dict)
    """Max parallelism with which tasks were last deployed, by vertex."""
    finished_stages: dict[JobVertexID, float] = field(default_factory=dict)
    """Finished coordinated vertices, with the finish time from their FinishedTask."""

    @property
    def deployed(self) -> set[int]:
        """Ordinals of all subtasks that were deployed: running, ended or missing."""
        ended = {attempt.ordinal for attempt in self.ended}
        running = {attempt.ordinal for attempt in self.running}
        return running | ended | {ordinal for ordinal, _ in self.missing}

    @property
    def ends(self) -> tuple[tuple[TaskExecutionState, ...], tuple[TaskExecutionState, ...]]:
        """The final states of the attempts in ``ended``, as a pair: (of the finished ones, of the
        others)."""
        states = [attempt.state for attempt in self.ended]
        finished = tuple(s for s in states if s.state is ExecutionState.FINISHED)
        return finished, tuple(s for s in states if s.state is not ExecutionState.FINISHED)

    @property
    def summary(self) -> str:
        """One line for users: how many subtasks keep running, have ended, are missing and so on."""
        counts = {
            "running": len(self.running) - len(self.contradicting),
            "ended": len(self.ended),
            "missing": len(self.missing),
            "contradicting": len(self.contradicting),
            "stray": sum(map(len, self.strays.running.values())),
        }
        told = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        return f"taken over from the JobMaster before, with these tasks: {told or 'none'}"


def _ended(ordinal: int, task: FinishedTask) -> EndedAttempt:
    return EndedAttempt(ordinal, task.slot, task.state, task.deployed_at, task.finished_at)


def why_not(job_graph: JobGraph, notes: JobNotes | None) -> str | None:
    """Return the reason in the notes why no task can keep running, for users; None if
    TaskExecutors' reports decide."""
    if notes is None:
        return "its last JobMaster has left no notes"
    if job_graph.has_stream_coordinator and notes.source_coordinator is None:
        return "the coordinator of its sources is lost"
    if notes.is_being_scaled:
        return "its last JobMaster was stopping it, to execute it with another parallelism"
    if len(notes.parallelisms) != len(job_graph.vertices):
        return (
            f"its last JobMaster ran {len(notes.parallelisms)} vertices, and it has "
            f"{len(job_graph.vertices)}"
        )
    return None


def strays_only(reports: Iterable[TaskExecutorReport]) -> Strays:
    """Return all reported tasks and partitions as strays, because no task can keep running."""
    strays = Strays()
    for report in reports:
        for of_graph in report.graphs:
            for found in _tasks_of(of_graph):
                strays.add(report.location, found)
    return strays


def latest_attempt(notes: JobNotes | None, reports: Iterable[TaskExecutorReport]) -> int | None:
    """Return the highest known attempt number of any subtask; None if nothing was ever deployed."""
    noted = () if notes is None else unpack_numbers(notes.attempts)
    numbers = [(number & ~NOT_DEPLOYED) - 1 for number in noted if number]
    for report in reports:
        for of_graph in report.graphs:
            numbers += (found.attempt_id.attempt_number for found in _tasks_of(of_graph))
    return max(numbers, default=None)


@dataclass(frozen=True, slots=True)
class _Found:
    task: ReportedTask
    attempt_id: ExecutionAttemptID
    vertex: VertexInformation
    parts: Mapping[int, SharedPart]

    def partitions(self) -> list[ResultPartitionID]:
        """Return the partitions that the attempt leaves on its TaskExecutor when it finishes."""
        attempt_id = self.attempt_id
        return [
            ResultPartitionID(
                attempt_id.graph_id,
                result.data_set_id,
                attempt_id.vertex.subtask_index,
                attempt_id.attempt_number,
            )
            for result in self.vertex.results
            if not result.result_type.is_pipelined and result.medium is ResultMedium.CHANNELS
        ]


def _tasks_of(of_graph: ReportedGraph) -> Iterable[_Found]:
    parts = {part.key: part for part in of_graph.parts}
    for task in of_graph.tasks:
        part = parts.get(task.deployment.vertex)
        if part is not None and isinstance(part.content, VertexInformation):
            vertex = part.content
            yield _Found(
                task, attempt_of(of_graph.graph_id, vertex, task.deployment), vertex, parts
            )


class TakeOver:
    """Decides which tasks keep running, by comparing the notes with the reports. The time is linear
    in the number of subtasks and reported tasks: the producers that a deployment names are compared
    once per TaskExecutor and group of partitions."""

    def __init__(
        self,
        graph: ExecutionGraph,
        notes: JobNotes,
        regions: PipelinedRegions,
        sharing: Iterable[ExecutionSlotSharingGroup],
        coordinated: Collection[JobVertexID] = (),
    ) -> None:
        """Prepare the decision.

        Args:
            graph: execution graph with the id and the parallelisms of the notes.
            notes: notes of the last JobMaster.
            sharing: slot-sharing groups of the graph's subtasks.
            coordinated: Spark stages whose drivers exist.

        Raises:
            CannotTakeOverError: the notes belong to another graph.
        """
        self._graph = graph
        self._notes = notes
        self._regions = regions
        self._coordinated = coordinated
        self._noted = unpack_numbers(notes.attempts)
        if len(self._noted) != len(graph.subtasks):
            raise CannotTakeOverError(
                f"its last JobMaster ran {len(self._noted)} subtasks, and it has "
                f"{len(graph.subtasks)}"
            )
        self._sharing: dict[ExecutionVertexID, int] = {}
        for number, group in enumerate(sharing):
            self._sharing.update(dict.fromkeys(group.vertices, number))
        self._slot_of_sharing: dict[int, AllocationID] = {}
        self._sharing_of_slot: dict[AllocationID, int] = {}
        self._finished_at: dict[ExecutionAttemptID, float] = {}
        """Attempt -> seconds since the epoch when it finished, from the notes."""
        self._expected: dict[int, array[int]] = {}
        """id() of a partition group -> expected attempt numbers of the group's producers.
        A producer that was never deployed, or will run again, has a number that no attempt has."""

    @property
    def attempt_numbers(self) -> list[int | None]:
        """Numbers of the current attempts; None for a subtask that was never deployed."""
        return [(noted & ~NOT_DEPLOYED) - 1 if noted else None for noted in self._noted]

    def plan(
        self, finished: Iterable[FinishedTask], reports: Sequence[TaskExecutorReport]
    ) -> TakeOverPlan:
        """Decide about each subtask.  *finished*: notes about finished attempts. Raises
        CannotTakeOverError if the reports show that there were later notes."""
        plan = TakeOverPlan()
        seen: dict[int, None] = {}
        finished = tuple(finished)
        self._finished_at = {task.state.attempt_id: task.finished_at for task in finished}
        self._add_finished_stages(plan, finished, reports, seen)
        for report in reports:
            plan.kv_states += report.kv_states
            slots = {slot.allocation_id: slot for slot in report.slots}
            agreed: dict[int, str | None] = {}
            for of_graph in report.graphs:
                is_present = of_graph.graph_id == self._graph.graph_id
                for found in _tasks_of(of_graph):
                    ordinal = self._ordinal_of(found.attempt_id) if is_present else None
                    if ordinal is None or not self._is_noted(ordinal, found) or ordinal in seen:
                        plan.strays.add(report.location, found)
                        continue
                    seen[ordinal] = None
                    self._add(plan, ordinal, found, report.location, slots, agreed)
                    plan.max_parallelism[found.vertex.vertex_id] = found.vertex.max_parallelism
        self._add_finished(plan, finished, seen)
        there = {report.location.resource_id for report in reports}
        if seen or not self._nothing_was_sent(reports, there):
            self._add_missing(plan, seen)
        in_use = {attempt.slot.allocation_id for attempt in plan.running}
        plan.free = [
            slot
            for report in reports
            for slot in report.slots
            if slot.allocation_id not in in_use
            and slot.allocation_id not in plan.strays.allocations
        ]
        ran_on = dict.fromkeys(
            attempt.slot.location.resource_id
            for attempt in plan.ended
            if attempt.state.state is ExecutionState.FINISHED
        )
        plan.lost = [resource_id for resource_id in ran_on if resource_id not in there]
        return plan

    def refuse_doubts(self, plan: TakeOverPlan, latest_completed: int) -> None:
        """Refuse a take-over with copied notes, if a later JobMaster may have had newer notes.
        If a later JobMaster had restarted a noted attempt elsewhere, then the attempt would be
        missing here, or would not be part of a checkpoint that was completed since.

        Raises:
            CannotTakeOverError: an attempt is missing, has failed, must be ended, or is not part of
                the last complete checkpoint.
        """
        doubts = [*plan.missing, *plan.contradicting]
        doubts += (
            (attempt.ordinal, "it has ended, and has not finished")
            for attempt in plan.ended
            if attempt.state.state is not ExecutionState.FINISHED
        )
        doubts += (
            (attempt.ordinal, f"it is not part of checkpoint {latest_completed}, the last one")
            for attempt in plan.running
            if attempt.covered < latest_completed
            and self._graph.subtasks[attempt.ordinal].job_vertex.vertex.invokable.kind == STREAM
        )
        for ordinal, reason in doubts:
            raise CannotTakeOverError(
                "only a copy of its notes was found, which may be outdated: "
                f"{self._graph.subtasks[ordinal].task_name}: {reason}"
            )

    def _ordinal_of(self, attempt_id: ExecutionAttemptID) -> int | None:
        vertex = self._graph.vertex(attempt_id.vertex.job_vertex_id)
        index = attempt_id.vertex.subtask_index
        if vertex is None or not 0 <= index < vertex.parallelism:
            return None
        return vertex.first + index

    def _is_noted(self, ordinal: int, found: _Found) -> bool:
        """Return whether the found attempt is the current attempt of its subtask according to the
        notes.

        Raises:
            CannotTakeOverError: the attempt is later than the noted one, so there were later notes.
        """
        noted = self._noted[ordinal]
        number = found.attempt_id.attempt_number
        used = (noted & ~NOT_DEPLOYED) - bool(noted & NOT_DEPLOYED)
        if number + 1 > used:
            raise CannotTakeOverError(
                "the notes of its last JobMaster are not the last ones: "
                f"{self._graph.subtasks[ordinal].task_name} ({found.attempt_id}) runs at a "
                f"TaskExecutor, and {used} attempts are noted"
            )
        return number + 1 == noted

    # --- reported attempts ------------------------------------------------------------------------

    def _add(
        self,
        plan: TakeOverPlan,
        ordinal: int,
        found: _Found,
        at: WorkerLocation,
        slots: Mapping[AllocationID, AllocatedSlot],
        agreed: dict[int, str | None],
    ) -> None:
        vertex = self._graph.subtasks[ordinal]
        task = found.task
        allocation_id = task.deployment.allocation_id
        slot = slots.get(allocation_id)
        if task.ended is not None and task.is_stopping:
            plan.missing.append(
                (ordinal, "it has ended with a savepoint that will not be completed")
            )
            return
        if task.ended is not None:
            profile = vertex.job_vertex.vertex.slot_profile
            ran_in = slot or AllocatedSlot(allocation_id, 0, profile, at)
            times = task.deployment.deployed_at, self._finished_at.get(found.attempt_id, 0.0)
            plan.ended.append(EndedAttempt(ordinal, ran_in, task.ended, *times))
            return
        if slot is None or not self._shares(vertex, allocation_id):
            plan.strays.add(at, found)
            where = f"a slot that {at.resource_id} has not" if slot is None else "another's slot"
            plan.missing.append((ordinal, f"it runs in {where} (allocation {allocation_id})"))
            return
        state = task.state if task.state in _RUNS else ExecutionState.RUNNING
        if vertex.job_vertex.is_coordinated:  # the coordinator says whether it runs
            state = ExecutionState.DEPLOYING
        since = task.deployment.deployed_at
        restored = task.deployment.restored
        covered = max(task.acknowledged, 0 if restored is None else restored.checkpoint_id)
        plan.running.append(
            RunningAttempt(ordinal, slot, state, since, task.awaits_checkpoint, covered)
        )
        contradiction = self._contradiction(vertex, found, agreed)
        if contradiction is not None:
            plan.contradicting.append((ordinal, contradiction))

    def _shares(self, vertex: ExecutionVertex, allocation_id: AllocationID) -> bool:
        """Return whether the slot in which the attempt runs is used by its slot-sharing group
        alone. The first attempt of a group decides which slot is the group's."""
        sharing = self._sharing[vertex.vertex_id]
        is_first = sharing not in self._slot_of_sharing
        if is_first and allocation_id not in self._sharing_of_slot:
            self._slot_of_sharing[sharing] = allocation_id
            self._sharing_of_slot[allocation_id] = sharing
        return self._slot_of_sharing.get(sharing) == allocation_id

    def _contradiction(
        self, vertex: ExecutionVertex, found: _Found, agreed: dict[int, str | None]
    ) -> str | None:
        """Return why a running attempt must not keep running, because it does not fit the notes or
        the other attempts; None if it may."""
        task = found.task
        if task.state not in _RUNS:
            return "it was being cancelled"
        if task.is_stopping:
            return "it was told to stop with a savepoint that will not be completed"
        of_vertex = vertex.job_vertex
        if of_vertex.is_coordinated and of_vertex.vertex.vertex_id not in self._coordinated:
            return "its Spark driver was lost"
        if task.deployment.restores != self._notes.restores:
            return (
                f"it was deployed when the sources had been restored {task.deployment.restores} "
                f"times, and since then they were restored again ({self._notes.restores} times)"
            )
        edges = [e for e in vertex.job_vertex.inputs if e.result.data_set_id is not None]
        if len(edges) != len(task.deployment.inputs):
            return "it has other inputs"
        for edge, key in zip(edges, task.deployment.inputs, strict=True):
            if key not in agreed:
                group = edge.group_of_consumer(vertex.subtask_index)
                agreed[key] = self._disagreement(group, found.parts.get(key))
            text = agreed[key]
            if text is not None:
                return text
        return None

    def _disagreement(self, group: PartitionGroup, part: SharedPart | None) -> str | None:
        """Return how the producers that a deployment names (*part*) differ from the current
        attempts that produce the group; None if they agree."""
        locations = None if part is None else part.content
        if not isinstance(locations, PartitionLocations):
            return "the producers that it reads are not known"
        name = group.edge.result.producer.vertex.name
        if (
            locations.graph_id != self._graph.graph_id
            or locations.data_set_id != group.edge.result.data_set_id
            or locations.first_partition != group.partitions.start
        ):
            return f"it reads other results than those of {name}"
        expected = self._expected.get(id(group))
        if expected is None:
            ordinals = group.producer_ordinals
            noted = self._noted[ordinals.start : ordinals.stop]
            expected = array("I", ((number - 1) & _LARGEST for number in noted))
            self._expected[id(group)] = expected
        if unpack_numbers(locations.attempts) == expected:
            return None
        return f"it reads from other attempts of {name} than the current ones"

    def _add_finished_stages(
        self,
        plan: TakeOverPlan,
        finished: Iterable[FinishedTask],
        reports: Iterable[TaskExecutorReport],
        seen: dict[int, None],
    ) -> None:
        """Add to the plan the Spark stages of which all subtasks have finished. The tasks that
        occupied their slots on TaskExecutors have been or will be canceled. The slots are in use as
        long as the stage's driver exists."""
        slots = {slot.allocation_id: slot for report in reports for slot in report.slots}
        by_ordinal: dict[int, FinishedTask] = {}
        for task in finished:
            attempt_id = task.state.attempt_id
            if attempt_id.graph_id == self._graph.graph_id:
                ordinal = self._ordinal_of(attempt_id)
                if ordinal is not None and attempt_id.attempt_number + 1 == self._noted[ordinal]:
                    by_ordinal[ordinal] = task
        for vertex in self._graph.vertices:
            if not vertex.is_coordinated or any(o not in by_ordinal for o in vertex.ordinals):
                continue
            if not vertex.vertex.results and self._notes.result is None:
                continue  # the stage's result was not noted
            first = by_ordinal[vertex.ordinals[0]]
            plan.finished_stages[vertex.vertex.vertex_id] = first.finished_at
            is_there = vertex.vertex.vertex_id in self._coordinated
            for ordinal in vertex.ordinals:
                seen[ordinal] = None
                task = by_ordinal[ordinal]
                slot = slots.get(task.slot.allocation_id)
                shares = self._graph.subtasks[ordinal], task.slot.allocation_id
                if is_there and slot is not None and self._shares(*shares):
                    plan.running.append(
                        RunningAttempt(ordinal, slot, ExecutionState.RUNNING, task.deployed_at)
                    )
                else:
                    plan.ended.append(_ended(ordinal, task))

    def _add_finished(
        self, plan: TakeOverPlan, finished: Iterable[FinishedTask], seen: dict[int, None]
    ) -> None:
        """Add to the plan finished attempts that no TaskExecutor has reported and that are only
        noted, because their TaskExecutor has forgotten them or is lost."""
        for task in finished:
            attempt_id = task.state.attempt_id
            if attempt_id.graph_id != self._graph.graph_id:
                continue
            ordinal = self._ordinal_of(attempt_id)
            if ordinal is None or ordinal in seen:
                continue
            if self._graph.subtasks[ordinal].job_vertex.is_coordinated:  # its stage is not finished
                continue
            if attempt_id.attempt_number + 1 == self._noted[ordinal]:
                seen[ordinal] = None
                plan.ended.append(_ended(ordinal, task))

    # --- missing attempts -------------------------------------------------------------------------

    def _nothing_was_sent(
        self, reports: Iterable[TaskExecutorReport], there: Collection[ResourceID]
    ) -> bool:
        """Return whether the last JobMaster certainly died after noting deployments and before
        sending any, so that the tasks can be deployed as noted. Called if no task was reported. It
        is certain if every TaskExecutor to which deployments could have been sent is in *there* (it
        accepts nothing from that JobMaster any more), no source has begun, and no TaskExecutor has
        started an attempt of the graph. A TaskExecutor drops attempts that have ended when a
        JobMaster goes on with another graph, which the next JobMaster may not know."""
        place, places = self._notes.source_coordinator, self._notes.task_executors
        return (
            place is not None
            and not self._coordinated
            and not place.has_readers
            and place.restores == self._notes.restores
            and bool(places)
            and all(task_executor.resource_id in there for task_executor in places)
            and all(
                of_graph.graph_id != self._graph.graph_id
                for report in reports
                for of_graph in report.graphs
            )
        )

    def _add_missing(self, plan: TakeOverPlan, seen: Mapping[int, None]) -> None:
        """Add to the plan, as missing, noted attempts that were not reported. A region is deployed
        as a whole, so its subtasks that were not deployed are missing, too."""
        noted, of = self._noted, self._regions.of
        begun: dict[int, None] = {}
        for ordinal, number in enumerate(noted):
            if number and not number & NOT_DEPLOYED:
                begun[of[ordinal]] = None
                if ordinal not in seen:
                    plan.missing.append((ordinal, "no TaskExecutor has reported it"))
        for ordinal, number in enumerate(noted):
            if of[ordinal] in begun and (not number or number & NOT_DEPLOYED):
                plan.missing.append((ordinal, "it was not deployed with the others of its region"))


def failure_of_missing(vertex: ExecutionVertex, reason: str) -> Failure:
    """Create the failure of an attempt that is missing at a take-over."""
    text = f"{vertex.task_name} was lost with its JobMaster: {reason}"
    return Failure(text, task=vertex.task_name)


def failure_of_contradicting(vertex: ExecutionVertex, reason: str) -> Failure:
    """Create the failure of a running attempt that must not keep running after a take-over."""
    text = f"{vertex.task_name} cannot go on with another JobMaster: {reason}"
    return Failure(text, task=vertex.task_name, location=vertex.current.location)
