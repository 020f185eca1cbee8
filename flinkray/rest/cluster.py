"""The endpoint's view of its cluster, with requests that many clients share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.core.errors import ConfigurationError, JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.scheduler.reports.job_info import (
    ClusterNumbers,
    ClusterOverview,
    JobDetails,
    JobOverview,
    JobSettings,
)

T = TypeVar("T")


class Cluster(Protocol):
    """Sends calls to the leading Dispatcher."""

    async def ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None,
    ) -> T:
        """Make *call* on the leading Dispatcher; return its result or raise its error. *question*
        names the call in error messages. *timeout* is in seconds; None: wait as long as there is a
        Dispatcher. Raises RpcError: no Dispatcher has answered."""
        ...


@dataclass(slots=True)
class _Look:
    answer: asyncio.Future[Any]
    expires: float
    """The time at which the answer expires, by the loop's clock."""


class SharedLooks:
    """Lets callers that ask the cluster for the same thing share one request (RE-12). An answer is
    used for *lifetime* seconds from the time of its request. An error is raised for the callers
    that wait for the request, and is not stored. Use it on one event loop."""

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime
        self._looks: dict[Hashable, _Look] = {}

    async def look(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return the answer for *key*: a stored one that is not too old, that of a running request,
        or that of a new call of *fetch*. If a caller is cancelled, the other callers still get the
        answer."""
        loop = asyncio.get_running_loop()
        look = self._looks.get(key)
        if look is None or (look.answer.done() and look.expires <= loop.time()):
            answer = asyncio.ensure_future(fetch())
            look = self._looks[key] = _Look(answer, loop.time() + self._lifetime)
            answer.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(look.answer)

    def answer_to(self, key: Hashable) -> Any:
        """Return the stored answer for *key*. None: there is no answer, or it is too old."""
        look = self._looks.get(key)
        if look is None or look.expires <= asyncio.get_running_loop().time():
            return None
        return look.answer.result() if _has_succeeded(look.answer) else None

    def _answered(self, key: Hashable, answer: asyncio.Future[Any]) -> None:
        if _has_succeeded(answer):
            loop = asyncio.get_running_loop()
            loop.call_later(self._lifetime, self._forget, key, answer)
        else:
            self._forget(key, answer)

    def _forget(self, key: Hashable, answer: asyncio.Future[Any]) -> None:
        look = self._looks.get(key)
        if look is not None and look.answer is answer:
            del self._looks[key]

    def close(self) -> None:
        """Cancel the running requests."""
        for look in self._looks.values():
            look.answer.cancel()


def _has_succeeded(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


class ClusterView:
    """Answers of the cluster for the handlers. Handlers share answers, which are at most *lifetime*
    seconds old."""

    def __init__(self, cluster: Cluster, lifetime: float, timeout: float) -> None:
        """Create a view. *timeout*: seconds to wait for an answer of the cluster."""
        self.cluster = cluster
        self.timeout = timeout
        self._looks = SharedLooks(lifetime)

    async def ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """Make a call on the leading Dispatcher and return its answer, which is not shared."""
        return await self.cluster.ask(question, call, self.timeout)

    async def numbers(self) -> ClusterNumbers:
        async def fetch() -> ClusterNumbers:
            return await self.ask(
                "get the numbers of the cluster", lambda it: it.request_cluster_numbers()
            )

        return await self._looks.look("numbers", fetch)

    async def overview(self) -> ClusterOverview:
        """Return the overview of the cluster with all TaskExecutors, of which there may be
        thousands."""

        async def fetch() -> ClusterOverview:
            return await self.ask(
                "get the overview of the cluster", lambda it: it.request_cluster_overview()
            )

        return await self._looks.look("overview", fetch)

    async def jobs(self) -> tuple[JobOverview, ...]:
        """Return the jobs, oldest first: from a shared overview of the cluster if there is one that
        is not too old, otherwise from the Dispatcher."""
        overview: ClusterOverview | None = self._looks.answer_to("overview")
        if overview is not None:
            return overview.jobs

        async def fetch() -> tuple[JobOverview, ...]:
            return await self.ask("list the jobs", lambda it: it.list_jobs())

        return await self._looks.look("jobs", fetch)

    async def details(self, job_id: JobID) -> JobDetails:
        """Return the details of a job. Raises JobNotFoundError: there is no such job."""

        async def fetch() -> JobDetails:
            return await self.ask(
                f"get the details of job {job_id}", lambda it: it.request_job_details(job_id)
            )

        return await self._looks.look(job_id, fetch)

    async def details_if_known(self, job_id: JobID) -> JobDetails | None:
        """Return the details of a job; None: there is no such job, or no longer."""
        try:
            return await self.details(job_id)
        except JobNotFoundError:
            return None

    async def settings(self, job_id: JobID) -> JobSettings:
        """Return the settings with which a job runs or ran. Raises JobNotFoundError: there is no
        such job, or its settings were not kept; ConfigurationError: its settings contradict those
        of the cluster."""

        async def fetch() -> JobSettings:
            return await self.ask(
                f"get the settings of job {job_id}", lambda it: it.request_job_settings(job_id)
            )

        return await self._looks.look(("settings", job_id), fetch)

    async def settings_if_known(self, job_id: JobID) -> JobSettings | None:
        """Return the settings of a job. None: they are not known. The job may exist all the
        same: an old version has not kept its settings, or they contradict the cluster's present
        settings."""
        try:
            return await self.settings(job_id)
        except (JobNotFoundError, ConfigurationError):
            return None

    def close(self) -> None:
        self._looks.close()
