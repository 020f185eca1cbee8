"""Defines the interfaces of leader election and leader retrieval.

All callbacks are plain functions, called on the event loop on which the election or retrieval was
started, never from inside the call that caused them; a callback must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import LeaderSessionID


class LeaderElectionError(FlinkRayError):
    """The election or retrieval is in a state that does not allow the call."""


class LeaderContender(ABC):
    """A component that can lead: leadership is granted to it, and can be revoked again."""

    @abstractmethod
    def grant_leadership(self, session_id: LeaderSessionID) -> None:
        """Handle the grant of leadership for the session *session_id*.

        The contender calls :meth:`LeaderElection.confirm_leadership` when it is ready to be found;
        until then listeners do not learn about it.
        """

    @abstractmethod
    def revoke_leadership(self) -> None:
        """Handle the loss of leadership. Called once for each grant, unless the election was
        closed."""

    @abstractmethod
    def handle_error(self, error: Exception) -> None:
        """Handle a failure of the election itself; no further events follow."""


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
        """Publish *address* as the leader's address.

        Has no effect if *session_id* is not (or no longer) the granted session.
        """

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
        """Handle that the leader is now at *address*; (None, None): there is no leader.

        The same leader is not reported twice in a row.
        """

    @abstractmethod
    def handle_error(self, error: Exception) -> None: ...


class LeaderRetrievalService(ABC):
    """Finds the leader of one component, and tells one listener about each change."""

    @property
    def outage(self) -> str | None:
        """Text for users that says since when leaders cannot be found, and the remedy.

        None if the service that knows the leaders answers.
        """
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
