"""The job of a cluster that runs one at a time."""

from __future__ import annotations

from flinkray.client import ClusterClient, JobHandle
from flinkray.testing.waiting import wait_until


def the_job(streams: ClusterClient) -> JobHandle:
    """Waits until it is there."""

    def found() -> list[JobHandle]:
        return [
            streams.job(it.job_id)
            for it in streams.list_jobs()
            if not it.status.is_terminal and not it.name.startswith("Model ")
        ]

    return wait_until(found, 300, "the job")[0]
