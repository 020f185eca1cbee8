"""Finds out whether a JobMaster leads its job when no leader election can be asked."""

from __future__ import annotations

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.job_processes import job_master_process
from flinkray.core.ids import JobID
from flinkray.rpc import RpcService
from flinkray.rpc.spec import process_of


async def has_name_of_leader(
    service: RpcService, job_master: JobMasterGateway, job_id: JobID
) -> bool:
    """Return whether *job_master* is the process with the name of the job's JobMaster.
    The name goes to another process as soon as the Dispatcher starts another JobMaster.
    """
    identity = service.identity_of(job_master)
    return process_of(identity) == job_master_process(job_id) and not await service.is_dead(
        identity
    )
