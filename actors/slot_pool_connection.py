"""A JobMaster's SlotPool: started, watched, told what is decided, and replaced by a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from flinkray.actors.gateways import ResourceManagerGateway, SlotPoolGateway
from flinkray.actors.messages import SlotPoolArguments
from flinkray.actors.tell import tell
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import JobID, ResourceManagerId
from flinkray.rpc import EndpointSpec, RpcEndpoint

log = logging.getLogger(__name__)

_STARTS = 5
"""How many SlotPools in a row may die while they start before the JobMaster gives up."""

Call = Callable[[SlotPoolGateway], Coroutine[Any, Any, None]]


def slot_pool_process(job_id: JobID) -> str:
    """Name of the process of a job's SlotPool."""
    return f"SlotPool-{job_id}"


class SlotPoolConnection:
    """Lives on the JobMaster's main thread.

    What is told while there is no pool is kept for the next one, in its order.
    """

    def __init__(
        self,
        owner: RpcEndpoint,
        arguments: SlotPoolArguments,
        *,
        resource_manager: Callable[[], ResourceManagerGateway | None],
        on_lost: Callable[[str], None],
    ) -> None:
        """*resource_manager*: the present one.  *on_lost*: the pool died, with all that was told to
        it; the next one has to be started."""
        self._owner = owner
        self._arguments = arguments
        self._resource_manager = resource_manager
        self._on_lost = on_lost
        self._waiting: list[Call] = []
        self._pool: SlotPoolGateway | None = None

    @property
    def gateway(self) -> SlotPoolGateway | None:
        """None: there is no pool at present."""
        return self._pool

    @property
    def _name(self) -> str:
        return f"the SlotPool of job {self._arguments.job_id}"

    async def start(self) -> None:
        """Start a pool.

        Raises:
            RpcError: so many died at their start that it is of no use.
        """
        service = self._owner.rpc_service
        spec = EndpointSpec(
            kind="SlotPool",
            name=slot_pool_process(self._arguments.job_id),
            factory="flinkray.actors.slot_pool:create_slot_pool",
            arguments=self._arguments,
        )
        token = self._arguments.job_master_id
        for starts_left in reversed(range(_STARTS)):
            try:
                address = await service.spawn(spec)
                pool = await self._owner.connect(address, SlotPoolGateway, token)
                break
            except RpcError as error:  # it died while it started
                if not starts_left:
                    raise
                log.warning("%s did not start: %s", self._name, error)
                await service.kill(spec.name)
        self._pool = pool
        self._owner.watch(pool, self._lost)
        manager = self._resource_manager()
        if manager is not None:
            self.connect_to(manager)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self.tell(call)

    def _lost(self, reason: str) -> None:
        if self._pool is not None:
            log.warning("%s died: %s", self._name, reason)
            self._pool = None
            self._on_lost(reason)

    def tell(self, call: Call) -> None:
        """Calls reach the pool in the order of this method's; its death is the watch's to tell."""
        if self._pool is None:
            self._waiting.append(call)
        else:
            tell(self._owner, call(self._pool), self._name)

    def connect_to(self, manager: ResourceManagerGateway) -> None:
        """Have the requirements declared there."""
        if self._pool is not None:
            address, token = manager.address, manager.fencing_token
            assert isinstance(token, ResourceManagerId)
            self.tell(lambda pool: pool.connect_to_resource_manager(address, token))

    async def close(self, reason: str) -> None:
        """Have it give back all slots, and end."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await pool.close_pool(reason)
            except FlinkRayError as error:
                log.info("%s was not closed: %s", self._name, error)
