"""Assigns the state of a checkpoint to the subtasks of the restored job, with the same or another
parallelism, and checks that the job can be restored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from flinkray.checkpoint.handles import (
    KeyedStateHandle,
    NamedOperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    StateLocation,
    TaskState,
)
from flinkray.checkpoint.metadata import (
    CheckpointedEdge,
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
)
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.key_group_ranges import key_group_range, owner_of
from flinkray.scheduler.checkpoints.failures import StateRestoreError
from flinkray.scheduler.checkpoints.operators_with_state import (
    has_keyed_state,
    has_state,
    operators_by_own_id,
    states_of,
)
from flinkray.scheduler.graph.job_graph import DistributionPattern, VertexOperator, operator_text

_NAMED = 5
"""Largest number of operators that an error text names."""


class StateAssignment:
    """Divides the state of a checkpoint among the subtasks of a job's vertices."""

    def __init__(
        self,
        job_id: JobID,
        metadata: CheckpointMetadata,
        vertices: Sequence[RestoredVertex],
        *,
        allow_non_restored_state: bool = False,
    ) -> None:
        """Find the state of all *vertices* of the job, and check that the job can be restored from
        it.

        Raises:
            StateRestoreError: there is state that no operator of the job has; the max parallelism
                of an operator with keyed state does not fit; in-flight data cannot be rescaled, or
                its edge no longer exists; or the job was changed around finished operators.
        """
        self._job_id = job_id
        self._states = operators_by_own_id(metadata)
        check_operator_ids(job_id, vertices)
        self._vertices = {vertex.vertex_id: vertex for vertex in vertices}
        self._found = {v.vertex_id: states_of(v.operators, self._states) for v in vertices}
        self.not_restored = self._check_all_is_restored(vertices, allow_non_restored_state)
        """State of operators that the job does not have."""
        self.max_parallelism = {v.vertex_id: self._max_parallelism(v) for v in vertices}
        """Max parallelism of each vertex: that of the restored keyed state, or else that of the
        job."""
        self._finished = check_finished_state(job_id, vertices, self._found)
        self._check_data_in_flight(vertices)
        self._check_edges(metadata.edges, vertices)
        self._divided: dict[str, list[OperatorSubtaskState]] = {}
        """Operator id in the job -> states by subtask; computed on demand."""

    # --- questions --------------------------------------------------------------------------------

    def of_subtask(self, vertex_id: JobVertexID, subtask_index: int) -> TaskState | None:
        """Return the state with which a task starts (CP-35). If its vertex had finished, the state
        says only that. None if the task has no state."""
        if self._finished[vertex_id] is FinishedState.FULLY:
            return TaskState({}, is_finished=True)
        vertex = self._vertices[vertex_id]
        operators: dict[str, OperatorSubtaskState] = {}
        for operator, found in zip(vertex.operators, self._found[vertex_id], strict=True):
            if found is None:
                continue
            if operator.operator_id not in self._divided:
                self._divided[operator.operator_id] = self._divide(vertex, found)
            state = self._divided[operator.operator_id][subtask_index]
            if not state.is_empty:
                operators[operator.operator_id] = state
        return TaskState(operators) if operators else None

    def coordinators(self) -> Iterator[tuple[str, StateLocation]]:
        """Yield (operator id in the job, state) of each operator coordinator with state."""
        for vertex_id, vertex in self._vertices.items():
            for operator, found in zip(vertex.operators, self._found[vertex_id], strict=True):
                if found is not None and found.coordinator is not None:
                    yield operator.operator_id, found.coordinator

    # --- assignment of state ----------------------------------------------------------------------

    def _check_all_is_restored(
        self, vertices: Sequence[RestoredVertex], allow_non_restored_state: bool
    ) -> tuple[CheckpointedOperator, ...]:
        known = operators_by_id(vertices)
        missing = tuple(
            state
            for state in self._states.values()
            if state.operator_id not in known and has_state(state)
        )
        if not missing or allow_non_restored_state:
            return missing
        raise StateRestoreError(self._job_id, _not_restored_text(missing, known.values()))

    def _max_parallelism(self, vertex: RestoredVertex) -> int:
        wanted = vertex.max_parallelism
        keyed = [
            (operator, found)
            for operator, found in zip(vertex.operators, self._found[vertex.vertex_id], strict=True)
            if found is not None and has_keyed_state(found)
        ]
        for operator, found in keyed:
            there = found.max_parallelism
            if there != vertex.max_parallelism and vertex.is_max_parallelism_configured:
                raise StateRestoreError(
                    self._job_id,
                    f"the keyed state of the operator {operator} has max parallelism {there}, and "
                    f"the vertex {vertex.name!r} is configured with {vertex.max_parallelism}: keys "
                    f"would not be found. Set its max parallelism to {there}, or leave it unset",
                )
            if vertex.parallelism > there:
                raise StateRestoreError(
                    self._job_id,
                    f"the keyed state of the operator {operator} has max parallelism {there}, and "
                    f"the vertex {vertex.name!r} has parallelism {vertex.parallelism}: its "
                    f"parallelism can be {there} at most",
                )
            first, first_found = keyed[0]
            if there != first_found.max_parallelism:
                raise StateRestoreError(
                    self._job_id,
                    f"the operators {first} and {operator} are chained in the vertex "
                    f"{vertex.name!r}, and their keyed states have max parallelism "
                    f"{first_found.max_parallelism} and {there}: keep them apart "
                    "(disable_chaining)",
                )
            wanted = there
        return wanted

    def _check_data_in_flight(self, vertices: Sequence[RestoredVertex]) -> None:
        """Check that no edge with in-flight data is rescaled.
        Channel numbers identify in-flight data, and change with the parallelism of either end
        (SA-12)."""
        for vertex in vertices:
            for producer_id, _ in vertex.inputs:
                producer = self._vertices[producer_id]
                is_rescaled = self._is_rescaled(vertex) or self._is_rescaled(producer)
                has_data = any(s.state.input_channels for s in self._subtasks(vertex)) or any(
                    s.state.result_subpartitions for s in self._subtasks(producer)
                )
                if is_rescaled and has_data:
                    raise StateRestoreError(
                        self._job_id,
                        f"the checkpoint is unaligned: it has data in flight from "
                        f"{producer.name!r} to {vertex.name!r}, whose parallelism can therefore not"
                        " be changed. Restore with the same parallelism, or from a savepoint",
                    )

    def _check_edges(
        self, with_data: Iterable[CheckpointedEdge], vertices: Sequence[RestoredVertex]
    ) -> None:
        """Check that the edges with in-flight data exist unchanged in the job: in-flight data is
        identified by the numbers of a task's inputs and results, which must mean the same edges as
        before."""
        known = operators_by_id(vertices)
        edges = {edge for vertex in vertices for edge in vertex.edges}

        def today(operator_id: str) -> str:
            return known[operator_id].operator_id if operator_id in known else operator_id

        for edge in with_data:
            if edge.writer not in known and edge.reader not in known:
                continue  # dropped with the state of the operators
            wanted = replace(
                edge,
                writer=today(edge.writer),
                reader=today(edge.reader),
                operator_id=today(edge.operator_id),
            )
            if wanted not in edges:
                source, target = (self._states[i] for i in (edge.operator_id, edge.reader))
                raise StateRestoreError(
                    self._job_id,
                    "the checkpoint is unaligned: it has data in flight from "
                    f"{operator_text(source.name, source.uid)} to "
                    f"{operator_text(target.name, target.uid)}, and the job has changed around "
                    "these: they are no longer connected as they were, they are chained to others, "
                    "or inputs or outputs were added before this one. Restore the program as it "
                    "was, and change it from a savepoint, which has no data in flight. Operators "
                    "are known by their uids",
                )

    def _is_rescaled(self, vertex: RestoredVertex) -> bool:
        found = (operator for operator in self._found[vertex.vertex_id] if operator is not None)
        return any(operator.parallelism != vertex.parallelism for operator in found)

    def _subtasks(self, vertex: RestoredVertex) -> Iterator[CheckpointedSubtask]:
        for operator in self._found[vertex.vertex_id]:
            if operator is not None:
                yield from operator.subtasks

    # --- division of state ------------------------------------------------------------------------

    def _divide(
        self, vertex: RestoredVertex, found: CheckpointedOperator
    ) -> list[OperatorSubtaskState]:
        old = [OperatorSubtaskState()] * found.parallelism
        for subtask in found.subtasks:
            old[subtask.subtask_index] = subtask.state
        parallelism = vertex.parallelism
        operator_state = repartition([state.operator_state for state in old], parallelism)
        if found.parallelism == parallelism:
            return [
                state if state.operator_state == handles else replace(state, operator_state=handles)
                for state, handles in zip(old, operator_state, strict=True)
            ]
        keyed_state = divide_keyed_state(
            (handle for state in old for handle in state.keyed_state),
            found.max_parallelism,
            parallelism,
        )
        files = tuple(file for state in old for file in state.files)  # subtasks read what they need
        return [
            OperatorSubtaskState(*handles, files=files)
            for handles in zip(operator_state, keyed_state, strict=True)
        ]


def divide_keyed_state(
    handles: Iterable[KeyedStateHandle], max_parallelism: int, parallelism: int
) -> list[tuple[KeyedStateHandle, ...]]:
    """Return, for each new subtask, the parts of the handles that lie in its key groups."""
    given: list[list[KeyedStateHandle]] = [[] for _ in range(parallelism)]
    for handle in handles:
        if handle.key_groups.is_empty:
            continue
        first = owner_of(handle.first_key_group, max_parallelism, parallelism)
        last = owner_of(handle.last_key_group, max_parallelism, parallelism)
        for subtask in range(first, last + 1):
            groups = key_group_range(max_parallelism, parallelism, subtask)
            common = handle.key_groups.intersection(groups)
            given[subtask].append(
                replace(handle, first_key_group=common.first, last_key_group=common.last)
            )
    return [tuple(of_subtask) for of_subtask in given]


def _not_restored_text(
    missing: Sequence[CheckpointedOperator], operators: Iterable[VertexOperator]
) -> str:
    uids = {operator.name: operator for operator in operators}
    named = []
    for state in missing[:_NAMED]:
        text = f"{operator_text(state.name, state.uid)}, id {state.operator_id}"
        if state.name in uids:
            text += f"; the job has {uids[state.name]}"
        named.append(text)
    more = f"\n  and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    listed = "".join(f"\n  {text}" for text in named)
    return (
        f"there is state of operators that the job does not have:{listed}{more}\nGive the operators"
        " that are to have it the uids that they had; without a uid, an operator is known by its "
        "place in the program. If the state may be dropped, allow non-restored state "
        "(--allow-non-restored-state)"
    )


@dataclass(frozen=True, slots=True)
class RestoredVertex:
    """A job vertex as the restored job will execute it."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    max_parallelism: int
    is_max_parallelism_configured: bool
    """Whether the max parallelism is configured; if not, that of restored state replaces it."""
    operators: tuple[VertexOperator, ...]
    inputs: tuple[tuple[JobVertexID, DistributionPattern], ...] = field(default=())
    """The vertices that this vertex reads, with the distribution pattern of each."""
    edges: tuple[CheckpointedEdge, ...] = ()
    """The edges from the vertices that this vertex reads, as checkpoints describe edges."""


def check_operator_ids(job_id: JobID, vertices: Iterable[RestoredVertex]) -> None:
    """Check that each operator of a job has its own id.

    Raises:
        StateRestoreError: two operators have the same id.
    """
    known: dict[str, VertexOperator] = {}
    for operator in _operators(vertices):
        ids = {operator.operator_id, operator.uid_hash} - {None}
        for operator_id in sorted(str(each) for each in ids):
            other = known.setdefault(operator_id, operator)
            if other is not operator:
                raise StateRestoreError(
                    job_id,
                    f"the operators {other} and {operator} have the same id, {operator_id}: give "
                    "each a uid of its own",
                )


def operators_by_id(vertices: Sequence[RestoredVertex]) -> dict[str, VertexOperator]:
    """Return id -> operator, with every id under which the operator's state may be stored."""
    found: dict[str, VertexOperator] = {}
    for operator in _operators(vertices):
        found[operator.operator_id] = operator
        if operator.uid_hash is not None:
            found[operator.uid_hash] = operator
    return found


def _operators(vertices: Iterable[RestoredVertex]) -> Iterable[VertexOperator]:
    return (operator for vertex in vertices for operator in vertex.operators)


class FinishedState(IntEnum):
    """How many subtasks of an operator or vertex were finished in the checkpoint: none, some or
    all."""

    NONE = 0
    PARTLY = 1
    FULLY = 2


OperatorsOfVertices = Mapping[JobVertexID, tuple[CheckpointedOperator | None, ...]]
"""State of each operator of a vertex, in the vertex's order; None for a new operator."""


def check_finished_state(
    job_id: JobID, vertices: Iterable[RestoredVertex], found: OperatorsOfVertices
) -> dict[JobVertexID, FinishedState]:
    """Check that operators which had finished fit the job. Returns for each vertex how many of its
    subtasks had finished.

    Raises:
        StateRestoreError: finished operators are chained to unfinished ones; or a finished vertex
            reads an unfinished vertex, whose records would be lost.
    """
    vertices = tuple(vertices)
    states = {vertex.vertex_id: _state_of(job_id, vertex, found) for vertex in vertices}
    names = {vertex.vertex_id: vertex.name for vertex in vertices}
    for vertex in vertices:
        state = states[vertex.vertex_id]
        for producer, pattern in vertex.inputs:
            of_producer = states[producer]
            is_lost = state is FinishedState.FULLY and of_producer is not FinishedState.FULLY
            if state is FinishedState.PARTLY:
                # A subtask reads all of an all-to-all producer, and a part of a pointwise one.
                is_pointwise = pattern is DistributionPattern.POINTWISE
                least = FinishedState.PARTLY if is_pointwise else FinishedState.FULLY
                is_lost = of_producer < least
            if is_lost:
                much = "is" if state is FinishedState.FULLY else "is partly"
                raise StateRestoreError(
                    job_id,
                    f"the vertex {vertex.name!r} {much} finished in the checkpoint and would read "
                    f"{names[producer]!r}, which is not: what that puts out would be lost. Put new "
                    "operators behind the finished ones, or give those other uids",
                )
    return states


def _state_of(job_id: JobID, vertex: RestoredVertex, found: OperatorsOfVertices) -> FinishedState:
    operators = found[vertex.vertex_id]
    states = [_of_operator(operator) for operator in operators]
    if FinishedState.FULLY in states and states.count(FinishedState.FULLY) < len(states):
        finished, running = (
            next(
                operator
                for operator, state in zip(vertex.operators, states, strict=True)
                if (state is FinishedState.FULLY) == is_finished
            )
            for is_finished in (True, False)
        )
        raise StateRestoreError(
            job_id,
            f"the operators {finished} and {running} are chained in the vertex {vertex.name!r}, "
            "and the checkpoint has the first as finished and the other not: keep them apart "
            "(disable_chaining), or give the first another uid",
        )
    return max(states, default=FinishedState.NONE)


def _of_operator(operator: CheckpointedOperator | None) -> FinishedState:
    if operator is None or not any(subtask.is_finished for subtask in operator.subtasks):
        return FinishedState.NONE
    return FinishedState.FULLY if operator.is_finished else FinishedState.PARTLY


HandlesOfSubtasks = Sequence[tuple[OperatorStateHandle, ...]]
"""Handles by index of the subtask."""


def repartition(old: HandlesOfSubtasks, parallelism: int) -> list[tuple[OperatorStateHandle, ...]]:
    """Distribute the operator state of the old subtasks among *parallelism* new subtasks.
    Handles keep their order, so that all new subtasks have a union state in the same order.  With
    unchanged parallelism each subtask gets the state it had, except for union states."""
    is_rescaled = len(old) != parallelism
    chunks = _chunks_of_lists(old, parallelism) if is_rescaled else {}
    copies = _broadcast_copies(old, parallelism)
    given: list[list[OperatorStateHandle]] = [[] for _ in range(parallelism)]
    for subtask, handles in enumerate(old):
        for handle in handles:
            parts: dict[int, list[NamedOperatorState]] = defaultdict(list)
            for state in handle.states:
                shares: Iterator[tuple[int, tuple[int, ...]]]
                if state.mode is OperatorStateMode.UNION:
                    shares = ((new, state.offsets) for new in range(parallelism))
                elif state.mode is OperatorStateMode.BROADCAST:
                    wanted = copies[state.name, subtask, handle.location]
                    shares = ((new, state.offsets) for new in wanted)
                elif is_rescaled:
                    shares = chunks[state.name].next(state.offsets)
                else:
                    shares = ((new, state.offsets) for new in (subtask,))
                for new, offsets in shares:
                    parts[new].append(NamedOperatorState(state.name, state.mode, offsets))
            for new, states in parts.items():
                given[new].append(OperatorStateHandle(handle.location, tuple(states)))
    return [tuple(handles) for handles in given]


class _Chunks:
    """Cuts the elements of a list state into contiguous chunks of nearly equal size, one per
    subtask."""

    def __init__(self, elements: int, parallelism: int, start: int) -> None:
        """Cut *elements* elements into chunks for *parallelism* subtasks. *start* is the index of
        the subtask that gets the first chunk."""
        self._base, self._larger = divmod(elements, parallelism)
        self._parallelism = parallelism
        self._start = start
        self._chunk = 0
        self._room = self._size(0)
        """How many more elements fit into the current chunk."""

    @property
    def next_start(self) -> int:
        """Index of the subtask that gets the first chunk of the next list state. It follows the
        last subtask that got one element more than others, so that larger chunks are spread
        evenly."""
        return (self._start + self._larger) % self._parallelism

    def _size(self, chunk: int) -> int:
        return self._base + (chunk < self._larger)

    def next(self, offsets: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (subtask, offsets of the elements that it gets) for the next elements of the state,
        whose offsets are *offsets*."""
        taken = 0
        while taken < len(offsets):
            while not self._room:
                self._chunk += 1
                self._room = self._size(self._chunk)
            part = offsets[taken : taken + self._room]
            yield (self._start + self._chunk) % self._parallelism, part
            taken += len(part)
            self._room -= len(part)


def _chunks_of_lists(old: HandlesOfSubtasks, parallelism: int) -> dict[str, _Chunks]:
    elements: Counter[str] = Counter()
    for _, _, state in _states(old, OperatorStateMode.SPLIT_DISTRIBUTE):
        elements[state.name] += len(state.offsets)
    chunks: dict[str, _Chunks] = {}
    start = 0
    for name in sorted(elements):
        chunks[name] = _Chunks(elements[name], parallelism, start)
        start = chunks[name].next_start
    return chunks


def _broadcast_copies(
    old: HandlesOfSubtasks, parallelism: int
) -> dict[tuple[str, int, StateLocation], list[int]]:
    """Decide which new subtasks read the copy of a broadcast state that an old subtask has written.
    Each new subtask gets one copy: its own copy, if the parallelism is unchanged and it had one.
    Returns (state name, old subtask, location) -> new subtasks."""
    holders: dict[str, dict[int, StateLocation]] = defaultdict(dict)
    copies: dict[tuple[str, int, StateLocation], list[int]] = {}
    for subtask, handle, state in _states(old, OperatorStateMode.BROADCAST):
        holders[state.name].setdefault(subtask, handle.location)
        copies[state.name, subtask, handle.location] = []
    for name, of_subtask in holders.items():
        subtasks = list(of_subtask)
        for new in range(parallelism):
            is_kept = len(old) == parallelism and new in of_subtask
            holder = new if is_kept else subtasks[new % len(subtasks)]
            copies[name, holder, of_subtask[holder]].append(new)
    return copies


def _states(
    old: HandlesOfSubtasks, mode: OperatorStateMode
) -> Iterator[tuple[int, OperatorStateHandle, NamedOperatorState]]:
    for subtask, handles in enumerate(old):
        for handle in handles:
            for state in handle.states:
                if state.mode is mode:
                    yield subtask, handle, state
