"""The handlers for metrics, watermarks and back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from aiohttp import web

from flinkray.core.ids import JobID
from flinkray.rest import metrics_json
from flinkray.rest.back_pressure_json import back_pressure
from flinkray.rest.cluster import ClusterView
from flinkray.rest.errors import bad_request, not_found
from flinkray.rest.handlers import Answer, Route, vertex_of
from flinkray.rest.io_rates import JobLook, Measured, Measurements
from flinkray.rest.requests import job_id, job_id_of, number, number_of, vertex_id
from flinkray.scheduler.reports.job_info import VertexInfo


class MetricHandlers:
    """The metric handlers for one cluster. Use them on one event loop."""

    def __init__(self, cluster: ClusterView, now: Callable[[], float]) -> None:
        """Create the handlers.
        *now* returns the seconds since the epoch, by the cluster's clocks.
        """
        self._cluster = cluster
        self._now = now
        self._measurements = Measurements(cluster, now)

    def routes(self) -> list[Route]:
        """Return (method, path below the version, handler) of each route."""
        vertex = "/jobs/{job}/vertices/{vertex}"
        return [
            ("GET", "/jobmanager/metrics", self.of_masters),
            ("GET", "/taskmanagers/metrics", self.of_task_managers),
            ("GET", "/taskmanagers/{executor}/metrics", self.of_task_manager),
            ("GET", "/jobs/metrics", self.of_jobs),
            ("GET", "/jobs/{job}/metrics", self.of_job),
            ("GET", f"{vertex}/metrics", self.of_vertex),
            ("GET", f"{vertex}/watermarks", self.watermarks),
            ("GET", f"{vertex}/backpressure", self.back_pressure),
            ("GET", f"{vertex}/subtasks/metrics", self.of_subtasks),
            ("GET", f"{vertex}/subtasks/{{subtask}}/metrics", self.of_subtask),
        ]

    # --- the cluster ------------------------------------------------------------------------------

    async def of_masters(self, request: web.Request) -> Answer:
        numbers, jobs = await asyncio.gather(self._cluster.numbers(), self._cluster.jobs())
        values = metrics_json.of_masters(numbers, jobs)
        return Answer(metrics_json.listed(values, _names(request)))

    async def of_task_managers(self, request: web.Request) -> Answer:
        """Return an empty list, as TaskExecutors report no metrics."""
        return Answer(metrics_json.aggregated((), _names(request), _aggregations(request)))

    async def of_task_manager(self, request: web.Request) -> Answer:
        wanted = request.match_info["executor"]
        known = (await self._cluster.overview()).task_executors
        if all(str(one.location.resource_id) != wanted for one in known):
            raise not_found(f"TaskExecutor {wanted} could not be found")
        return Answer(metrics_json.listed({}, _names(request)))

    # --- jobs -------------------------------------------------------------------------------------

    async def of_jobs(self, request: web.Request) -> Answer:
        """Return metrics aggregated over the jobs that the request names, or else over all jobs
        that have not ended."""
        names, aggregations = _names(request), _aggregations(request)
        wanted: Iterable[JobID] = map(job_id_of, _listed(request, "jobs") or ())
        if "jobs" not in request.query:
            jobs = await self._cluster.jobs()
            wanted = [job.job_id for job in jobs if not job.status.is_globally_terminal]
        every = await asyncio.gather(*map(self._cluster.details_if_known, wanted))
        rows = [metrics_json.of_job(job, self._now()) for job in every if job is not None]
        return Answer(metrics_json.aggregated(rows, names, aggregations))

    async def of_job(self, request: web.Request) -> Answer:
        job = await self._cluster.details(job_id(request))
        return Answer(metrics_json.listed(metrics_json.of_job(job, self._now()), _names(request)))

    # --- vertices ---------------------------------------------------------------------------------

    async def of_vertex(self, request: web.Request) -> Answer:
        values = metrics_json.of_vertex(await self._subtasks(request))
        return Answer(metrics_json.listed(values, _names(request)))

    async def of_subtasks(self, request: web.Request) -> Answer:
        names, aggregations = _names(request), _aggregations(request)
        wanted = _subtasks_wanted(request)
        rows = [
            metrics_json.of_subtask(one)
            for one in await self._subtasks(request)
            if wanted is None or any(one.subtask in some for some in wanted)
        ]
        return Answer(metrics_json.aggregated(rows, names, aggregations))

    async def of_subtask(self, request: web.Request) -> Answer:
        index = number(request, "subtask")
        look, vertex = await self._look(request)
        if all(one.subtask_index != index for one in vertex.executions):
            raise not_found(f"vertex {vertex.name} has no subtask {index}")
        found = (one for one in look.subtasks(vertex) if one.subtask == index)
        values = next(map(metrics_json.of_subtask, found), {})
        return Answer(metrics_json.listed(values, _names(request)))

    async def watermarks(self, request: web.Request) -> Answer:
        return Answer(metrics_json.watermarks(await self._subtasks(request)))

    async def back_pressure(self, request: web.Request) -> Answer:
        return Answer(back_pressure(*await self._look(request)))

    async def _subtasks(self, request: web.Request) -> tuple[Measured, ...]:
        look, vertex = await self._look(request)
        return look.subtasks(vertex)

    async def _look(self, request: web.Request) -> tuple[JobLook, VertexInfo]:
        wanted, job = vertex_id(request), job_id(request)
        look = await self._measurements.look(job)
        return look, vertex_of(look.job, wanted)


def _listed(request: web.Request, name: str) -> list[str] | None:
    """Return the values of a query parameter that separates them by commas. None: it is missing."""
    text = request.query.get(name)
    return None if text is None else [part for part in text.split(",") if part]


def _names(request: web.Request) -> list[str] | None:
    names = _listed(request, "get")
    return None if names is None else list(dict.fromkeys(names))


def _aggregations(request: web.Request) -> Collection[str]:
    """Return the names of the aggregations that the request asks for; all if it names none. Raises
    RestError: a name is unknown."""
    wanted = _listed(request, "agg")
    known = metrics_json.AGGREGATIONS
    if wanted is None:
        return known
    for kind in wanted:
        if kind not in known:
            raise bad_request(f"agg is to be of {', '.join(known)}, not {kind!r}")
    return wanted


def _subtasks_wanted(request: web.Request) -> list[range] | None:
    """Return the ranges of subtask numbers in a parameter such as ``subtasks=0,2-4``. None: it is
    missing, so all subtasks are meant. Raises RestError: it is invalid."""
    parts = _listed(request, "subtasks")
    if parts is None:
        return None
    wanted = []
    for part in parts:
        first, dash, last = part.partition("-")
        lowest = number_of("subtasks", first)
        wanted.append(range(lowest, (number_of("subtasks", last) if dash else lowest) + 1))
    return wanted
