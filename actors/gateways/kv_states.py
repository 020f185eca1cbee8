"""The contracts of queryable state: who is told where it is, and who answers for it."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.ids import JobID, KvStateID
from flinkray.core.kv_states import KvStateLocation, KvStateRegistration
from flinkray.core.message import message
from flinkray.rpc.gateway import RpcGateway, ask_timeout, runs_to_completion

QUERY_TIMEOUT = 5.0
"""Seconds until whoever queries looks whether the state is elsewhere by now."""


class KvStateRegistryGateway(RpcGateway):
    """Of a JobMaster: is told by its tasks which states they hold."""

    @abstractmethod
    @runs_to_completion
    async def notify_kv_states_registered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        """They can be queried.  The same again changes nothing.

        Raises:
            KvStateJobNotFoundError: that is another job.
            KvStateNameClashError: two operators have the same name; the job fails by it.
            ValueError: there is no such vertex, or it has no such key groups.
            AttemptDisposedError: an attempt is not (any more) the current one of its subtask.  All
                that is registered with one of these is taken but for what it is raised for.
        """

    @abstractmethod
    @runs_to_completion
    async def notify_kv_states_unregistered(
        self, job_id: JobID, registrations: tuple[KvStateRegistration, ...]
    ) -> None:
        """They cannot be queried any more.  What attempts hold that have ended is forgotten without
        that.

        Raises:
            KvStateJobNotFoundError: that is another job.
            ValueError: nobody, or another operator, has registered a name.
        """


class KvStateLocationOracle(RpcGateway):
    """Of a JobMaster: knows where the states of its job are."""

    @abstractmethod
    async def request_kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        """
        Raises:
            KvStateJobNotFoundError: that is another job.
            UnknownKvStateLocationError: nobody holds a state of that name at present.
        """


@message
class KvStateAnswer:
    """What is stored for some keys."""

    missing: tuple[int, ...]
    """Places, in the request, of the keys for which nothing is."""
    contents: bytes
    """Of the others, in their order; see :mod:`flinkray.state.kv_state_serializer`."""


class KvStateServerGateway(RpcGateway):
    """Of the process that holds a state: answers for it, beside the task that changes it."""

    @abstractmethod
    @ask_timeout(QUERY_TIMEOUT)
    async def query_kv_state(
        self, kv_state_id: KvStateID, keys_and_namespace: bytes
    ) -> KvStateAnswer:
        """What is stored at this moment, for each key by itself.

        Raises:
            UnknownKvStateIdError: it is not here (any more).
            UnknownKeyOrNamespaceError: nothing is stored for any of the keys.
            MalformedKvStateError: these are no keys, or the state has no namespace or needs one.
            StateError: what is stored cannot be sent.
        """
