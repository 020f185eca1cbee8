"""Gateways of queryable state: registration of states, and queries for them."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.ids import JobID, KvStateID
from flinkray.core.kv_states import KvStateLocation, KvStateRegistration
from flinkray.core.message import message
from flinkray.rpc.gateway import RpcGateway, ask_timeout, runs_to_completion

QUERY_TIMEOUT = 5.0
"""Seconds of waiting for an answer after which a client checks whether the state has moved."""


class KvStateRegistryGateway(RpcGateway):
    """The part of the JobMaster's gateway with which tasks register their queryable states."""

    @abstractmethod
    @runs_to_completion
    async def notify_kv_states_registered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        """Register states, which can be queried from now on. Idempotent.

        Raises:
            KvStateJobNotFoundError: the JobMaster runs another job.
            KvStateNameClashError: two operators have registered the same name. The job fails.
            ValueError: there is no such vertex, or the vertex has no such key groups.
            AttemptDisposedError: an attempt is not the current attempt of its subtask. The other
                registrations in the call take effect.
        """

    @abstractmethod
    @runs_to_completion
    async def notify_kv_states_unregistered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        """Unregister states. The states of ended attempts are removed without this call.

        Raises:
            KvStateJobNotFoundError: the JobMaster runs another job.
            ValueError: a name is not registered, or another operator has registered it.
        """


class KvStateLocationOracle(RpcGateway):
    """The part of the JobMaster's gateway that locates the queryable states of its job."""

    @abstractmethod
    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        """Return the location of the state of that name.

        Raises:
            KvStateJobNotFoundError: the JobMaster runs another job.
            UnknownKvStateLocationError: no task holds a state of that name at present.
        """


@message
class KvStateAnswer:
    """The values that a queryable state has for the keys of a query."""

    missing: tuple[int, ...]
    """Positions, in the request, of the keys that have no value."""
    contents: bytes
    """Values of the other keys, in order; see :mod:`flinkray.state.kv_state_serializer`."""


class KvStateServerGateway(RpcGateway):
    """Answers queries in the process that holds the state, while the task may change the state."""

    @abstractmethod
    @ask_timeout(QUERY_TIMEOUT)
    async def query_kv_state(
        self, kv_state_id: KvStateID, keys_and_namespace: bytes
    ) -> KvStateAnswer:
        """Return the present value of each key. The values of several keys are no consistent
        snapshot.

        Raises:
            UnknownKvStateIdError: the state is not, or no longer, in this process.
            UnknownKeyOrNamespaceError: there is no value for any of the keys.
            MalformedKvStateError: these are not keys, or the state has no namespace or needs one.
            StateError: the values cannot be sent.
        """
