"""Where the queryable states of a job are: what its attempts have registered.

A registration is good as long as its attempt is the current one of its subtask and has not ended.
So nothing that an earlier attempt says late, or one of another JobMaster's execution graph, is
taken for what is there now; and what an attempt has registered goes with it, whether it says so or
dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flinkray.core.errors import AttemptDisposedError, FlinkRayError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.core.kv_states import (
    KvStateJobNotFoundError,
    KvStateLocation,
    KvStateNameClashError,
    KvStatePlace,
    KvStateRegistration,
    UnknownKvStateLocationError,
)
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.job.transitions import (
    AttemptsOver,
    KvStatesRegistered,
    KvStatesUnregistered,
    SubtasksFailed,
)
from flinkray.scheduler.shared.failure import Failure


@dataclass
class _State:
    """A name, and who has registered it for which key groups."""

    vertex_id: JobVertexID
    operator_id: str
    key_groups: int
    held: dict[int, KvStateRegistration] = field(default_factory=dict)
    """By their first key group."""


class KvStateLocationRegistry:
    """Of one execution graph.  A name is that of one operator of the job."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        self._job_id = graph.job_graph.job_id
        self._states: dict[str, _State] = {}

    # --- questions --------------------------------------------------------------------------------

    def location(self, job_id: JobID, name: str) -> KvStateLocation:
        """
        Raises:
            KvStateJobNotFoundError: that is another job.
            UnknownKvStateLocationError: nobody has registered the name, or nobody has it now.
        """
        if job_id != self._job_id:
            raise KvStateJobNotFoundError(job_id)
        state = self._states.get(name)
        if state is None:
            raise UnknownKvStateLocationError(name)
        held = [state.held[first] for first in sorted(state.held)]
        places = tuple(
            KvStatePlace(r.first_key_group, r.last_key_group, r.kv_state_id, r.server_address)
            for r in held
        )
        kind, key_type = held[0].kind, held[0].key_type
        return KvStateLocation(
            job_id, state.vertex_id, name, state.key_groups, kind, key_type, places
        )

    def refusal(self, registration: KvStateRegistration) -> FlinkRayError | ValueError | None:
        """Why :meth:`registered` does not take it; None: it does.

        A KvStateNameClashError: the job fails by it.  Of another job, a KvStateJobNotFoundError; of
        a vertex, or key groups, that there are not, a ValueError; an AttemptDisposedError if its
        attempt is not the current one of its subtask, or has ended.
        """
        if registration.job_id != self._job_id:
            return KvStateJobNotFoundError(registration.job_id)
        vertex = self._graph.vertex(registration.vertex_id)
        if vertex is None:
            return ValueError(f"Unknown JobVertexID {registration.vertex_id}")
        first, last = registration.key_groups
        if not 0 <= first <= last < vertex.max_parallelism:
            return ValueError(
                f"state {registration.name!r}: the vertex has {vertex.max_parallelism} key groups, "
                f"and no {registration.key_groups}"
            )
        execution = self._graph.find(registration.attempt_id)
        if execution is None or execution.state.is_terminal:
            return AttemptDisposedError(str(registration.attempt_id))
        state = self._states.get(registration.name)
        if state is None or _is_of(registration, state):
            return None
        return KvStateNameClashError(registration.name, _operator_of(state))

    def refusal_to_unregister(
        self, registration: KvStateRegistration
    ) -> FlinkRayError | ValueError | None:
        """Why :meth:`unregistered` changes nothing by it, if that is the caller's fault: the job is
        another one, or nobody, or another operator, has registered the name."""
        if registration.job_id != self._job_id:
            return KvStateJobNotFoundError(registration.job_id)
        state = self._states.get(registration.name)
        if state is None:
            return ValueError(
                f"Unknown registration name '{registration.name}'. Probably "
                "registration/unregistration race."
            )
        if not _is_of(registration, state):
            return ValueError(
                f"Another operator ({_operator_of(state)}) registered the KvState under "
                f"'{registration.name}'."
            )
        return None

    # --- transitions ------------------------------------------------------------------------------

    def registered(self, transition: KvStatesRegistered, now: float) -> Steps:
        """Those that :meth:`refusal` has nothing against.  A vertex with a second operator of a
        name fails for good."""
        steps: list[SubtasksFailed] = []
        for registration in transition.registrations:
            refusal = self.refusal(registration)
            if refusal is None:
                self._put(registration)
            elif isinstance(refusal, KvStateNameClashError):
                steps.append(self._failed(registration, str(refusal)))
        return steps

    def _put(self, registration: KvStateRegistration) -> None:
        """In place of what overlaps with it, of an attempt before."""
        state = self._states.get(registration.name)
        if state is None:
            vertex = self._graph.vertex(registration.vertex_id)
            assert vertex is not None
            state = self._states[registration.name] = _State(
                registration.vertex_id, registration.operator_id, vertex.max_parallelism
            )
        for held in _held(state):
            if not held.key_groups.intersection(registration.key_groups).is_empty:
                del state.held[held.first_key_group]
        state.held[registration.first_key_group] = registration

    def _failed(self, registration: KvStateRegistration, text: str) -> SubtasksFailed:
        execution = self._graph.find(registration.attempt_id)
        assert execution is not None
        failure = Failure(
            text, suppress_restarts=True, task=execution.task_name, location=execution.location
        )
        subtasks = execution.vertex.job_vertex.subtasks
        return SubtasksFailed(((tuple(subtask.ordinal for subtask in subtasks), failure),))

    def unregistered(self, transition: KvStatesUnregistered, now: float) -> Steps:
        """Only what is held by these very registrations."""
        for registration in transition.registrations:
            state = self._states.get(registration.name)
            if state is not None:
                mine = registration.kv_state_id
                self._drop(registration.name, [r for r in _held(state) if r.kv_state_id == mine])
        return ()

    def attempts_over(self, transition: AttemptsOver, now: float) -> Steps:
        """Whatever they have registered goes with them."""
        if self._states:
            ended = {execution.attempt_id for execution in transition.executions}
            for name, state in tuple(self._states.items()):
                self._drop(name, [r for r in _held(state) if r.attempt_id in ended])
        return ()

    def _drop(self, name: str, registrations: Sequence[KvStateRegistration]) -> None:
        state = self._states[name]
        for registration in registrations:
            del state.held[registration.first_key_group]
        if not state.held:
            del self._states[name]


def _is_of(registration: KvStateRegistration, state: _State) -> bool:
    mine = registration.vertex_id, registration.operator_id
    return mine == (state.vertex_id, state.operator_id)


def _operator_of(state: _State) -> str:
    return f"{state.operator_id} of vertex {state.vertex_id}"


def _held(state: _State) -> list[KvStateRegistration]:
    return list(state.held.values())
