"""Names of a job's JobMaster process and of the processes that the JobMaster starts."""

from __future__ import annotations

from flinkray.core.ids import JobID, JobMasterId

KINDS = ("SlotPool", "StreamCoordinator", "SparkDriver")
"""Kinds of processes whose names begin with the prefix from :func:`processes_of_job`."""


def job_master_process(job_id: JobID) -> str:
    """Return the process name of a job's JobMaster. Ray allows one live process per name."""
    return f"JobMaster-{job_id}"


def job_process(kind: str, job_id: JobID, job_master_id: JobMasterId) -> str:
    """Return the name of the process of kind *kind* that a JobMaster starts.

    The name contains the JobMasterId. Starting a process first ends the process of the same name.
    So a replaced JobMaster that wakes up late can end and replace only its own processes.
    """
    return f"{processes_of_job(kind, job_id)}{job_master_id}"


def slot_pool_address(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Return the address of the SlotPool of a JobMaster."""
    return f"{slot_pool_process(job_id, job_master_id)}/slotpool"


def slot_pool_process(job_id: JobID, job_master_id: JobMasterId) -> str:
    """Return the process name of a JobMaster's SlotPool."""
    return job_process("SlotPool", job_id, job_master_id)


def processes_of_job(kind: str, job_id: JobID) -> str:
    """Return the name prefix of a job's processes of kind *kind*, started by any JobMaster."""
    return f"{kind}-{job_id}-"


def slot_pools_of_job(job_id: JobID) -> str:
    """Return the name prefix of the SlotPool processes of all JobMasters of the job."""
    return processes_of_job("SlotPool", job_id)
