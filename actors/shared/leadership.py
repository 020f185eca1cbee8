"""Leader election for master processes.
Each grant gets a new endpoint, which ends with the grant.
"""

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
"""Seconds until the election is asked again after it could not say who leads."""


class LeadershipLostError(FlinkRayError):
    """Raised when the endpoint has lost its leadership.
    Another process may lead now. This process starts again and waits for its turn.
    """


class _Contender(LeaderContender):
    """Waits until leadership is granted. A later loss of leadership makes the endpoint fail."""

    def __init__(self) -> None:
        self.session_id: LeaderSessionID | None = None
        """Session in which this contender leads now; None if it does not lead."""
        self.on_revoked: Callable[[], object] | None = None
        self.on_error: Callable[[Exception], None] = self._failed
        self.error: Exception | None = None
        """Error that the election reported before there was an endpoint to fail with it."""
        self._changed = asyncio.Event()

    async def until_granted(self) -> LeaderSessionID:
        """Wait for a grant and return its session. Skips sessions revoked before this returns."""
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
    """A leadership that this process has won. Announces the leader, and knows of its loss."""

    def __init__(
        self, election: LeaderElection, contender: _Contender, session_id: LeaderSessionID
    ) -> None:
        self.session_id = session_id
        self._election = election
        self._contender = contender

    @classmethod
    async def win(cls, election: LeaderElection) -> Leadership:
        """Take part in the election, wait without a limit until this process leads, and return
        that."""
        contender = _Contender()
        await election.start_leader_election(contender)
        return cls(election, contender, await contender.until_granted())

    async def confirm(self, endpoint: RpcEndpoint) -> None:
        """Announce *endpoint* as the leader, so that other processes find it.

        The endpoint fails with :class:`LeadershipLostError` if the leadership is lost or was lost
        since it was granted: an endpoint leads in one session only. The endpoint also fails if the
        election fails or has failed.
        """

        def lost() -> None:
            endpoint.on_fatal_error(LeadershipLostError(f"{endpoint.address} leads no more"))

        if self.is_lost:
            lost()
            return
        if self._contender.error is not None:  # a loss of leadership would not be noticed any more
            endpoint.on_fatal_error(self._contender.error)
            return
        self._contender.on_revoked = lost
        self._contender.on_error = endpoint.on_fatal_error
        await self._election.confirm_leadership(self.session_id, endpoint.address)

    @property
    def is_lost(self) -> bool:
        """Whether the leadership is lost or given up, as far as this process knows."""
        return self._contender.session_id != self.session_id

    def lose(self) -> None:
        """Mark the leadership as lost.
        Call this when a refused call shows that another process leads.
        """
        self._contender.session_id = None

    async def is_certain(self) -> bool:
        """Ask the election whether this process still leads, and return the answer.
        Call this before an action that no fencing protects: after a pause, this process may not
        know that another process leads.

        Waits while the election cannot say. False means that the leadership is lost: the endpoint
        ends.
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
"""Function that creates the endpoint of the leader, and recovers what an earlier leader has stored.
The endpoint is not started yet.
"""


async def lead_in_turn(
    services: ClusterServices, election: LeaderElection, make_leader: MakeLeader
) -> RpcEndpoint:
    """Return the main endpoint of a master process: the leader itself or, if several processes may
    contend for the leadership, a :class:`StandbyMaster`."""
    if has_elections(services.configuration):
        return StandbyMaster(services, election, make_leader)
    return await make_leader(await Leadership.win(election))


class StandbyMaster(RpcEndpoint):
    """Waits for a leadership and, once it is granted, hosts the endpoint that leads.

    The StandbyMaster ends together with that endpoint, normally or with its error: a process leads
    at most once. If the leadership is lost, the process fails, and Ray starts it again without any
    earlier state (SPEC DI-17).
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
