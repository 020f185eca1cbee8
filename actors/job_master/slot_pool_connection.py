"""A JobMaster's SlotPool: started, watched, told what is decided, and replaced by a new one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from flinkray.actors.gateways import ResourceManagerGateway, SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.messages import SlotPoolArguments
from flinkray.actors.shared.one_way import tell
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import ResourceID, ResourceManagerId
from flinkray.rpc import (
    EndpointSpec,
    HeartbeatSender,
    HeartbeatSettings,
    RpcEndpoint,
    TerminationWatch,
)

log = logging.getLogger(__name__)

_STARTS = 5
"""How many SlotPools in a row may die while they start before the JobMaster gives up."""

Call = Callable[[SlotPoolGateway], Coroutine[Any, Any, None]]


class PoolStarted(Protocol):
    """A pool is there, and knows nothing yet."""

    def __call__(self, *, is_first: bool) -> None: ...


class SlotPoolConnection:
    """Lives on the JobMaster's main thread.

    The two must know the same, so a pool that does not take what it is told, whose news do not
    arrive or that does not answer to heartbeats is ended and replaced, as one that died.  What is
    told while there is no pool goes nowhere: *on_started* tells all of it anew.
    """

    def __init__(
        self,
        owner: RpcEndpoint,
        arguments: SlotPoolArguments,
        heartbeat: HeartbeatSettings,
        *,
        on_started: PoolStarted,
        on_lost: Callable[[str], None],
    ) -> None:
        """*on_lost*: the pool died; the next one has to be started."""
        self._owner = owner
        self._arguments = arguments
        self._heartbeat_settings = heartbeat
        self._on_started = on_started
        self._on_lost = on_lost
        self._number = 0
        """Of the present pool."""
        self._pool: SlotPoolGateway | None = None
        self._held: list[Call] | None = None
        """What it is told when it knows what its predecessor had; None: it does."""
        self._watch: TerminationWatch | None = None
        self._heartbeats: HeartbeatSender[None, None] | None = None
        self._news_seen = 0
        self._news_sent = 0
        """As the pool's last heartbeat said."""

    @property
    def gateway(self) -> SlotPoolGateway | None:
        """None: there is no pool at present, or it does not know yet what it has."""
        return self._pool if self._held is None else None

    @property
    def _name(self) -> str:
        return f"the SlotPool of job {self._arguments.job_id}"

    @property
    def _process(self) -> str:
        return slot_pool_process(self._arguments.job_id, self._arguments.job_master_id)

    async def start(self, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start a pool, which is told of nothing before *until* is over.

        Raises:
            RpcError: so many died at their start that it is of no use.
        """
        service = self._owner.rpc_service
        name = self._process
        self._begin_heartbeats()
        for starts_left in reversed(range(_STARTS)):
            self._number += 1
            spec = EndpointSpec(
                kind="SlotPool",
                name=name,
                factory="flinkray.actors.slot_pool.endpoint:create_slot_pool",
                arguments=replace(self._arguments, number=self._number),
                detached=True,
                may_take_over=True,
            )
            try:
                if self._number > 1:  # its predecessor may live yet
                    await service.kill(name)
                address = await service.spawn(spec)
                token = self._arguments.job_master_id
                pool = await self._owner.connect(address, SlotPoolGateway, token)
                break
            except RpcError as error:  # it died while it started
                if not starts_left:
                    raise
                log.warning("%s did not start: %s", self._name, error)
        if until is not None:
            await until()
        self._began(pool)
        self._on_started(is_first=self._number == 1)

    def _began(self, pool: SlotPoolGateway) -> None:
        self._pool = pool
        self._news_seen = self._news_sent = 0
        self._watch = self._owner.watch(pool, lambda reason: self._lost(pool, reason))
        if self._heartbeats is not None:
            self._heartbeats.monitor_target(self._resource_id, lambda _: self._ask_for_news(pool))

    def _begin_heartbeats(self) -> None:
        """Before the first pool is there: it is not asked as soon as it is."""
        if self._heartbeats is None:
            silence = f"no heartbeat from it for {self._heartbeat_settings.timeout:g} s"
            self._heartbeats = HeartbeatSender(
                self._owner,
                self._heartbeat_settings,
                payload=lambda _: None,
                on_timeout=lambda _: self._lost(self._pool, silence),
                on_unreachable=lambda _: self._lost(self._pool, "it is unreachable"),
            )

    @property
    def _resource_id(self) -> ResourceID:
        return ResourceID(self._process)

    async def _ask_for_news(self, pool: SlotPoolGateway) -> None:
        """What it had sent at the last heartbeat must be here by now."""
        news_sent = await pool.request_heartbeat()
        if pool is not self._pool or self._heartbeats is None:
            return
        self._heartbeats.receive_heartbeat(self._resource_id, None)
        if self._news_seen < self._news_sent:
            self._lost(pool, "news of it were lost")
        else:
            self._news_sent = news_sent

    def is_next(self, pool_number: int, news_number: int) -> bool:
        """Whether news are the present pool's, and the first after those that were seen."""
        pool = self._pool
        if pool is None or pool_number != self._number or news_number <= self._news_seen:
            return False
        if news_number > self._news_seen + 1:
            self._lost(pool, "news of it were lost")
            return False
        self._news_seen = news_number
        return True

    def _lost(self, pool: SlotPoolGateway | None, reason: str) -> None:
        """It died, or has to."""
        if pool is None or pool is not self._pool:
            return
        log.warning("%s died: %s", self._name, reason)
        self._leave()
        self._on_lost(reason)

    def _leave(self) -> None:
        self._pool = self._held = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._heartbeats is not None:
            self._heartbeats.unmonitor_target(self._resource_id)

    def tell(self, call: Call) -> None:
        """Calls reach the pool in the order of this method's; its death is the watch's to tell."""
        pool = self._pool
        if self._held is not None:
            self._held.append(call)
        elif pool is not None:
            tell(self._owner, self._told(pool, call), self._name)

    def restore(self, calls: Sequence[Call]) -> None:
        """Tell it what its predecessor had.  It is told nothing else until it has taken all of
        that: it would give slots again that somebody has."""
        if self._pool is not None and calls:
            self._held = []
            tell(self._owner, self._restore(self._pool, calls), self._name)

    async def _restore(self, pool: SlotPoolGateway, calls: Sequence[Call]) -> None:
        for call in calls:
            await self._told(pool, call)
            if pool is not self._pool:
                return
        held, self._held = self._held, None
        for call in held or ():
            self.tell(call)

    async def _told(self, pool: SlotPoolGateway, call: Call) -> None:
        try:
            await call(pool)
        except RpcError as error:
            self._lost(pool, f"it did not take what it was told: {error}")

    def connect_to(self, manager: ResourceManagerGateway) -> None:
        """Have the requirements declared there."""
        if self._pool is not None:
            address, token = manager.address, manager.fencing_token
            assert isinstance(token, ResourceManagerId)
            self.tell(lambda pool: pool.connect_to_resource_manager(address, token))

    def disconnect(self) -> None:
        """The ResourceManager is lost.  A pool that is to come never hears of it."""
        if self._pool is not None:
            self.tell(lambda pool: pool.disconnect_resource_manager())

    async def close(self, reason: str) -> None:
        """Have it give back all slots, and end."""
        pool = self._pool
        await self.leave()
        if pool is not None:
            try:
                await pool.close_pool(reason)
            except FlinkRayError as error:
                log.info("%s was not closed: %s", self._name, error)

    async def leave(self) -> None:
        """It is to keep in mind what it has, for the job's next JobMaster."""
        pool = self._pool
        self._leave()
        if self._heartbeats is not None:
            self._heartbeats.stop()
            self._heartbeats = None
        if pool is None and self._number:  # it is being started, and knows nothing yet
            await self._owner.rpc_service.kill(self._process)
