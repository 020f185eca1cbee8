"""Converts a cluster and its TaskExecutors to the JSON of Flink's REST API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.core.version import VERSION
from flinkray.scheduler.reports.job_info import (
    ClusterNumbers,
    ClusterOverview,
    JobOverview,
    TaskExecutorInfo,
)
from flinkray.scheduler.shared.states import JobStatus

_UNKNOWN = -1
_MEGABYTE = 1 << 20


def dashboard_configuration(refresh_interval: float, now: float) -> dict[str, Any]:
    """Return the dashboard's configuration as JSON. *refresh_interval*: seconds between two updates
    of a page. *now*: seconds since the epoch; the time zone offset depends on the season."""
    here = time.localtime(now)
    return {
        "refresh-interval": round(refresh_interval * 1000),
        "timezone-name": here.tm_zone,
        "timezone-offset": here.tm_gmtoff * 1000,
        "flink-version": VERSION,
        "flink-revision": f"flinkray {VERSION}",
        "features": {
            "web-submit": False,
            "web-cancel": True,
            "web-rescale": True,
            "web-history": False,
        },
    }


def overview(cluster: ClusterNumbers, jobs: Iterable[JobOverview]) -> dict[str, Any]:
    counts = Counter(job.status for job in jobs)
    ended = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)
    return {
        "taskmanagers": cluster.task_executors,
        "slots-total": cluster.slots_total,
        "slots-available": cluster.slots_available,
        "jobs-running": sum(counts.values()) - sum(counts[status] for status in ended),
        "jobs-finished": counts[JobStatus.FINISHED],
        "jobs-cancelled": counts[JobStatus.CANCELED],
        "jobs-failed": counts[JobStatus.FAILED],
        "flink-version": cluster.version,
        "flink-commit": f"flinkray {cluster.version}",
    }


def task_managers(cluster: ClusterOverview) -> dict[str, Any]:
    return {"taskmanagers": [task_manager(one) for one in cluster.task_executors]}


def task_manager(it: TaskExecutorInfo) -> dict[str, Any]:
    free = it.free_slots / it.number_of_slots if it.number_of_slots else 0.0
    total = it.total_profile
    return {
        "id": str(it.location.resource_id),
        "path": it.location.address,
        "dataPort": _UNKNOWN,
        "jmxPort": _UNKNOWN,
        "timeSinceLastHeartbeat": _UNKNOWN,
        "slotsNumber": it.number_of_slots,
        "freeSlots": it.free_slots,
        "assignedTasks": _UNKNOWN,
        "totalResource": _resource(total, 1.0),
        "freeResource": _resource(total, free),
        "hardware": {
            "cpuCores": round(total.cpu),
            "physicalMemory": total.memory,
            "freeMemory": _UNKNOWN,
            "managedMemory": 0,
        },
        "memoryConfiguration": {
            "frameworkHeap": 0,
            "taskHeap": total.memory,
            "frameworkOffHeap": 0,
            "taskOffHeap": 0,
            "networkMemory": 0,
            "managedMemory": 0,
            "jvmMetaspace": 0,
            "jvmOverhead": 0,
            "totalFlinkMemory": total.memory,
            "totalProcessMemory": total.memory,
        },
    }


def task_manager_details(it: TaskExecutorInfo) -> dict[str, Any]:
    """Return a TaskExecutor as JSON, with one entry for each slot that a job uses in it. Each slot
    is shown with an equal share of the TaskExecutor's resources."""
    return {**task_manager(it), "allocatedSlots": [_slot(job_id, it) for job_id in it.jobs]}


def _slot(job_id: JobID, it: TaskExecutorInfo) -> dict[str, Any]:
    share = 1 / it.number_of_slots if it.number_of_slots else 0.0
    return {
        "jobId": job_id.hex(),
        "resource": _resource(it.total_profile, share),
        "assignedTasks": _UNKNOWN,
    }


def _resource(profile: ResourceProfile, share: float) -> dict[str, Any]:
    """Return *share* (0 to 1) of the resources of *profile* as JSON, with memory in MiB. All memory
    is shown as task heap memory, because flinkray has no other memory budget."""
    return {
        "cpuCores": profile.cpu * share,
        "taskHeapMemory": int(profile.memory * share) // _MEGABYTE,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {name: value * share for name, value in profile.extended.items()},
    }
