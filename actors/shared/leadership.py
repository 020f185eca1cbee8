"""Leading, and waiting to: an endpoint is made for one grant of leadership, and ends with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.high_availability import has_elections
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import LeaderSessionID
from flinkray.ha import LeaderContender, LeaderElection
from flinkray.rpc import RpcEndpoint

log = logging.getLogger(__name__)

_AGAIN = 0.1
"""Seconds until the election is asked again, when it could not say who leads."""


class LeadershipLostError(FlinkRayError):
    """The endpoint led, and somebody else may lead now: its process begins anew as one that waits
    for its turn."""


class _Contender(LeaderContender):
    """Waits for the grant; an endpoint that loses its leadership afterwards fails."""

    def __init__(self) -> None:
        self.session_id: LeaderSessionID | None = None
        """In which it leads now."""
        self.on_revoked: Callable[[], object] | None = None
        self.on_error: Callable[[Exception], None] = self._failed
        self.error: Exception | None = None
        """Of the election, while there was no endpoint that could fail."""
        self._changed = asyncio.Event()

    async def until_granted(self) -> LeaderSessionID:
        """The session; one that was over before anybody heard of it is none."""
        while self.session_id is None:
            await self._changed.wait()
            self._changed.clear()
            if self.error is not None:
                raise self.error
        return self.session_id

    def grant_leadership(self, session_id: LeaderSessionID) -> None:
        self.session_id = session_id
        self._changed.set()

    def revoke_leadership(self) -> None:
        self.session_id = None
        if self.on_revoked is not None:
            self.on_revoked()

    def handle_error(self, error: Exception) -> None:
        self.on_error(error)

    def _failed(self, error: Exception) -> None:
        self.error = error
        self._changed.set()


class Leadership:
    """Won leadership of one component: the session, and the way to be found."""

    def __init__(
        self, election: LeaderElection, contender: _Contender, session_id: LeaderSessionID
    ) -> None:
        self.session_id = session_id
        self._election = election
        self._contender = contender

    @classmethod
    async def win(cls, election: LeaderElection) -> Leadership:
        """Take part and wait until leadership is granted, however long that takes."""
        contender = _Contender()
        await election.start_leader_election(contender)
        return cls(election, contender, await contender.until_granted())

    async def confirm(self, endpoint: RpcEndpoint) -> None:
        """Let others find *endpoint*.

        It fails with :class:`LeadershipLostError` when the leadership is lost, or was lost since it
        was won: an endpoint leads in one session.  It fails when the election does, or has since.
        """

        def lost() -> None:
            endpoint.on_fatal_error(LeadershipLostError(f"{endpoint.address} leads no more"))

        if self.is_lost:
            lost()
            return
        if self._contender.error is not None:  # nobody would hear of a loss any more
            endpoint.on_fatal_error(self._contender.error)
            return
        self._contender.on_revoked = lost
        self._contender.on_error = endpoint.on_fatal_error
        await self._election.confirm_leadership(self.session_id, endpoint.address)

    @property
    def is_lost(self) -> bool:
        """As far as is known; also when it was given up."""
        return self._contender.session_id != self.session_id

    def lose(self) -> None:
        """Something that is fenced has shown it, whatever the election says by now."""
        self._contender.session_id = None

    async def is_certain(self) -> bool:
        """To be asked before something is done that nobody fences: a process that was paused does
        not know yet that another one leads.

        Waits while nobody can say.  False: the leadership is lost, and the endpoint ends.
        """
        while not self.is_lost:
            if await self._election.has_leadership(self.session_id):
                return True
            await asyncio.sleep(_AGAIN)
        return False

    async def give_up(self) -> None:
        self._contender.on_revoked = None
        await self._election.close()


MakeLeader = Callable[[Leadership], Awaitable[RpcEndpoint]]
"""Makes the endpoint that leads, knowing what its predecessor left; it is not started yet."""


async def lead_in_turn(
    services: ClusterServices, election: LeaderElection, make_leader: MakeLeader
) -> RpcEndpoint:
    """The main endpoint of a master's process: the leader itself, or, where several may contend,
    one that waits for its turn."""
    if has_elections(services.configuration):
        return StandbyMaster(services, election, make_leader)
    return await make_leader(await Leadership.win(election))


class StandbyMaster(RpcEndpoint):
    """Contends for a leadership, and hosts the endpoint that leads when it is granted.

    It ends with that endpoint, and as it does: a process leads once.  A master that has lost its
    leadership fails, and Ray starts its process again, with nothing in it of the time before
    (SPEC DI-17).
    """

    def __init__(
        self, services: ClusterServices, election: LeaderElection, make_leader: MakeLeader
    ) -> None:
        super().__init__(services.rpc_service, "standby")
        self._services = services
        self._election = election
        self._make_leader = make_leader
        self._leader: RpcEndpoint | None = None

    async def on_start(self) -> None:
        self.create_task(self._contend(), "contend")

    async def on_stop(self) -> None:
        if self._leader is not None:
            self._leader.close()
            await asyncio.wait([self._leader.terminated])
        else:
            await self._election.close()
            await self._services.high_availability.close()

    async def _contend(self) -> None:
        leadership = await Leadership.win(self._election)
        log.info("%s: granted leadership %s", self.address, leadership.session_id)
        leader = self._leader = await self._make_leader(leadership)
        leader.start()
        await asyncio.wait([leader.terminated])
        error = leader.terminated.exception()
        if error is not None:
            self.on_fatal_error(error)
        else:
            self.close()
