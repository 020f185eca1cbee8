"""Queries keyed state of jobs while they run.

The client asks the Dispatcher once for the location of a state. From then on it asks the processes
that hold the state. If one does not hold the state any more, the client asks for the location
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flinkray.actors.gateways.kv_states import KvStateServerGateway
from flinkray.client.client_session import session_of
from flinkray.core.durations import format_duration
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobID
from flinkray.core.kv_states import (
    KvStateLocation,
    KvStatePlace,
    UnknownKeyOrNamespaceError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
)
from flinkray.rpc.shared_calls import SharedCalls
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.errors import StateError
from flinkray.state.immutable_states import immutable_state
from flinkray.state.key_group_assignment import KEY_KINDS, key_group_of, stable_hash
from flinkray.state.key_values import as_key
from flinkray.state.kv_state_serializer import (
    NO_NAMESPACE,
    KvStateSerializer,
    serialize_keys_and_namespace,
)
from flinkray.state.table import MISSING

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 60.0
"""Seconds to search for a state that was found before and is not found at present."""
_MOST_KEYS = 1000
"""Most keys in one message, because a server has other work as well."""
_FIRST_DELAY = 0.01
_LONGEST_DELAY = 0.5
"""Longest delay in seconds between two look-ups of a location; doubled each time."""

_MOVED = (
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
"""Errors of a query after which another process may hold the state."""


class KvStateNotFoundAgainError(FlinkRayError):
    """Raised when a state that this client has found before was not found again in time: its job is
    being restarted or has lost its slots, or the process that holds the state does not answer."""

    retryable = True

    def __init__(self, job_id: JobID, name: str, seconds: float, cause: str) -> None:
        super().__init__(job_id, name, seconds, cause)
        self.job_id = job_id
        self.name = name
        self.seconds = seconds
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"state {self.name!r} of job {self.job_id} was not found again within "
            f"{format_duration(self.seconds)}: {self.cause}; look with: flinkray info {self.job_id}"
        )


@dataclass(frozen=True)
class _Query:
    job_id: JobID
    name: str
    descriptor: StateDescriptor | None
    namespace: Any
    timeout: float


class QueryableStateClient:
    """Client for the state of single keys of running jobs; can be used from any thread.

    An answer is the state at one moment, and may never be part of a checkpoint: after a failure the
    job goes back to an earlier state. Answers for several keys may be of different moments.

    >>> with flinkray.connect() as cluster:  # doctest: +SKIP
    ...     client = QueryableStateClient(cluster)
    ...     state = client.get_kv_state(job.job_id, "totals", "DE", ValueStateDescriptor("total"))
    ...     print(state.value())

    The methods raise:
        KvStateJobNotFoundError: the job is not known, or has ended.
        UnknownKvStateLocationError: the job has no state of that name, or not yet. A state that was
            found once is searched again instead, for *timeout* seconds.
        KvStateNotFoundAgainError: that search found nothing.
        UnknownKeyOrNamespaceError: nothing is stored for the key; default values do not count.
        UnsupportedKeyError: the value cannot be a key, or has not the declared type.
        MalformedKvStateError: the state has namespaces and none is given, or the other way round.
        StateError: the descriptor is of another kind or type, or the answer cannot be read here.
    """

    def __init__(self, client: ClusterClient) -> None:
        """Create a client for queries.
        Closing *client*, the cluster's client, ends this client, too.
        """
        self._session = session_of(client)
        self._locations: dict[tuple[JobID, str], KvStateLocation] = {}
        self._looking = SharedCalls[tuple[JobID, str], KvStateLocation]()
        self._known: set[tuple[JobID, str]] = set()
        """States that were found at least once."""
        self._servers: dict[str, KvStateServerGateway] = {}

    def get_kv_state(
        self,
        job_id: JobID | str,
        name: str,
        key: Any,
        descriptor: StateDescriptor | None = None,
        namespace: Any = NO_NAMESPACE,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Any:
        """Return the state of one key, for reading only.

        Value state has ``value()``. List, reducing and aggregating state have ``get()``. Map state
        has the methods of a dictionary.

        Args:
            name: the name under which the job has made the state queryable.
            descriptor: the descriptor that the job has. None: values are read as they were written,
                and aggregating state gives its accumulator.
            namespace: the window, for state that belongs to windows.
            timeout: seconds to search for the state again when it is not at its known place.
        """
        query = _query(job_id, name, descriptor, namespace, timeout)
        return self._session.run(self._one(query, key))

    async def get_kv_state_async(
        self,
        job_id: JobID | str,
        name: str,
        key: Any,
        descriptor: StateDescriptor | None = None,
        namespace: Any = NO_NAMESPACE,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Any:
        """Return the state of one key, for reading only, from code on an event loop. Arguments and
        result are those of :meth:`get_kv_state`."""
        query = _query(job_id, name, descriptor, namespace, timeout)
        return await asyncio.wrap_future(self._session.start(self._one(query, key)))

    def get_kv_states(
        self,
        job_id: JobID | str,
        name: str,
        keys: Sequence[Any],
        descriptor: StateDescriptor | None = None,
        namespace: Any = NO_NAMESPACE,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[Any]:
        """Return the states of many keys, in the order of the keys, with few messages. The state of
        a key for which nothing is stored is None."""
        query = _query(job_id, name, descriptor, namespace, timeout)
        return self._session.run(self._many(query, keys))

    async def get_kv_states_async(
        self,
        job_id: JobID | str,
        name: str,
        keys: Sequence[Any],
        descriptor: StateDescriptor | None = None,
        namespace: Any = NO_NAMESPACE,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[Any]:
        """Return the states of many keys, in the order of the keys, from code on an event loop.
        Arguments and result are those of :meth:`get_kv_states`."""
        query = _query(job_id, name, descriptor, namespace, timeout)
        return await asyncio.wrap_future(self._session.start(self._many(query, keys)))

    # --- on the client's event loop ---------------------------------------------------------------

    async def _one(self, query: _Query, key: Any) -> Any:
        [state] = await self._many(query, [key])
        if state is None:
            raise UnknownKeyOrNamespaceError(query.name)
        return state

    async def _many(self, query: _Query, keys: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        left = list(range(len(keys)))
        now = self._session.rpc_service.deadlines.time
        deadline, delay = now() + query.timeout, _FIRST_DELAY
        while left:
            try:
                location = await self._location(query)
                kind = location.kind
                failure = await self._ask_all(query, location, keys, left, found)
                if failure is None:
                    return [_state(kind, found[place], query) for place in range(len(keys))]
                self._forget(query, location)
            except UnknownKvStateLocationError as error:
                if (query.job_id, query.name) not in self._known:
                    raise
                failure = error
            left = [place for place in left if place not in found]
            if now() + delay > deadline:
                raise KvStateNotFoundAgainError(
                    query.job_id, query.name, query.timeout, str(failure)
                ) from failure
            await self._session.rpc_service.pause(delay)
            delay = min(2 * delay, _LONGEST_DELAY)
        return []

    async def _ask_all(
        self,
        query: _Query,
        location: KvStateLocation,
        keys: Sequence[Any],
        left: Sequence[int],
        found: dict[int, Any],
    ) -> FlinkRayError | None:
        """Query the keys at the indices in *left*, and store the answers in *found*, by index.
        Return the last error that suggests that the state has moved to another process. None: every
        key has an answer."""
        failure: FlinkRayError | None = None
        by_place, missing = _by_place(location, keys, left)
        if missing is not None:
            failure = UnknownKvStateKeyGroupLocationError(location.name, missing)
        answers = await asyncio.gather(
            *(
                self._ask(query, place, part, found)
                for place, of_place in by_place.items()
                for part in _parts(of_place)
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, _MOVED) or not answer.retryable:
                    raise answer
                failure = answer
        return failure

    async def _ask(
        self,
        query: _Query,
        place: KvStatePlace,
        part: Sequence[tuple[int, Any]],
        found: dict[int, Any],
    ) -> None:
        request = serialize_keys_and_namespace([key for _, key in part], query.namespace)
        try:
            server = await self._server(place.server_address)
            answer = await server.query_kv_state(place.kv_state_id, request)
        except UnknownKeyOrNamespaceError:
            found.update((index, MISSING) for index, _ in part)
            return
        except FrameTooLargeError:
            if len(part) == 1:
                raise
            middle = len(part) // 2
            await self._ask(query, place, part[:middle], found)
            await self._ask(query, place, part[middle:], found)
            return
        except RpcError:
            self._servers.pop(place.server_address, None)
            raise
        contents = iter(KvStateSerializer(query.descriptor).deserialize(answer.contents))
        nothing = set(answer.missing)
        for number, (index, _) in enumerate(part):
            found[index] = MISSING if number in nothing else next(contents)

    async def _server(self, address: str) -> KvStateServerGateway:
        server = self._servers.get(address)
        if server is None:
            server = await self._session.rpc_service.connect(address, KvStateServerGateway)
            self._servers[address] = server
        return server

    async def _location(self, query: _Query) -> KvStateLocation:
        """Return the location of the queried state: the cached one, or that of a look-up, which
        concurrent queries share. Raises StateError: the state is of another kind than the query's
        descriptor."""
        wanted = query.job_id, query.name
        location = self._locations.get(wanted)
        if location is None:
            location = await self._looking.result(wanted, partial(self._look, query))
        descriptor = query.descriptor
        if descriptor is not None and descriptor.kind != location.kind:
            raise StateError(
                f"state {query.name!r} of job {query.job_id} is {location.kind} state and is "
                f"queried with {descriptor!r}: give the descriptor that the job has"
            )
        return location

    async def _look(self, query: _Query) -> KvStateLocation:
        location = await self._session.dispatcher.ask(
            f"find state {query.name!r} of job {query.job_id}",
            lambda gateway: gateway.request_kv_state_location(query.job_id, query.name),
            query.timeout,
        )
        self._locations[query.job_id, query.name] = location
        self._known.add((query.job_id, query.name))
        return location

    def _forget(self, query: _Query, location: KvStateLocation) -> None:
        if self._locations.get((query.job_id, query.name)) is location:
            del self._locations[query.job_id, query.name]


def _query(
    job_id: JobID | str,
    name: str,
    descriptor: StateDescriptor | None,
    namespace: Any,
    timeout: float,
) -> _Query:
    if isinstance(job_id, str):
        job_id = JobID.from_hex(job_id)
    return _Query(job_id, name, descriptor, namespace, timeout)


def _by_place(
    location: KvStateLocation, keys: Sequence[Any], left: Sequence[int]
) -> tuple[dict[KvStatePlace, list[tuple[int, Any]]], int | None]:
    """Group the keys at the indices in *left* by the process that holds their state. Return
    (process -> list of (index, key converted to the state's key type), number of a key group that
    no process holds, or None). Raises UnsupportedKeyError: a key cannot be converted."""
    kind = None if location.key_type is None else KEY_KINDS[location.key_type]
    convert, hash_of = (as_key, stable_hash) if kind is None else (kind.value_of, kind.hash_of)
    by_place: dict[KvStatePlace, list[tuple[int, Any]]] = {}
    missing: int | None = None
    for index in left:
        key = convert(keys[index])
        group = key_group_of(key, location.number_of_key_groups, hash_of)
        place = location.place_of(group)
        if place is None:
            missing = group
        else:
            by_place.setdefault(place, []).append((index, key))
    return by_place, missing


def _parts(of_place: list[tuple[int, Any]]) -> list[list[tuple[int, Any]]]:
    return [of_place[begin : begin + _MOST_KEYS] for begin in range(0, len(of_place), _MOST_KEYS)]


def _state(kind: str, contents: Any, query: _Query) -> Any:
    return None if contents is MISSING else immutable_state(kind, contents, query.descriptor)
