"""The handlers for a job's settings and parallelism."""

from __future__ import annotations

from aiohttp import web

from flinkray.core.ids import JobID
from flinkray.rest import settings_json
from flinkray.rest.cluster import ClusterView
from flinkray.rest.errors import not_found
from flinkray.rest.handlers import Answer, Route
from flinkray.rest.requests import Body, job_id
from flinkray.scheduler.reports.job_info import JobSettings


class SettingsHandlers:
    """The settings handlers for one cluster. Use them on one event loop."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def routes(self) -> list[Route]:
        """Return (method, path below the version, handler) of each route."""
        job = "/jobs/{job}"
        return [
            ("GET", f"{job}/config", self.job_config),
            ("GET", f"{job}/checkpoints/config", self.checkpoint_config),
            ("GET", f"{job}/resource-requirements", self.resource_requirements),
            ("PUT", f"{job}/resource-requirements", self.resize),
        ]

    async def job_config(self, request: web.Request) -> Answer:
        wanted = job_id(request)
        details = await self._cluster.details(wanted)
        settings = await self._cluster.settings(wanted)
        return Answer(
            {
                "jid": wanted.hex(),
                "name": details.name,
                "execution-config": settings_json.execution_config(settings),
            }
        )

    async def checkpoint_config(self, request: web.Request) -> Answer:
        wanted = job_id(request)
        settings = await self._cluster.settings(wanted)
        if settings.checkpoints is None:
            raise not_found(f"Checkpointing is not enabled for this job ({wanted.hex()}).")
        config = settings_json.checkpoint_config(settings.checkpoints, settings.state_backend)
        return Answer(config)

    async def resource_requirements(self, request: web.Request) -> Answer:
        """Return the job's present parallelism bounds. The cluster is asked each time, because
        clients check their own changes with this request."""
        return Answer(settings_json.resource_requirements(await self._present(job_id(request))))

    async def resize(self, request: web.Request) -> Answer:
        wanted = job_id(request)
        bounds = settings_json.bounds_of(await Body.of(request))
        await self._cluster.ask(f"resize job {wanted}", lambda it: it.resize_job(wanted, bounds))
        return Answer({})

    async def _present(self, wanted: JobID) -> JobSettings:
        return await self._cluster.ask(
            f"get the settings of job {wanted}", lambda it: it.request_job_settings(wanted)
        )
