"""Starts and watches a JobMaster's SlotPool, passes calls to it, and replaces it by a new one."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from flinkray.actors.gateways import ResourceManagerGateway, SlotPoolGateway
from flinkray.actors.gateways.job_processes import slot_pool_process
from flinkray.actors.gateways.messages import SlotPoolArguments
from flinkray.actors.shared.notifications import tell
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
"""Number of SlotPools in a row that may die while starting. Then the JobMaster gives up."""

Call = Callable[[SlotPoolGateway], Coroutine[Any, Any, None]]


class SlotPoolSupervision:
    """Keeps a SlotPool alive for a JobMaster. Lives on the JobMaster's main thread.

    JobMaster and SlotPool must agree about slots. So if a call to the pool fails, a message from it
    is lost, or it does not answer heartbeats, the pool is ended and replaced as if it had died.
    Calls made while there is no pool are dropped: the next pool is sent everything again.
    """

    def __init__(
        self,
        owner: RpcEndpoint,
        arguments: SlotPoolArguments,
        name: str,
        heartbeat: HeartbeatSettings,
        *,
        on_lost: Callable[[], None],
    ) -> None:
        """Create the supervision; :meth:`start` starts a pool.

        *name* names the pool in log lines. *on_lost* is called when the pool has died. The caller
        must start the next pool.
        """
        self._owner = owner
        self._arguments = arguments
        self._name = name
        self._heartbeat_settings = heartbeat
        self._on_lost = on_lost
        self._number = 0
        """Number of the present pool. The first pool of this JobMaster has number 1."""
        self._pool: SlotPoolGateway | None = None
        self._manager: ResourceManagerGateway | None = None
        """The ResourceManager at which the JobMaster is registered."""
        self._held: list[Call] | None = None
        """Calls that wait until :meth:`restore` has ended.
        None: calls do not wait.
        """
        self._watch: TerminationWatch | None = None
        self._heartbeats: HeartbeatSender[None, None] | None = None
        self._news_seen = 0
        self._news_sent = 0
        """How many news messages the pool had sent at its last heartbeat."""

    @property
    def gateway(self) -> SlotPoolGateway | None:
        """The gateway of the pool.
        None if there is no pool, or if :meth:`restore` has not ended yet.
        """
        return self._pool if self._held is None else None

    @property
    def is_first(self) -> bool:
        """Whether this JobMaster has started no more than one pool."""
        return self._number <= 1

    @property
    def _process(self) -> str:
        return slot_pool_process(self._arguments.job_id, self._arguments.job_master_id)

    async def start(self, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start a pool, which knows no requirements, slots or notes yet. If *until* is given, the
        pool is not used before *until* has returned.

        Raises:
            RpcError: too many pools in a row died while starting.
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
                may_return=True,
            )
            try:
                if self._number > 1:  # its predecessor may still live
                    await service.kill(name)
                address = await service.spawn(spec)
                token = self._arguments.job_master_id
                pool = await self._owner.connect(address, SlotPoolGateway, token)
                break
            except RpcError as error:  # the pool died while it started
                if not starts_left:
                    raise
                log.warning("%s did not start: %s", self._name, error)
        if until is not None:
            await until()
        self._began(pool)

    def _began(self, pool: SlotPoolGateway) -> None:
        self._pool = pool
        self._news_seen = self._news_sent = 0
        self._watch = self._owner.watch(pool, lambda reason: self._lost(pool, reason))
        if self._heartbeats is not None:
            self._heartbeats.monitor_target(self._resource_id, lambda _: self._ask_for_news(pool))

    def _begin_heartbeats(self) -> None:
        """Create the sender of heartbeats, unless it exists.
        Called before the first pool exists, so that a new pool is not asked at once.
        """
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
        """Request a heartbeat of the pool, which returns how many ``slots_changed`` messages it has
        sent. Replaces the pool if one of the messages that it had sent before its last heartbeat
        has still not arrived."""
        news_sent = await pool.request_heartbeat()
        if pool is not self._pool or self._heartbeats is None:
            return
        self._heartbeats.receive_heartbeat(self._resource_id, None)
        if self._news_seen < self._news_sent:
            self._lost(pool, "news of it were lost")
        else:
            self._news_sent = news_sent

    def is_next(self, pool_number: int, news_number: int) -> bool:
        """Count a ``slots_changed`` message, and return whether to process it: True if it is the
        next message of the present pool. If the numbers have a gap, messages were lost, and the
        pool is replaced."""
        pool = self._pool
        if pool is None or pool_number != self._number or news_number <= self._news_seen:
            return False
        if news_number > self._news_seen + 1:
            self._lost(pool, "news of it were lost")
            return False
        self._news_seen = news_number
        return True

    def _lost(self, pool: SlotPoolGateway | None, reason: str) -> None:
        if pool is None or pool is not self._pool:
            return
        log.warning("%s died: %s", self._name, reason)
        self._leave()
        self._on_lost()

    def _leave(self) -> None:
        self._pool = self._held = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._heartbeats is not None:
            self._heartbeats.unmonitor_target(self._resource_id)

    def tell(self, call: Call) -> None:
        """Make a call to the pool in the background. Without a pool the call is dropped.
        Calls reach the pool in order. An error needs no answer here: the watch reports the pool's
        death.
        """
        pool = self._pool
        if self._held is not None:
            self._held.append(call)
        elif pool is not None:
            tell(self._owner, self._told(pool, call), self._name)

    def restore(self, calls: Sequence[Call]) -> None:
        """Make the first calls to a new pool, with the notes and slots that its predecessor had.

        Other calls wait until the pool has answered these. Otherwise the pool could assign slots
        that are already in use.
        """
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
        """Tell the pool, and each next one, to declare its requirements at this ResourceManager."""
        self._manager = manager
        self.connect_again()

    def connect_again(self) -> None:
        """Tell a new pool, which has been sent all requirements, where to declare them: at the
        ResourceManager of the last :meth:`connect_to`. Does nothing if that one is lost."""
        if self._manager is not None:
            address, token = self._manager.address, self._manager.fencing_token
            assert isinstance(token, ResourceManagerId)
            self.tell(lambda pool: pool.connect_to_resource_manager(address, token))

    def disconnect(self) -> None:
        """Tell the present pool, if there is one, that the ResourceManager is lost."""
        self._manager = None
        self.tell(lambda pool: pool.disconnect_resource_manager())

    async def close(self, reason: str) -> None:
        """Order the pool to free all slots and to end."""
        pool = self._pool
        await self.leave()
        if pool is not None:
            try:
                await pool.close_pool(reason)
            except FlinkRayError as error:
                log.info("%s was not closed: %s", self._name, error)

    async def leave(self) -> None:
        """Stop using the pool, but let it run.
        The pool keeps its slots for the job's next JobMaster.
        """
        pool = self._pool
        self._leave()
        if self._heartbeats is not None:
            self._heartbeats.stop()
            self._heartbeats = None
        if pool is None and self._number:  # the pool is being started, and knows nothing yet
            await self._owner.rpc_service.kill(self._process)
