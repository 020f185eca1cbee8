"""Names of the processes that a JobMaster has for its job."""

from __future__ import annotations

from flinkray.core.ids import JobID, JobMasterId

KINDS = ("SlotPool", "StreamCoordinator", "MasterFormats", "SparkDriver")
"""Of processes whose names begin as :func:`processes_of_job` says."""


def job_process(kind: str, job_id: JobID, job_master_id: JobMasterId) -> str:
    """Name of a JobMaster's process of that kind.

    The JobMasterId is part of it.  Who starts a process ends one of the same name first, so a
    JobMaster that was replaced and wakes up late can end and replace its own processes only.
    """
    return f"{processes_of_job(kind, job_id)}{job_master_id}"


def slot_pool_process(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Name of the process of a JobMaster's SlotPool."""
    return job_process("SlotPool", job_id, job_master_id)


def processes_of_job(kind: str, job_id: JobID) -> str:
    """With what the names of the processes of that kind begin, of all JobMasters of the job."""
    return f"{kind}-{job_id}-"


def slot_pools_of_job(job_id: JobID) -> str:
    """With what the names of the processes of all its JobMasters' SlotPools begin."""
    return processes_of_job("SlotPool", job_id)
