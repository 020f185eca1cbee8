"""The metrics of jobs, tasks and the cluster that Ray's metrics endpoint exports.

Names are as in Flink's Prometheus reporter, with ``flinkray_`` for ``flink_``, and underscores for
capitals, because Ray uses lower case. Ray adds the prefix ``ray_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from flinkray.core.ids import JobID
from flinkray.rpc import MetricSample
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.shared.states import JobStatus

TASK = "flinkray_taskmanager_job_task_"
"""Prefix of task metrics. Labels: job_name, job_id, vertex and subtask."""
JOB = "flinkray_jobmanager_job_"
"""Prefix of job metrics. Labels: job_name, job_id, and for job_state also state."""
CLUSTER = "flinkray_jobmanager_"

DESCRIPTIONS = {
    TASK: {
        "numRecordsIn": "Records that the task has read from other tasks.",
        "numRecordsOut": "Records that the task has sent to other tasks.",
        "numBytesIn": "Bytes that the task has read from other tasks.",
        "numBytesOut": "Bytes that the task has sent to other tasks.",
        "accumulateBusyTimeMs": "Milliseconds in which the task worked.",
        "accumulateIdleTimeMs": "Milliseconds without anything to do.",
        "accumulateBackPressuredTimeMs": "Milliseconds for which consumers had no room.",
        "busyTimeMsPerSecond": "Milliseconds of each second in which the task worked.",
        "idleTimeMsPerSecond": "Milliseconds of each second without anything to do.",
        "backPressuredTimeMsPerSecond": (
            "Milliseconds of each second for which consumers had no room."
        ),
        "currentInputWatermark": "The lowest watermark of the task's inputs, in milliseconds.",
        "currentOutputWatermark": "The last watermark of the task's source, in milliseconds.",
        "watermarkLag": "Milliseconds from the task's watermark to now.",
        "checkpointAlignmentTime": "Nanoseconds for which the last checkpoint awaited barriers.",
        "isHeld": "1 while the source is not read, as Spark is behind with its records; else 0.",
        "user_metric": "Counters, meters and gauges that functions have registered.",
    },
    JOB: {
        "state": "1 for the state (label `state`) that the job is in, or has ended in.",
        "uptime": "Milliseconds for which the job has been running; 0 while it does not run.",
        "downtime": "Milliseconds since a failure after which not all runs again; else 0.",
        "numRestarts": "How often the job was restarted.",
        "totalNumberOfCheckpoints": "Checkpoints that were begun.",
        "numberOfInProgressCheckpoints": "Checkpoints that are under way.",
        "numberOfCompletedCheckpoints": "Checkpoints that are complete.",
        "numberOfFailedCheckpoints": "Checkpoints that have failed.",
        "numberOfConsecutiveFailedCheckpoints": "Those since the last complete one; at most 10.",
        "lastCheckpointAge": (
            "Milliseconds since the last complete checkpoint was triggered; without one, since the "
            "job began."
        ),
        "lastCompletedCheckpointId": "The id of the last complete checkpoint.",
        "lastCheckpointDuration": "Milliseconds that the last complete checkpoint took.",
        "lastCheckpointSize": "Bytes that the last complete checkpoint has written.",
        "lastCheckpointFullSize": "Bytes of all state of the last complete checkpoint.",
        "lastCheckpointCompletedTimestamp": "When it was complete: milliseconds since 1970.",
    },
    CLUSTER: {
        "taskSlotsTotal": "Slots of all TaskExecutors.",
        "taskSlotsAvailable": "Slots that no job has.",
        "numRegisteredTaskManagers": "TaskExecutors that are registered.",
        "numRunningJobs": "Jobs that have not ended.",
        "numJobsShortOfSlots": "Jobs that wait for slots which the cluster does not have.",
    },
}
"""Description of each metric, by prefix and by Flink's name for the metric."""


def exported_name(scope: str, name: str) -> str:
    """Return the name under which Ray exports the metric that Flink calls *name*."""
    return scope + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def samples_of(
    scope: str, values: Mapping[str, float], tags: Mapping[str, str]
) -> Iterator[MetricSample]:
    """Yield a metric sample for each of *values* (name -> value), with the labels *tags*. *scope*
    is a key of :data:`DESCRIPTIONS`, from which the metric's description is taken."""
    descriptions = DESCRIPTIONS[scope]
    for name, value in values.items():
        yield MetricSample(exported_name(scope, name), descriptions[name], value, dict(tags))


def job_tags(name: str, job_id: JobID) -> dict[str, str]:
    """Return the labels that identify a job.
    No label is called ``job``: the scraper sets this label and would rename ours.
    """
    return {"job_name": name, "job_id": job_id.hex()}


def state_of_job(name: str, job_id: JobID, status: JobStatus) -> Iterator[MetricSample]:
    """Yield one sample, whose labels name the state that a job is in, or has ended in."""
    return samples_of(JOB, {"state": 1}, {**job_tags(name, job_id), "state": status.name})


def alarms_of_job(down_since: float, checkpointed_at: float | None, now: float) -> dict[str, float]:
    """Return downtime and lastCheckpointAge of a job, in milliseconds, for alarms.
    lastCheckpointAge is left out if no periodic checkpoints are taken.

    Args:
        down_since: seconds since the epoch; 0 means that no part of the job is down.
        checkpointed_at: seconds since the epoch; None means that no periodic checkpoints are taken.
        now: seconds since the epoch.
    """
    values = {"downtime": max(0.0, now - down_since) * 1000 if down_since else 0.0}
    if checkpointed_at is not None:
        values["lastCheckpointAge"] = max(0.0, now - checkpointed_at) * 1000
    return values


def values_of_job(
    running_since: float, restarts: int, checkpoints: CheckpointsOverview | None, now: float
) -> dict[str, float]:
    """Return uptime (milliseconds), numRestarts and the checkpoint metrics of a job.
    *running_since* and *now* are seconds since the epoch. *running_since* 0 means that the job does
    not run."""
    values: dict[str, float] = {
        "uptime": (now - running_since) * 1000 if running_since else 0,
        "numRestarts": restarts,
    }
    return values if checkpoints is None else {**values, **checkpoints.flink_metrics()}
