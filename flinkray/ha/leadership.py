"""The contracts of leader election and leader retrieval.

All callbacks are plain functions, called on the event loop on which the election or retrieval was
started, never from inside the call that caused them; a callback must not block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import LeaderSessionID


class LeaderElectionError(FlinkRayError):
    """An election or retrieval is used in a way that its state does not allow."""


class LeaderContender(ABC):
    """Something that can lead: it is granted leadership, and it can be taken away again."""

    @abstractmethod
    def grant_leadership(self, session_id: LeaderSessionID) -> None:
        """Leadership is given for the period *session_id*.

        The contender confirms with :meth:`LeaderElection.confirm_leadership` when it is ready to be
        found; until then nobody is told of it.
        """

    @abstractmethod
    def revoke_leadership(self) -> None:
        """Leadership is lost; called once for each grant that was not followed by a close."""

    @abstractmethod
    def handle_error(self, error: Exception) -> None:
        """The election itself failed; the contender cannot count on anything any more."""


class LeaderElection(ABC):
    """One contender's part in the election of one component's leader."""

    @abstractmethod
    async def start_leader_election(self, contender: LeaderContender) -> None:
        """Take part from now on.

        Raises:
            LeaderElectionError: this election was started or closed before.
        """

    @abstractmethod
    async def confirm_leadership(self, session_id: LeaderSessionID, address: str) -> None:
        """Publish *address* as the leader's.  An id that is not (or no longer) the granted one
        changes nothing."""

    @abstractmethod
    async def has_leadership(self, session_id: LeaderSessionID) -> bool:
        """Whether the contender leads in exactly that session now (confirmed or not)."""

    @abstractmethod
    async def close(self) -> None:
        """Leave.  A leader's leadership is revoked first (the contender is told).  Idempotent."""


class LeaderRetrievalListener(ABC):
    """Is told who leads a component."""

    @abstractmethod
    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        """The leader is now at *address*; (None, None): there is none.  The same leader is not told
        twice in a row."""

    @abstractmethod
    def handle_error(self, error: Exception) -> None: ...


class LeaderRetrievalService(ABC):
    """Follows one component's leader for one listener."""

    @property
    def outage(self) -> str | None:
        """For people: what is away by which leaders are found, since when, and the way out; None:
        nothing is."""
        return None

    @abstractmethod
    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Follow from now on; a leader that is known is told at once (after this call returned).

        Raises:
            LeaderElectionError: started before.
        """

    @abstractmethod
    async def stop(self) -> None:
        """No notification comes after this.  Idempotent."""
