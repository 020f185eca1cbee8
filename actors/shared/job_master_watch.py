"""Watches whether a job's JobMaster lives, and asks whether a JobMaster still leads its job."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.job_processes import job_master_process
from flinkray.core.errors import FencingTokenError, RecipientUnreachableError, RpcError
from flinkray.core.ids import JobID
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.rpc.spec import process_of

log = logging.getLogger(__name__)

_LOOK_PAUSE = 5.0
"""Seconds before each call that asks whether the watched JobMaster lives and is the right one.
The call is repeated until it is answered.
"""


class JobMasterWatch:
    """Watches one JobMaster, on the main thread of the process's endpoint.

    All JobMasters of a job have the same address. If the JobMaster has died before the watch began,
    the watch may be on its successor. So the process there is also asked whether it is this
    JobMaster.
    """

    def __init__(
        self, endpoint: RpcEndpoint, job_master: JobMasterGateway, on_lost: Callable[[str], None]
    ) -> None:
        """Start the watch.
        *on_lost* is called once, with the reason, when the JobMaster is gone or another JobMaster
        has taken its place.
        """
        self._endpoint = endpoint
        self._job_master = job_master
        self._on_lost = on_lost
        self._is_over = False
        self._watch = endpoint.watch(job_master, self._lost)
        endpoint.create_task(self._look_until_it_is_known(), name="look for the JobMaster")

    def cancel(self) -> None:
        """Stop the watch: *on_lost* is not called any more. Idempotent."""
        self._is_over = True
        self._watch.cancel()

    async def look(self) -> bool:
        """Ask the JobMaster now whether it lives. Returns False if no answer has come.
        Returns True if it lives or is gone. If it is gone, *on_lost* is called first.
        """
        if self._is_over:
            return True
        try:
            await self._job_master.request_job_status()
        except (FencingTokenError, RecipientUnreachableError) as error:
            self._lost(str(error))
        except RpcError as error:
            log.info("whether the JobMaster lives is not known: %s", error)
            return False
        return True

    async def _look_until_it_is_known(self) -> None:
        is_known = False
        while not is_known:
            await self._endpoint.rpc_service.pause(_LOOK_PAUSE)
            is_known = await self.look()

    def _lost(self, reason: str) -> None:
        if not self._is_over:
            self.cancel()
            self._on_lost(reason)


async def has_name_of_leader(
    service: RpcService, job_master: JobMasterGateway, job_id: JobID
) -> bool:
    """Return whether the process *job_master* has the process name of the job's JobMaster.
    The name goes to another process as soon as the Dispatcher starts another JobMaster.
    """
    identity = service.identity_of(job_master)
    return process_of(identity) == job_master_process(job_id) and not await service.is_dead(
        identity
    )
