"""The handlers of the REST paths."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from flinkray.actors.gateways.savepoint_disposal import disposal
from flinkray.actors.gateways.snapshots import SnapshotRequest, SnapshotType
from flinkray.core.errors import JobNotFoundError, RpcTimeoutError
from flinkray.core.ids import JobID, JobVertexID, TriggerID
from flinkray.core.locations import without_secrets
from flinkray.rest import checkpoint_json, cluster_json, job_json
from flinkray.rest.cluster import ClusterView
from flinkray.rest.errors import RestError, bad_request, not_found
from flinkray.rest.json_values import WrittenOnce
from flinkray.rest.operations import Operations
from flinkray.rest.requests import (
    LARGEST_LONG,
    Body,
    job_id,
    number,
    number_asked,
    trigger_id,
    vertex_id,
)
from flinkray.rest.savepoint_roots import SavepointRoots
from flinkray.scheduler.reports.job_info import JobDetails, TaskExecutorInfo, VertexInfo

_EXCEPTIONS = 20
"""How many exceptions are shown by default (RE-46)."""
_CHECKPOINT_DIRECTORY = re.compile(r"(?:.*/)?chk-(\d+)/?")
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")

DISPOSAL = "savepoint disposal"
CHANGING_GETS = frozenset({"/jobs/{job}/yarn-cancel"})
"""Paths at which a GET request changes something."""


@dataclass(frozen=True)
class Answer:
    """An HTTP status and a body: a value that becomes JSON, or JSON text."""

    body: object
    status: int = 200


Handler = Callable[[web.Request], Awaitable[Answer]]
Route = tuple[str, str, Handler]
"""(method, path below the version, handler) of one route."""


def _check_location(name: str, location: str) -> None:
    """Raise RestError if *location* is a relative path: it would mean another place in each
    process."""
    if not _ABSOLUTE.match(location):
        raise bad_request(f"{name} is to be an absolute path or a URI, not {location!r}")


def vertex_of(job: JobDetails, wanted: JobVertexID) -> VertexInfo:
    """Return the vertex of a job. Raises RestError: the job has no vertex of that id."""
    for vertex in job.vertices:
        if vertex.vertex_id == wanted:
            return vertex
    raise not_found(f"job {job.job_id} ({job.name}) has no vertex {wanted}")


class Handlers:
    """The handlers for one cluster. Use them on one event loop."""

    def __init__(
        self,
        cluster: ClusterView,
        operations: Operations,
        roots: SavepointRoots,
        refresh_interval: float,
        now: Callable[[], float],
    ) -> None:
        """Create the handlers.
        *now* returns the seconds since the epoch, by the cluster's clocks.
        """
        self._cluster = cluster
        self._operations = operations
        self._roots = roots
        self._refresh_interval = refresh_interval
        self._now = now
        self._overviews = WrittenOnce()

    def routes(self) -> list[Route]:
        """Return (method, path below the version, handler) of each route."""
        job = "/jobs/{job}"
        vertex = f"{job}/vertices/{{vertex}}"
        return [
            ("DELETE", "/cluster", self.shut_down),
            ("GET", "/config", self.config),
            ("GET", "/overview", self.overview),
            ("GET", "/jobs", self.jobs),
            ("POST", "/jobs", self.submit),
            ("GET", "/jobs/overview", self.jobs_overview),
            ("GET", job, self.job),
            ("PATCH", job, self.cancel),
            ("GET", f"{job}/yarn-cancel", self.cancel),
            ("GET", f"{job}/status", self.status),
            ("GET", f"{job}/execution-result", self.execution_result),
            ("GET", f"{job}/plan", self.plan),
            ("GET", f"{job}/exceptions", self.exceptions),
            ("GET", f"{job}/accumulators", self.accumulators),
            ("GET", f"{job}/progress", self.progress),
            ("PATCH", f"{job}/clientHeartbeat", self.client_heartbeat),
            ("GET", f"{job}/checkpoints", self.checkpoints),
            ("POST", f"{job}/checkpoints", self.trigger_checkpoint),
            ("GET", f"{job}/checkpoints/details/{{checkpoint}}", self.checkpoint),
            ("GET", f"{job}/checkpoints/{{trigger}}", self.checkpoint_operation),
            ("POST", f"{job}/savepoints", self.trigger_savepoint),
            ("GET", f"{job}/savepoints/{{trigger}}", self.savepoint_operation),
            ("POST", f"{job}/stop", self.stop),
            ("GET", vertex, self.vertex),
            ("GET", f"{vertex}/subtasktimes", self.subtask_times),
            ("GET", f"{vertex}/taskmanagers", self.vertex_task_managers),
            ("GET", f"{vertex}/attempts", self.attempts),
            ("GET", f"{vertex}/subtasks/{{subtask}}", self.subtask),
            ("POST", "/savepoint-disposal", self.dispose),
            ("GET", "/savepoint-disposal/{trigger}", self.disposal),
            ("GET", "/taskmanagers", self.task_managers),
            ("GET", "/taskmanagers/{executor}", self.task_manager),
            ("GET", "/taskmanagers/{executor}/tasks", self.task_manager_tasks),
        ]

    # --- the cluster ------------------------------------------------------------------------------

    async def config(self, request: web.Request) -> Answer:
        return Answer(cluster_json.dashboard_configuration(self._refresh_interval, self._now()))

    async def overview(self, request: web.Request) -> Answer:
        numbers, jobs = await asyncio.gather(self._cluster.numbers(), self._cluster.jobs())
        return Answer(cluster_json.overview(numbers, jobs))

    async def shut_down(self, request: web.Request) -> Answer:
        """Shut the cluster down. Answers 409, and does nothing, if there are standby masters,
        because they would take over."""
        overview = await self._cluster.overview()
        if any(master.standbys for master in overview.masters):
            raise RestError(
                409, "masters stand by and would take over: end it with flinkray cluster down"
            )
        await self._cluster.cluster.ask(
            "shut the cluster down", lambda it: it.shut_down_cluster(), None
        )
        return Answer({})

    async def task_managers(self, request: web.Request) -> Answer:
        return Answer(cluster_json.task_managers(await self._cluster.overview()))

    async def task_manager(self, request: web.Request) -> Answer:
        return Answer(cluster_json.task_manager_details(await self._task_executor(request)))

    async def task_manager_tasks(self, request: web.Request) -> Answer:
        executor = await self._task_executor(request)
        with_slots = dict.fromkeys(executor.jobs)
        found = await asyncio.gather(*map(self._cluster.details_if_known, with_slots))
        jobs = [job for job in found if job is not None]
        return Answer(job_json.tasks_on(str(executor.location.resource_id), jobs))

    async def _task_executor(self, request: web.Request) -> TaskExecutorInfo:
        wanted = request.match_info["executor"]
        for one in (await self._cluster.overview()).task_executors:
            if str(one.location.resource_id) == wanted:
                return one
        raise not_found(f"TaskExecutor {wanted} could not be found")

    # --- jobs -------------------------------------------------------------------------------------

    async def jobs(self, request: web.Request) -> Answer:
        return Answer(job_json.ids_with_status(await self._cluster.jobs()))

    async def jobs_overview(self, request: web.Request) -> Answer:
        jobs = await self._cluster.jobs()
        return Answer(self._overviews.of(jobs, lambda: job_json.overviews(jobs, self._now())))

    async def submit(self, request: web.Request) -> Answer:
        raise bad_request(
            "no job graph of Flink's can run here: submit a Python program with flinkray run"
        )

    async def job(self, request: web.Request) -> Answer:
        return Answer(job_json.details(await self._details(request), self._now()))

    async def plan(self, request: web.Request) -> Answer:
        return Answer({"plan": job_json.plan(await self._details(request))})

    async def exceptions(self, request: web.Request) -> Answer:
        """Return the exceptions of a job; none if the request filters by label, as no exception has
        a label (RE-46)."""
        most = number_asked(request, "maxExceptions", _EXCEPTIONS)
        details = await self._details(request)
        if request.query.get("failureLabelFilter"):
            details = replace(details, exceptions=())
        return Answer(job_json.exceptions(details, most))

    async def accumulators(self, request: web.Request) -> Answer:
        """Return an empty list of accumulators: flinkray's jobs have none."""
        await self._details(request)
        return Answer(
            {
                "job-accumulators": [],
                "user-task-accumulators": [],
                "serialized-user-task-accumulators": {},
            }
        )

    async def progress(self, request: web.Request) -> Answer:
        details = await self._details(request)
        settings = await self._cluster.settings_if_known(details.job_id)
        return Answer(job_json.progress(details, settings))

    async def status(self, request: web.Request) -> Answer:
        """Return the job's present status. The cluster is asked each time, because clients wait for
        a change of the status."""
        wanted = job_id(request)
        status = await self._cluster.ask(
            f"get the status of job {wanted}", lambda it: it.request_job_status(wanted)
        )
        return Answer({"status": status.name})

    async def execution_result(self, request: web.Request) -> Answer:
        """Return the job's result, or that there is none yet. The cluster is asked each time,
        because clients repeat this request until there is a result."""
        wanted = job_id(request)
        status = await self._cluster.ask(
            f"get the status of job {wanted}", lambda it: it.request_job_status(wanted)
        )
        if not status.is_globally_terminal:
            return Answer(job_json.execution_result(None))
        result = await self._cluster.ask(
            f"get the result of job {wanted}", lambda it: it.request_job_result(wanted)
        )
        return Answer(job_json.execution_result(result))

    async def cancel(self, request: web.Request) -> Answer:
        wanted, mode = job_id(request), request.query.get("mode", "cancel")
        if mode == "stop":
            raise RestError(
                308, f"a job is stopped with a savepoint: POST /jobs/{wanted.hex()}/stop"
            )
        if mode != "cancel":
            raise bad_request(f"mode is to be cancel, not {mode!r}")
        try:
            await self._cluster.ask(f"cancel job {wanted}", lambda it: it.cancel_job(wanted))
        except JobNotFoundError:
            raise not_found("Job could not be found.") from None
        except RpcTimeoutError as error:
            raise RestError(408, str(error)) from None
        return Answer({}, 202)

    async def client_heartbeat(self, request: web.Request) -> Answer:
        wanted, body = job_id(request), await Body.of(request)
        body.number("expiredTimestamp", LARGEST_LONG)  # Flink's client sends it; ours needs none
        await self._cluster.ask(
            f"keep job {wanted} alive", lambda it: it.heartbeat_from_client((wanted,))
        )
        return Answer({}, 202)

    async def _details(self, request: web.Request) -> JobDetails:
        return await self._cluster.details(job_id(request))

    # --- vertices ---------------------------------------------------------------------------------

    async def vertex(self, request: web.Request) -> Answer:
        _, vertex = await self._vertex(request)
        return Answer(job_json.vertex_details(vertex, self._now()))

    async def subtask_times(self, request: web.Request) -> Answer:
        _, vertex = await self._vertex(request)
        return Answer(job_json.subtask_times(vertex, self._now()))

    async def vertex_task_managers(self, request: web.Request) -> Answer:
        details, vertex = await self._vertex(request)
        return Answer(job_json.vertex_task_managers(vertex, details, self._now()))

    async def attempts(self, request: web.Request) -> Answer:
        _, vertex = await self._vertex(request)
        return Answer(job_json.attempts(vertex, self._now()))

    async def subtask(self, request: web.Request) -> Answer:
        index = number(request, "subtask")
        _, vertex = await self._vertex(request)
        for execution in vertex.executions:
            if execution.subtask_index == index:
                return Answer(job_json.subtask(execution, self._now()))
        raise not_found(f"vertex {vertex.name} has no subtask {index}")

    async def _vertex(self, request: web.Request) -> tuple[JobDetails, VertexInfo]:
        wanted, details = vertex_id(request), await self._details(request)
        return details, vertex_of(details, wanted)

    # --- checkpoints and savepoints ---------------------------------------------------------------

    async def checkpoints(self, request: web.Request) -> Answer:
        details = await self._details(request)
        if details.checkpoints is None:
            settings = await self._cluster.settings_if_known(details.job_id)
            if settings is None or settings.checkpoints is None:
                raise not_found("Checkpointing has not been enabled.")
        return Answer(checkpoint_json.statistics(details.checkpoints))

    async def checkpoint(self, request: web.Request) -> Answer:
        wanted = number(request, "checkpoint")
        details = await self._details(request)
        found = checkpoint_json.find(details.checkpoints, wanted)
        if found is None:
            raise not_found(f"Could not find checkpointing statistics for checkpoint {wanted}.")
        return Answer(checkpoint_json.checkpoint(found))

    async def trigger_checkpoint(self, request: web.Request) -> Answer:
        wanted, body = job_id(request), await Body.of(request)
        kind = body.text("checkpointType") or "CONFIGURED"
        if kind != "CONFIGURED":
            raise bad_request(
                f"a checkpoint is taken as the job is configured; {kind} ones cannot be asked for"
            )
        trigger = body.trigger_id()

        async def perform() -> dict[str, Any]:
            path = await self._taken(wanted, SnapshotRequest(trigger, SnapshotType.CHECKPOINT))
            number_in_path = _CHECKPOINT_DIRECTORY.fullmatch(path)
            return {"checkpointId": int(number_in_path[1]) if number_in_path else None}

        key = (("checkpoint", wanted), trigger)
        return Answer(await self._operations.start(key, perform, "failureCause"), 202)

    async def checkpoint_operation(self, request: web.Request) -> Answer:
        return self._polled(request, ("checkpoint", job_id(request)))

    async def trigger_savepoint(self, request: web.Request) -> Answer:
        body = await Body.of(request)
        if body.flag("cancel-job"):
            raise bad_request(
                "a job is not cancelled with a savepoint here: stop it, or take the savepoint "
                "and cancel it then"
            )
        directory = body.text("target-directory", "targetDirectory")
        return await self._savepoint(request, body, SnapshotType.SAVEPOINT, directory)

    async def stop(self, request: web.Request) -> Answer:
        body = await Body.of(request)
        kind = (
            SnapshotType.TERMINATE_WITH_SAVEPOINT
            if body.flag("drain")
            else SnapshotType.SUSPEND_WITH_SAVEPOINT
        )
        directory = body.text("targetDirectory", "target-directory")
        return await self._savepoint(request, body, kind, directory)

    async def _savepoint(
        self, request: web.Request, body: Body, kind: SnapshotType, directory: str | None
    ) -> Answer:
        wanted, trigger = job_id(request), body.trigger_id()
        form = body.text("formatType") or "CANONICAL"
        if form != "CANONICAL":
            raise bad_request(f"savepoints are CANONICAL; {form} ones cannot be asked for")
        if directory is not None:
            _check_location("target-directory", directory)
            await self._roots.check(directory)

        async def perform() -> dict[str, Any]:
            return {
                "location": await self._taken(wanted, SnapshotRequest(trigger, kind, directory))
            }

        return Answer(await self._operations.start((("savepoint", wanted), trigger), perform), 202)

    async def savepoint_operation(self, request: web.Request) -> Answer:
        return self._polled(request, ("savepoint", job_id(request)))

    async def _taken(self, wanted: JobID, snapshot: SnapshotRequest) -> str:
        taken = await self._cluster.cluster.ask(
            f"take a {snapshot.kind.value} of job {wanted}",
            lambda it: it.take_snapshot(wanted, snapshot),
            None,
        )
        return taken.path

    async def dispose(self, request: web.Request) -> Answer:
        body = await Body.of(request)
        path, trigger = body.text("savepoint-path"), body.trigger_id()
        if path is None:
            raise bad_request("savepoint-path says which savepoint is to be disposed of")
        _check_location("savepoint-path", path)
        await self._roots.check(path)

        async def perform() -> dict[str, Any]:
            what = f"dispose of savepoint {without_secrets(path)}"
            await self._cluster.cluster.ask(what, disposal(path), None)
            return {}

        return Answer(await self._operations.start((DISPOSAL, trigger), perform))

    async def disposal(self, request: web.Request) -> Answer:
        return self._polled(request, DISPOSAL)

    def _polled(self, request: web.Request, what: object) -> Answer:
        trigger: TriggerID = trigger_id(request)
        return Answer(self._operations.poll((what, trigger)))
