"""The contracts of leader election and leader retrieval.

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
        until then listeners are not told about it.
        """

    @abstractmethod
    def revoke_leadership(self) -> None:
        """Handle the loss of leadership: once for each grant, unless the election was closed."""

    @abstractmethod
    def handle_error(self, error: Exception) -> None:
        """Handle a failure of the election itself; no further event can be expected."""


class LeaderElection(ABC):
    """One contender's part in the election of one component's leader."""

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
        """Leave the election. A contender that leads gets ``revoke_leadership``. Idempotent."""


class LeaderRetrievalListener(ABC):
    """Gets notifications about the leader of a component."""

    @abstractmethod
    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        """Note that the leader is now at *address*; (None, None): there is no leader.

        The same leader is not reported twice in a row.
        """

    @abstractmethod
    def handle_error(self, error: Exception) -> None: ...


class LeaderRetrievalService(ABC):
    """Follows one component's leader for one listener."""

    @property
    def outage(self) -> str | None:
        """A text for users: since when the service for finding leaders is away, and the remedy.

        None if the service answers.
        """
        return None

    @abstractmethod
    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Follow the leader from now on; a known leader is reported soon after this call returned.

        Raises:
            LeaderElectionError: started before.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stop; no notification comes after this. Idempotent."""
