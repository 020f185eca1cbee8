"""Defines the interfaces of leader election and leader retrieval.

All callbacks are plain functions, called on the event loop on which the election or retrieval was
started, never from inside the call that caused them; a callback must not block.

This module decides, on the event loop, what contenders and listeners are told; a driver reports the
events of its service, from the service's own threads (Flink's DefaultLeaderElectionService and
DefaultLeaderRetrievalService).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import LeaderSessionID


class LeaderElectionError(FlinkRayError):
    """The election or retrieval is in a state that does not allow the call."""


class LeaderContender(ABC):
    """A component that can lead: leadership is granted to it, and can be revoked again."""

    @abstractmethod
    def grant_leadership(self, session_id: LeaderSessionID) -> None:
        """Called when this contender becomes the leader, in the session *session_id*. Listeners
        learn about the leader only when the contender, once ready to be found, calls
        :meth:`LeaderElection.confirm_leadership`."""

    @abstractmethod
    def revoke_leadership(self) -> None:
        """Called when leadership is lost: once for each grant, unless the election was closed."""

    @abstractmethod
    def handle_error(self, error: Exception) -> None:
        """Called when the election itself has failed; no further events follow."""


class LeaderElection(ABC):
    """Represents one contender in the election of one component's leader."""

    @abstractmethod
    async def start_leader_election(self, contender: LeaderContender) -> None:
        """Take part in the election from now on.

        Raises:
            LeaderElectionError: this election was started or closed before.
        """

    @abstractmethod
    async def confirm_leadership(self, session_id: LeaderSessionID, address: str) -> None:
        """Publish *address* as the leader's address. Has no effect if *session_id* is not (or no
        longer) the granted session."""

    @abstractmethod
    async def has_leadership(self, session_id: LeaderSessionID) -> bool:
        """Return whether the contender leads in exactly this session now (confirmed or not)."""

    @abstractmethod
    async def close(self) -> None:
        """Leave the election. A contender that leads gets ``revoke_leadership``. Can be called
        again."""


class LeaderRetrievalListener(ABC):
    """Receives notifications about the leader of a component."""

    @abstractmethod
    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        """Called when the leader is now at *address*; (None, None): there is no leader. The same
        leader is not reported twice in a row."""

    @abstractmethod
    def handle_error(self, error: Exception) -> None: ...


class LeaderRetrievalService(ABC):
    """Finds the leader of one component, and tells one listener about each change."""

    @property
    def outage(self) -> str | None:
        """Text for users that says since when leaders cannot be found, and the remedy. None if the
        service that knows the leaders answers."""
        return None

    @abstractmethod
    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Tell *listener* about the leader from now on.

        A known leader is reported soon after this call has returned.

        Raises:
            LeaderElectionError: started before.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop following the leader; no notification comes after this. Can be called again."""


@dataclass(frozen=True)
class LeaderInformation:
    """The published information about a leader: its address and its session."""

    address: str
    session_id: LeaderSessionID


class ElectionEvents(ABC):
    """Receives the events of an election from a driver; methods are called on the event loop."""

    @abstractmethod
    def on_grant(self) -> None: ...

    @abstractmethod
    def on_revoke(self) -> None: ...

    @abstractmethod
    def on_information(self, information: LeaderInformation | None) -> None:
        """Called with the leader information that is published now (None: none is), no matter who
        published it."""

    @abstractmethod
    def on_error(self, error: Exception) -> None: ...


class LeaderElectionDriver(ABC):
    """Represents one contender in an election of an external service."""

    @abstractmethod
    def start(self, events: ElectionEvents) -> None:
        """Take part in the election from now on, and report to *events*."""

    @abstractmethod
    def has_leadership(self) -> bool:
        """Return whether the contender leads, as far as this process knows. False as soon as the
        service says so, or does not answer, even if :meth:`ElectionEvents.on_revoke` has not been
        called yet."""

    @abstractmethod
    async def still_leads(self) -> bool:
        """Ask the service now whether the contender leads. Unlike :meth:`has_leadership`, the
        answer is right even if this process was paused. False also if the service does not
        answer."""

    @abstractmethod
    async def publish(self, information: LeaderInformation) -> None:
        """Publish *information* about this leader; does nothing if the contender no longer
        leads."""

    @abstractmethod
    async def withdraw(self) -> None:
        """Delete the published information, if this contender still leads."""

    @abstractmethod
    async def close(self) -> None:
        """Leave the election; no event is reported after this."""


class DriverLeaderElection(LeaderElection):
    """Runs an election for one contender through a driver, which it creates when the contender
    joins.

    *session_id* is the session of the first grant. None: a new session, as for all later grants.
    """

    def __init__(
        self,
        make_driver: Callable[[], LeaderElectionDriver],
        session_id: LeaderSessionID | None = None,
    ) -> None:
        self._make_driver = make_driver
        self._proposed = session_id
        self._driver: LeaderElectionDriver | None = None
        self._contender: LeaderContender | None = None
        self._session_id: LeaderSessionID | None = None
        self._confirmed: LeaderInformation | None = None
        self._closed = False

    async def start_leader_election(self, contender: LeaderContender) -> None:
        if self._contender is not None or self._closed:
            raise LeaderElectionError("an election takes one contender, once")
        self._contender = contender
        self._driver = self._make_driver()
        self._driver.start(_Events(self))

    async def confirm_leadership(self, session_id: LeaderSessionID, address: str) -> None:
        if self._leads(session_id):
            assert self._driver is not None
            self._confirmed = LeaderInformation(address, session_id)
            await self._driver.publish(self._confirmed)

    async def has_leadership(self, session_id: LeaderSessionID) -> bool:
        if not self._leads(session_id):
            return False
        assert self._driver is not None
        return await self._driver.still_leads() and self._leads(session_id)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        led = self._session_id is not None
        self._revoked()
        self._contender = None
        if self._driver is not None:
            if led:
                await self._driver.withdraw()
            await self._driver.close()

    def _leads(self, session_id: LeaderSessionID) -> bool:
        driver = self._driver
        return session_id == self._session_id and driver is not None and driver.has_leadership()

    def _granted(self) -> None:
        if self._contender is not None:
            proposed, self._proposed = self._proposed, None
            self._session_id = proposed or LeaderSessionID.generate()
            self._contender.grant_leadership(self._session_id)

    def _revoked(self) -> None:
        """Tell the contender that it has lost leadership. The published information is not deleted,
        because it may already be that of another leader."""
        if self._session_id is not None and self._contender is not None:
            self._session_id = self._confirmed = None
            self._contender.revoke_leadership()

    def _published(self, information: LeaderInformation | None) -> None:
        """Publish the information that this leader has confirmed again, if another process has
        replaced it by *information*."""
        confirmed = self._confirmed
        if confirmed is not None and information != confirmed and self._leads(confirmed.session_id):
            assert self._driver is not None
            task = asyncio.ensure_future(self._driver.publish(confirmed))
            task.add_done_callback(self._publication_ended)

    def _publication_ended(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self._contender is not None:
            self._contender.handle_error(error)


class _Events(ElectionEvents):
    def __init__(self, election: DriverLeaderElection) -> None:
        self._election = election

    def on_grant(self) -> None:
        self._election._granted()

    def on_revoke(self) -> None:
        self._election._revoked()

    def on_information(self, information: LeaderInformation | None) -> None:
        self._election._published(information)

    def on_error(self, error: Exception) -> None:
        self._election._failed(error)


class LeaderRetrievalDriver(ABC):
    """Follows the information that the leaders of a component publish in an external service."""

    @property
    @abstractmethod
    def outage(self) -> str | None:
        """Text for users that says since when the service does not answer; None if it answers."""

    @abstractmethod
    def start(
        self,
        on_information: Callable[[LeaderInformation | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """Start to follow the leader; both functions are called on the event loop.

        *on_information* gets each published information, and None while the service does not
        answer. *on_error* gets an error after which the driver reports nothing more.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop following the leader; nothing is reported after this."""


class DriverLeaderRetrievalService(LeaderRetrievalService):
    """Tells a listener about each change of the leader that a driver reports.

    The same information is never reported twice in a row.
    """

    def __init__(self, make_driver: Callable[[], LeaderRetrievalDriver]) -> None:
        self._make_driver = make_driver
        self._driver: LeaderRetrievalDriver | None = None
        self._listener: LeaderRetrievalListener | None = None
        self._told: LeaderInformation | None = None

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if self._driver is not None:
            raise LeaderElectionError("a retrieval takes one listener, once")
        self._listener = listener
        self._driver = self._make_driver()
        self._driver.start(self._changed, self._failed)

    @property
    def outage(self) -> str | None:
        return None if self._driver is None else self._driver.outage

    async def stop(self) -> None:
        self._listener = None
        if self._driver is not None:
            await self._driver.close()

    def _changed(self, information: LeaderInformation | None) -> None:
        if self._listener is None or information == self._told:
            return
        self._told = information
        if information is None:
            self._listener.notify_leader_address(None, None)
        else:
            self._listener.notify_leader_address(information.address, information.session_id)

    def _failed(self, error: Exception) -> None:
        if self._listener is not None:
            self._listener.handle_error(error)
