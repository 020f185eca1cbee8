"""Queryable state in a task process: answers queries, and reports where the states are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from flinkray.actors.gateways.kv_states import KvStateAnswer
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.shared.notifications import BatchedSender
from flinkray.core.errors import (
    FlinkRayError,
    FrameTooLargeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import JobID, KvStateID
from flinkray.core.kv_states import KvStateRegistration, UnknownKeyOrNamespaceError
from flinkray.rpc import RpcEndpoint
from flinkray.state.kv_state_registry import KvStateRegistry, KvStateRegistryListener
from flinkray.state.kv_state_serializer import deserialize_keys_and_namespace
from flinkray.state.table import MISSING
from flinkray.state.thread_turns import shorten_turns

log = logging.getLogger(__name__)

_MOST_NEWS = 500
"""Largest number of registered states in one message."""
_RETRY_DELAY = 0.1
"""Seconds until a message to the JobMaster is repeated."""


class KvStateRequestStats:
    """Number of queries of queryable states: all, answered and failed."""

    def __init__(self) -> None:
        self.requests = 0
        self.successful = 0
        self.failed = 0


class KvStateServer:
    """Answers queries for the queryable states of this process.
    Lives on the main thread of its process, beside the threads of the tasks.
    """

    def __init__(self, registry: KvStateRegistry) -> None:
        self._registry = registry
        self.stats = KvStateRequestStats()

    def query(self, kv_state_id: KvStateID, keys_and_namespace: bytes) -> KvStateAnswer:
        """Answer a query; see :meth:`KvStateServerGateway.query_kv_state`."""
        self.stats.requests += 1
        self.stats.failed += 1  # until it is answered
        answer = self._answer(kv_state_id, keys_and_namespace)
        self.stats.failed -= 1
        self.stats.successful += 1
        return answer

    def _answer(self, kv_state_id: KvStateID, keys_and_namespace: bytes) -> KvStateAnswer:
        entry = self._registry.get(kv_state_id)
        keys, namespace = deserialize_keys_and_namespace(keys_and_namespace)
        found = entry.read(keys, namespace)
        kept = [it for it in found if it is not MISSING]
        if not kept:
            raise UnknownKeyOrNamespaceError(entry.registration.name)
        missing = [place for place, it in enumerate(found) if it is MISSING]
        return KvStateAnswer(tuple(missing), entry.serializer().serialize(kept))


@dataclass(frozen=True)
class _News:
    registration: KvStateRegistration
    is_registered: bool

    @property
    def job_id(self) -> JobID:
        return self.registration.job_id


class KvStateReporter(KvStateRegistryListener):
    """Reports to JobMasters which queryable states the tasks of this process have.
    The reports are sent in order, through the TaskExecutor.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        registry: KvStateRegistry,
        task_executor: TaskProcessListenerGateway,
        switch_interval: float,
    ) -> None:
        """Create the reporter.
        *switch_interval* is the number of seconds for which a thread keeps Python's lock when
        others want it. It applies from the first queryable state on.
        """
        self._endpoint = endpoint
        self._registry = registry
        self._task_executor = task_executor
        self._switch_interval = switch_interval
        self._news: BatchedSender[_News] = BatchedSender(
            endpoint, self._tell, _MOST_NEWS, lambda news: news
        )

    def kv_state_registered(self, registration: KvStateRegistration) -> None:
        if self._endpoint.rpc_service.has_own_process:
            shorten_turns(self._switch_interval)
        self._add(_News(registration, is_registered=True))

    def kv_state_unregistered(self, registration: KvStateRegistration) -> None:
        self._add(_News(registration, is_registered=False))

    def _add(self, news: _News) -> None:
        with suppress(RuntimeError):  # the process ends
            self._endpoint.rpc_service.loop.call_soon_threadsafe(self._news.add, (news,))

    async def _tell(self, batch: tuple[_News, ...]) -> None:
        for (job_id, is_registered), alike in groupby(batch, attrgetter("job_id", "is_registered")):
            registrations = [news.registration for news in alike]
            if is_registered:
                await self._tell_of_registered(job_id, registrations)
            else:
                await self._tell_of_unregistered(job_id, registrations)

    async def _tell_of_registered(
        self, job_id: JobID, registrations: Sequence[KvStateRegistration]
    ) -> None:
        notify = self._task_executor.notify_kv_states_registered
        while there := tuple(r for r in registrations if r.kv_state_id in self._registry):
            try:
                await notify(job_id, there)
                return
            except FrameTooLargeError:
                raise  # the sender makes smaller messages
            except (RpcTimeoutError, RpcConnectionError, RecipientUnreachableError, TaskError) as e:
                # if the JobMaster is gone, the tasks are cancelled soon
                log.info("queryable states of job %s are registered again: %s", job_id, e)
                await self._endpoint.rpc_service.pause(_RETRY_DELAY)
            except (FlinkRayError, ValueError) as error:
                log.warning("queryable states of job %s: %s", job_id, error)
                return

    async def _tell_of_unregistered(
        self, job_id: JobID, registrations: Sequence[KvStateRegistration]
    ) -> None:
        """Report that states are gone. Not repeated if it fails: the JobMaster drops the states of
        ended attempts by itself."""
        notify = self._task_executor.notify_kv_states_unregistered
        try:
            await notify(job_id, tuple(registrations))
        except FrameTooLargeError:
            raise
        except (FlinkRayError, ValueError) as error:
            log.info("queryable states of job %s: %s", job_id, error)
