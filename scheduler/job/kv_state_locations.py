"""Keeps track of which attempts hold a job's queryable states. A registration is valid while its
attempt is the current attempt of its subtask and has not ended.  So late messages of earlier
attempts, or of another JobMaster's execution graph, are ignored; and registrations end with their
attempt, whether it unregisters them or dies."""

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
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.shared.failure import Failure


@dataclass
class _State:
    vertex_id: JobVertexID
    operator_id: str
    key_groups: int
    held: dict[int, KvStateRegistration] = field(default_factory=dict)
    """Registrations by their first key group."""


class KvStateLocationRegistry:
    """Registry of the queryable states of one execution graph. A name belongs to one operator."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        self._job_id = graph.job_graph.job_id
        self._states: dict[str, _State] = {}

    # --- questions --------------------------------------------------------------------------------

    def location(self, job_id: JobID, name: str) -> KvStateLocation:
        """Return which attempts hold the state with this name. Raises KvStateJobNotFoundError for
        another job, and UnknownKvStateLocationError if no attempt has the name now."""
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
        """Return the error for which :meth:`registered` refuses a registration; None if it accepts.

        Returns:
            KvStateNameClashError: another operator uses the name; the job fails.
            KvStateJobNotFoundError: the state belongs to another job.
            ValueError: the vertex or the key groups are unknown.
            AttemptDisposedError: the attempt is not the current attempt of its subtask, or has
                ended.
        """
        if registration.job_id != self._job_id:
            return KvStateJobNotFoundError(registration.job_id)
        vertex = self._graph.vertex(registration.vertex_id)
        if vertex is None:
            return ValueError(f"Unknown JobVertexID {registration.vertex_id}")
        first, last = registration.key_groups
        if not 0 <= first <= last < vertex.max_parallelism:
            return ValueError(
                f"state {registration.name!r}: the vertex {vertex.vertex.name!r} has "
                f"{vertex.max_parallelism} key groups, and no {registration.key_groups}"
            )
        execution = self._graph.find(registration.attempt_id)
        if execution is None or execution.state.is_terminal:
            return AttemptDisposedError(self._graph.task_text(registration.attempt_id))
        state = self._states.get(registration.name)
        if state is None or _is_of(registration, state):
            return None
        return KvStateNameClashError(registration.name, self._operator_of(state))

    def refusal_to_unregister(
        self, registration: KvStateRegistration
    ) -> FlinkRayError | ValueError | None:
        """Return the error to report for a registration that cannot be removed; None if it can be.
        It cannot be removed if it names another job, a name that is not registered or belongs to
        another operator, or key groups that are not registered."""
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
                f"Another operator ({self._operator_of(state)}) registered the KvState under "
                f"'{registration.name}'."
            )
        first, last = registration.key_groups
        held = sum(
            1 + min(r.last_key_group, last) - max(r.first_key_group, first)
            for r in _held(state)
            if not r.key_groups.intersection(registration.key_groups).is_empty
        )
        if held < 1 + last - first:
            return ValueError(
                f"Key groups {registration.key_groups} of '{registration.name}' are not "
                "registered, or not all of them. Probably registration/unregistration race."
            )
        return None

    def _operator_of(self, state: _State) -> str:
        """Return the name and id of the operator that holds the state, and its vertex, for
        users."""
        vertex = self._graph.vertex(state.vertex_id)
        assert vertex is not None
        names = {it.operator_id: f"{it}, id {it.operator_id}," for it in vertex.vertex.operators}
        operator = names.get(state.operator_id, state.operator_id)
        return f"{operator} of vertex {vertex.vertex.name!r}"

    # --- transitions ------------------------------------------------------------------------------

    def registered(self, transition: t.KvStatesRegistered, now: float) -> Steps:
        """Store the registrations that :meth:`refusal` accepts.
        A vertex whose state name belongs to another operator fails for good."""
        steps: list[t.SubtasksFailed] = []
        for registration in transition.registrations:
            refusal = self.refusal(registration)
            if refusal is None:
                self._put(registration)
            elif isinstance(refusal, KvStateNameClashError):
                steps.append(self._failed(registration, str(refusal)))
        return steps

    def _put(self, registration: KvStateRegistration) -> None:
        """Store a registration in place of overlapping ones of an earlier attempt."""
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

    def _failed(self, registration: KvStateRegistration, text: str) -> t.SubtasksFailed:
        execution = self._graph.find(registration.attempt_id)
        assert execution is not None
        failure = Failure(
            text, suppress_restarts=True, task=execution.task_name, location=execution.location
        )
        subtasks = execution.vertex.job_vertex.subtasks
        return t.SubtasksFailed(((tuple(subtask.ordinal for subtask in subtasks), failure),))

    def unregistered(self, transition: t.KvStatesUnregistered, now: float) -> Steps:
        """Remove exactly these registrations; registrations that have replaced them stay."""
        for registration in transition.registrations:
            state = self._states.get(registration.name)
            if state is not None:
                mine = registration.kv_state_id
                self._drop(registration.name, [r for r in _held(state) if r.kv_state_id == mine])
        return ()

    def attempts_over(self, transition: t.AttemptsOver, now: float) -> Steps:
        """Remove all registrations of the ended attempts."""
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


def _held(state: _State) -> list[KvStateRegistration]:
    return list(state.held.values())
