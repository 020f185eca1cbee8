"""What the endpoint knows of its cluster: looks that many lookers share."""

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
)
from flinkray.scheduler.reports.job_settings import JobSettings

T = TypeVar("T")


class Cluster(Protocol):
    """Questions to whichever Dispatcher leads."""

    async def ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None,
    ) -> T:
        """*question*: for error messages.  *timeout*: seconds; None: as long as there is a
        Dispatcher.

        Raises:
            RpcError: nobody has answered.
            Exception: what the Dispatcher answered with.
        """
        ...


@dataclass(slots=True)
class _Look:
    answer: asyncio.Future[Any]
    expires: float
    """By the loop's clock."""


class SharedLooks:
    """A look costs the cluster once, however many look at the same at about the same time (RE-12).
    Use on one event loop.

    An answer counts for *lifetime* seconds from when it was asked for; an error is given to those
    who wait for it, and not kept.
    """

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime
        self._looks: dict[Hashable, _Look] = {}

    async def look(self, key: Hashable, fetch: Callable[[], Awaitable[T]]) -> T:
        """Whoever of the lookers goes, the others get their answer."""
        loop = asyncio.get_running_loop()
        look = self._looks.get(key)
        if look is None or (look.answer.done() and look.expires <= loop.time()):
            answer = asyncio.ensure_future(fetch())
            look = self._looks[key] = _Look(answer, loop.time() + self._lifetime)
            answer.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(look.answer)

    def answer_to(self, key: Hashable) -> Any:
        """What was fetched for others and still counts; None: nothing."""
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
        """Nobody waits any more."""
        for look in self._looks.values():
            look.answer.cancel()


def _has_succeeded(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


class ClusterView:
    """A cluster as it was not longer ago than the lifetime of a look."""

    def __init__(self, cluster: Cluster, lifetime: float, timeout: float) -> None:
        """*timeout*: seconds for each answer."""
        self.cluster = cluster
        self.timeout = timeout
        self._looks = SharedLooks(lifetime)

    async def ask(self, question: str, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """Not shared with others."""
        return await self.cluster.ask(question, call, self.timeout)

    async def numbers(self) -> ClusterNumbers:
        async def fetch() -> ClusterNumbers:
            return await self.ask(
                "get the numbers of the cluster", lambda it: it.request_cluster_numbers()
            )

        return await self._looks.look("numbers", fetch)

    async def overview(self) -> ClusterOverview:
        """With each TaskExecutor, of which there may be thousands."""

        async def fetch() -> ClusterOverview:
            return await self.ask(
                "get the overview of the cluster", lambda it: it.request_cluster_overview()
            )

        return await self._looks.look("overview", fetch)

    async def jobs(self) -> tuple[JobOverview, ...]:
        """Oldest first.  An overview of the cluster has them, too."""
        overview: ClusterOverview | None = self._looks.answer_to("overview")
        if overview is not None:
            return overview.jobs

        async def fetch() -> tuple[JobOverview, ...]:
            return await self.ask("list the jobs", lambda it: it.list_jobs())

        return await self._looks.look("jobs", fetch)

    async def details(self, job_id: JobID) -> JobDetails:
        """
        Raises:
            JobNotFoundError: there is no such job.
        """

        async def fetch() -> JobDetails:
            return await self.ask(
                f"get the details of job {job_id}", lambda it: it.request_job_details(job_id)
            )

        return await self._looks.look(job_id, fetch)

    async def details_if_known(self, job_id: JobID) -> JobDetails | None:
        """None: there is no such job, or not any more."""
        try:
            return await self.details(job_id)
        except JobNotFoundError:
            return None

    async def settings(self, job_id: JobID) -> JobSettings:
        """
        Raises:
            JobNotFoundError: there is no such job.
        """

        async def fetch() -> JobSettings:
            return await self.ask(
                f"get the settings of job {job_id}", lambda it: it.request_job_settings(job_id)
            )

        return await self._looks.look(("settings", job_id), fetch)

    async def settings_if_known(self, job_id: JobID) -> JobSettings | None:
        """None: they were not kept, or do not go with the cluster's any more.  The job may run all
        the same."""
        try:
            return await self.settings(job_id)
        except (JobNotFoundError, ConfigurationError):
            return None

    def close(self) -> None:
        self._looks.close()
