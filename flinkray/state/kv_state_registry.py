"""The queryable states of one process: which there are, and who is told of them.

Tasks register what their operators make queryable, from their own threads.  Whoever answers queries
finds a state by its id, in another thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from flinkray.core.ids import ExecutionAttemptID, JobID, KvStateID
from flinkray.core.kv_states import (
    KvStateRegistration,
    MalformedKvStateError,
    UnknownKvStateIdError,
)
from flinkray.state.backend import KeyedStateBackend
from flinkray.state.descriptors import StateDescriptor
from flinkray.state.expiry import visible
from flinkray.state.keys import key_type_of
from flinkray.state.kv_state_serializer import NO_NAMESPACE, KvStateSerializer
from flinkray.state.table import MISSING, PointReader, StateTable

ALL_JOBS = JobID(bytes(JobID.SIZE))
"""Flink's default job id: whoever listens under it hears of all jobs, and the others of none."""


class KvStateEntry:
    """A queryable state of one attempt, as other threads read it.

    Args:
        read: see :meth:`flinkray.state.table.StateTable.point_reader`.
        now: processing time in milliseconds, from any thread.
    """

    def __init__(
        self,
        registration: KvStateRegistration,
        descriptor: StateDescriptor,
        namespaced: bool,
        read: PointReader,
        now: Callable[[], int],
    ) -> None:
        self.registration = registration
        self._descriptor = descriptor
        self._namespaced = namespaced
        self._read = read
        self._now = now
        self._serializer = KvStateSerializer(descriptor)
        self._serializers: dict[int, KvStateSerializer] = {}
        """By thread."""
        self._lock = threading.Lock()
        """Held while the state is read: when it has been closed, nobody reads it any more."""
        self._is_closed = False

    def read(self, keys: Sequence[Any], namespace: Any = NO_NAMESPACE) -> list[Any]:
        """What is stored for each key, and MISSING where nothing is; default values do not count.

        Raises:
            MalformedKvStateError: the state has no namespaces and is asked for one, or the other
                way round.
            UnknownKvStateIdError: the task has ended.
        """
        if (namespace is NO_NAMESPACE) is self._namespaced:
            name, given = self.registration.name, "without" if self._namespaced else "with"
            has = "belongs to keys and namespaces" if self._namespaced else "belongs to keys alone"
            raise MalformedKvStateError(f"state {name!r} {has}, and is queried {given} a namespace")
        places = [(key, namespace) for key in keys] if self._namespaced else keys
        with self._lock:
            if self._is_closed:
                raise UnknownKvStateIdError(self.registration.kv_state_id)
            found = self._read(places)
        config = self._descriptor.ttl_config
        if config is None:
            return found
        kind, now = self._descriptor.kind, self._now()
        return [it if it is MISSING else visible(it, kind, config, now) for it in found]

    def serializer(self) -> KvStateSerializer:
        """This thread's own."""
        thread = threading.get_ident()
        serializer = self._serializers.get(thread)
        if serializer is None:
            serializer = self._serializers[thread] = self._serializer.copy()
        return serializer

    @property
    def number_of_serializers(self) -> int:
        """How many threads have one."""
        return len(self._serializers)

    def close(self) -> None:
        """When this returns, nobody reads the state any more."""
        with self._lock:
            self._is_closed = True
        self._serializers.clear()


class KvStateRegistryListener(ABC):
    """Is told of the queryable states of a job, by the threads of its tasks."""

    @abstractmethod
    def kv_state_registered(self, registration: KvStateRegistration) -> None:
        """From now on it can be queried."""

    @abstractmethod
    def kv_state_unregistered(self, registration: KvStateRegistration) -> None:
        """It cannot any more."""


class KvStateRegistry:
    """See the module; from any thread."""

    def __init__(self) -> None:
        self._entries: dict[KvStateID, KvStateEntry] = {}
        self._listeners: dict[JobID, KvStateRegistryListener] = {}

    def register_listener(self, job_id: JobID, listener: KvStateRegistryListener) -> None:
        """In place of the one that the job had, if it had one; see ALL_JOBS."""
        self._listeners[job_id] = listener

    def unregister_listener(self, job_id: JobID) -> None:
        """Idempotent."""
        self._listeners.pop(job_id, None)

    def _listener(self, job_id: JobID) -> KvStateRegistryListener | None:
        return self._listeners.get(ALL_JOBS) or self._listeners.get(job_id)

    def register(self, entry: KvStateEntry) -> None:
        """From now on it is found."""
        registration = entry.registration
        self._entries[registration.kv_state_id] = entry
        listener = self._listener(registration.job_id)
        if listener is not None:
            listener.kv_state_registered(registration)

    def unregister(self, kv_state_id: KvStateID) -> None:
        """Idempotent; when this returns, nobody reads it any more."""
        entry = self._entries.pop(kv_state_id, None)
        if entry is None:
            return
        entry.close()
        listener = self._listener(entry.registration.job_id)
        if listener is not None:
            listener.kv_state_unregistered(entry.registration)

    def get(self, kv_state_id: KvStateID) -> KvStateEntry:
        """Raises UnknownKvStateIdError: it is not here (any more)."""
        entry = self._entries.get(kv_state_id)
        if entry is None:
            raise UnknownKvStateIdError(kv_state_id)
        return entry

    def __contains__(self, kv_state_id: KvStateID) -> bool:
        return kv_state_id in self._entries

    def task_registry(
        self, job_id: JobID, attempt_id: ExecutionAttemptID, server_address: str
    ) -> TaskKvStateRegistry:
        """For one attempt."""
        return TaskKvStateRegistry(self, job_id, attempt_id, server_address)


class TaskKvStateRegistry:
    """What an attempt has registered; in its thread."""

    def __init__(
        self,
        registry: KvStateRegistry,
        job_id: JobID,
        attempt_id: ExecutionAttemptID,
        server_address: str,
    ) -> None:
        self._registry = registry
        self._job_id = job_id
        self._attempt_id = attempt_id
        self._server_address = server_address
        self._registered: list[KvStateID] = []

    def publish(
        self,
        operator_id: str,
        backend: KeyedStateBackend,
        descriptor: StateDescriptor,
        table: StateTable,
    ) -> None:
        """An operator's backend has a queryable state."""
        name = descriptor.get_queryable_state_name()
        assert name is not None
        registration = KvStateRegistration(
            self._job_id,
            self._attempt_id,
            operator_id,
            backend.key_groups.first,
            backend.key_groups.last,
            name,
            KvStateID.generate(),
            self._server_address,
            descriptor.kind,
            key_type_of(backend.hash_of),
        )
        self._registered.append(registration.kv_state_id)
        read = table.point_reader()
        self._registry.register(
            KvStateEntry(registration, descriptor, table.namespaced, read, backend.now)
        )

    def unregister_all(self) -> None:
        """Before the state is given up.  Idempotent."""
        while self._registered:
            self._registry.unregister(self._registered.pop())
