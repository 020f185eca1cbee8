"""Defines the messages and errors of queryable state.

Error texts that begin with the name of a Flink class are Flink's, so that programs that look for
these texts find them.
"""

from __future__ import annotations

from flinkray.core.errors import FlinkRayError, JobNotFoundError
from flinkray.core.ids import ExecutionAttemptID, JobID, JobVertexID, KvStateID
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.core.message import message


@message
class KvStateRegistration:
    """Reports that an attempt serves the key groups of a queryable state under ``name``."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    operator_id: str
    """Id of the operator in the vertex that the state belongs to."""
    first_key_group: int
    last_key_group: int
    name: str
    """Name by which the state is queried; the operator may use another name for the state."""
    kv_state_id: KvStateID
    server_address: str
    """Address of the endpoint that answers queries."""
    kind: str
    """Kind of the state's descriptor: value, list, map, reducing or aggregating."""
    key_type: str | None
    """Declared type of the keys: a name in ``key_group_assignment.KEY_KINDS``. None: any type."""

    @property
    def vertex_id(self) -> JobVertexID:
        return self.attempt_id.vertex.job_vertex_id

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)


@message
class KvStatePlace:
    """Tells which state server answers for the key groups ``first`` to ``last`` inclusive of a
    state."""

    first_key_group: int
    last_key_group: int
    kv_state_id: KvStateID
    server_address: str


@message
class KvStateLocation:
    """Tells which servers answer for the key groups of a state at the moment of the lookup.
    Some key groups may have no server, for example while their task restarts."""

    job_id: JobID
    vertex_id: JobVertexID
    name: str
    number_of_key_groups: int
    """The max parallelism of the vertex."""
    kind: str
    key_type: str | None
    places: tuple[KvStatePlace, ...]
    """Which server answers for which key groups, in ascending order of key groups."""

    @property
    def number_of_registered_key_groups(self) -> int:
        """The number of key groups for which a server answers at present."""
        return sum(place.last_key_group - place.first_key_group + 1 for place in self.places)

    def place_of(self, key_group: int) -> KvStatePlace | None:
        """Return the server that answers for a key group; None if no server answers for it at
        present. Raises IndexError: there is no such key group."""
        if not 0 <= key_group < self.number_of_key_groups:
            raise IndexError(
                f"state {self.name!r} has {self.number_of_key_groups} key groups, and no "
                f"{key_group}"
            )
        for place in self.places:
            if place.first_key_group <= key_group <= place.last_key_group:
                return place
        return None


class KvStateJobNotFoundError(JobNotFoundError):
    """The job whose state is queried is not known, or has ended."""

    def __init__(self, job_id: JobID, text: str = "") -> None:
        text = text or f"FlinkJobNotFoundException: Could not find Flink job ({job_id})"
        super().__init__(job_id, text)

    def __str__(self) -> str:
        return self.text


class UnknownKvStateLocationError(FlinkRayError):
    """The job has no queryable state of that name at present.
    No operator has made a state queryable under that name, or the operator is not running."""

    retryable = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            "UnknownKvStateLocation: No KvStateLocation found for KvState instance with name "
            f"'{self.name}'. It is there when an operator that calls set_queryable({self.name!r}), "
            "or as_queryable_state, has asked for it"
        )


class UnknownKvStateKeyGroupLocationError(FlinkRayError):
    """The subtask that owns the key is not running at this moment."""

    retryable = True

    def __init__(self, name: str, key_group: int) -> None:
        super().__init__(name, key_group)
        self.name = name
        self.key_group = key_group

    def __str__(self) -> str:
        return (
            f"UnknownKvStateKeyGroupLocation: nobody holds key group {self.key_group} of state "
            f"'{self.name}' at present: the task is being restarted, or has finished"
        )


class UnknownKvStateIdError(FlinkRayError):
    """The server does not hold the state any more: its task has ended. Ask for the location
    again."""

    retryable = True

    def __init__(self, kv_state_id: KvStateID) -> None:
        super().__init__(kv_state_id)
        self.kv_state_id = kv_state_id

    def __str__(self) -> str:
        return f"UnknownKvStateId: there is no KvState with id {self.kv_state_id} here (any more)"


class UnknownKeyOrNamespaceError(FlinkRayError):
    """Nothing is stored for this key (and namespace, if any). Default values do not count."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"UnknownKeyOrNamespace: state '{self.name}' holds nothing for this key and namespace"
        )


class KvStateNameClashError(FlinkRayError):
    """Two operators made a state queryable under the same name. The job has failed."""

    def __init__(self, name: str, operator: str) -> None:
        super().__init__(name, operator)
        self.name = name
        self.operator = operator

    def __str__(self) -> str:
        return (
            f"Registration name clash. KvState with name '{self.name}' has already been registered "
            f"by another operator ({self.operator}): give one of the two another name in "
            "set_queryable or as_queryable_state"
        )


class MalformedKvStateError(FlinkRayError, OSError):
    """The bytes of a key, namespace or answer are cut short, too long, or of another form."""
