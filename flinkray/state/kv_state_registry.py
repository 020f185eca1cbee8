"""The queryable states of one process, and the listeners that are notified of changes.

Tasks register their states in the tasks' threads. The query server looks up states by id in its own
thread.
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
from flinkray.state.key_group_assignment import key_type_of
from flinkray.state.kv_state_serializer import NO_NAMESPACE, KvStateSerializer
from flinkray.state.table import MISSING, PointReader, StateTable

ALL_JOBS = JobID(bytes(JobID.SIZE))
"""Flink's default job id: a listener with this id is notified of all jobs, instead of others."""


class Registered:
    """What an attempt of a task has registered, and which others find by its name: a queryable
    state, or a replica of a model, which is no state and answers no queries."""

    def __init__(self, registration: KvStateRegistration) -> None:
        self.registration = registration

    def close(self) -> None:
        """Called when others must not find it any more."""


class KvStateEntry(Registered):
    """A queryable state of one attempt of a task, which other threads read.
    *read*: see :meth:`flinkray.state.table.StateTable.point_reader`; *now*: returns processing time
    in milliseconds, on any thread."""

    def __init__(
        self,
        registration: KvStateRegistration,
        descriptor: StateDescriptor,
        namespaced: bool,
        read: PointReader,
        now: Callable[[], int],
    ) -> None:
        super().__init__(registration)
        self._descriptor = descriptor
        self._namespaced = namespaced
        self._read = read
        self._now = now
        self._serializer = KvStateSerializer(descriptor)
        self._serializers: dict[int, KvStateSerializer] = {}
        """Serializers by thread."""
        self._lock = threading.Lock()
        """A lock, held while the state is read, so that nobody reads it after :meth:`close`."""
        self._is_closed = False

    def read(self, keys: Sequence[Any], namespace: Any = NO_NAMESPACE) -> list[Any]:
        """Return the contents of each key; MISSING for a key without stored contents (a
        descriptor's default value is not stored). Raises MalformedKvStateError: a namespace is
        given but the state has none, or the state needs one. UnknownKvStateIdError: the task has
        ended."""
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
        thread = threading.get_ident()
        serializer = self._serializers.get(thread)
        if serializer is None:
            serializer = self._serializers[thread] = self._serializer.copy()
        return serializer

    def close(self) -> None:
        """Forbid further reads, because the state ends. Waits for a read that is in progress."""
        with self._lock:
            self._is_closed = True
        self._serializers.clear()


class KvStateRegistryListener(ABC):
    """Is called when a state of a job becomes queryable, or stops being queryable.
    The threads of the job's tasks call the methods."""

    @abstractmethod
    def kv_state_registered(self, registration: KvStateRegistration) -> None:
        """Called when a state can be queried."""

    @abstractmethod
    def kv_state_unregistered(self, registration: KvStateRegistration) -> None:
        """Called when a state cannot be queried any more."""


class KvStateRegistry:
    """Keeps all queryable states of this process. Any thread may call the methods."""

    def __init__(self) -> None:
        self._entries: dict[KvStateID, Registered] = {}
        self._listeners: dict[JobID, KvStateRegistryListener] = {}

    def register_listener(self, job_id: JobID, listener: KvStateRegistryListener) -> None:
        """Set the listener that is told of the queryable states of a job. It replaces an earlier
        listener. *job_id* may be :data:`ALL_JOBS`."""
        self._listeners[job_id] = listener

    def unregister_listener(self, job_id: JobID) -> None:
        self._listeners.pop(job_id, None)

    def _listener(self, job_id: JobID) -> KvStateRegistryListener | None:
        return self._listeners.get(ALL_JOBS) or self._listeners.get(job_id)

    def register(self, entry: Registered) -> None:
        registration = entry.registration
        self._entries[registration.kv_state_id] = entry
        listener = self._listener(registration.job_id)
        if listener is not None:
            listener.kv_state_registered(registration)

    def unregister(self, kv_state_id: KvStateID) -> None:
        """Remove a state, if it is registered, and notify the listener.
        After the return, nobody reads the state any more."""
        entry = self._entries.pop(kv_state_id, None)
        if entry is None:
            return
        entry.close()
        listener = self._listener(entry.registration.job_id)
        if listener is not None:
            listener.kv_state_unregistered(entry.registration)

    def get(self, kv_state_id: KvStateID) -> KvStateEntry:
        """Return a registered state.
        Raises UnknownKvStateIdError if no state has that id (any more)."""
        entry = self._entries.get(kv_state_id)
        if not isinstance(entry, KvStateEntry):
            raise UnknownKvStateIdError(kv_state_id)
        return entry

    def __contains__(self, kv_state_id: KvStateID) -> bool:
        return kv_state_id in self._entries

    def task_registry(
        self, job_id: JobID, attempt_id: ExecutionAttemptID, server_address: str
    ) -> TaskKvStateRegistry:
        """Return a registry with which one attempt of a task registers its states."""
        return TaskKvStateRegistry(self, job_id, attempt_id, server_address)


class TaskKvStateRegistry:
    """Registers the queryable states of one attempt; used in the attempt's thread."""

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
        """Register a queryable state of an operator's backend."""
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
        """Remove all states of the attempt from the registry, before the states are discarded.
        Further calls do nothing."""
        while self._registered:
            self._registry.unregister(self._registered.pop())
