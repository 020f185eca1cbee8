"""The figures that Ray's metrics endpoint has of jobs, tasks and the cluster.

Their names are those of Flink's Prometheus reporter, with ``flinkray_`` in place of ``flink_`` and
underscores in place of capitals: Ray makes small letters of those.  Ray puts ``ray_`` before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from flinkray.rpc import MetricSample
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview

TASK = "flinkray_taskmanager_job_task_"
"""With the labels job, vertex and subtask."""
JOB = "flinkray_jobmanager_job_"
"""With the label job."""
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
        "uptime": "Milliseconds for which the job has been running; 0 while it does not run.",
        "numRestarts": "How often the job was restarted.",
        "totalNumberOfCheckpoints": "Checkpoints that were begun.",
        "numberOfInProgressCheckpoints": "Checkpoints that are under way.",
        "numberOfCompletedCheckpoints": "Checkpoints that are complete.",
        "numberOfFailedCheckpoints": "Checkpoints that have failed.",
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
"""What they are, by the beginning of their name and what Flink calls them."""


def exported_name(scope: str, name: str) -> str:
    """As Ray has it, of what Flink calls *name*."""
    return scope + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def samples_of(
    scope: str, values: Mapping[str, float], tags: Mapping[str, str]
) -> Iterator[MetricSample]:
    """*scope*: one of :data:`DESCRIPTIONS`."""
    descriptions = DESCRIPTIONS[scope]
    for name, value in values.items():
        yield MetricSample(exported_name(scope, name), descriptions[name], value, dict(tags))


def values_of_job(
    running_since: float, restarts: int, checkpoints: CheckpointsOverview | None, now: float
) -> dict[str, float]:
    """*running_since* (0: the job does not run) and *now* are seconds since the epoch."""
    values: dict[str, float] = {
        "uptime": (now - running_since) * 1000 if running_since else 0,
        "numRestarts": restarts,
    }
    return values if checkpoints is None else {**values, **checkpoints.figures()}
