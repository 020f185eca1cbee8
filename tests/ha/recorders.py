"""A contender and a listener that write down what they are told."""

from __future__ import annotations

import asyncio

from kazoo.exceptions import NoNodeError

from flinkray.core.ids import LeaderSessionID
from flinkray.ha import LeaderContender, LeaderElection, LeaderRetrievalListener
from flinkray.ha.zookeeper import ZooKeeperHaServices
from flinkray.testing.waiting import eventually

Leader = tuple[str | None, LeaderSessionID | None]


class RecordingContender(LeaderContender):
    """``story`` holds a session id for each grant, "revoked", and errors."""

    def __init__(self) -> None:
        self.story: list[LeaderSessionID | str | Exception] = []

    def grant_leadership(self, session_id: LeaderSessionID) -> None:
        self.story.append(session_id)

    def revoke_leadership(self) -> None:
        self.story.append("revoked")

    def handle_error(self, error: Exception) -> None:
        self.story.append(error)

    @property
    def session_id(self) -> LeaderSessionID:
        """Of the last grant."""
        return [event for event in self.story if isinstance(event, LeaderSessionID)][-1]


class RecordingListener(LeaderRetrievalListener):
    """``leaders`` holds each (address, session id) that was told."""

    def __init__(self) -> None:
        self.leaders: list[Leader] = []

    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        self.leaders.append((address, session_id))

    def handle_error(self, error: Exception) -> None:
        raise AssertionError(f"no error is expected: {error}") from error


async def callbacks_delivered() -> None:
    """Returns after every callback that was due when it was called has run (the loop runs them in
    the order in which they were scheduled)."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn


async def start(election: LeaderElection) -> RecordingContender:
    contender = RecordingContender()
    await election.start_leader_election(contender)
    await callbacks_delivered()
    return contender


async def place_taken(services: ZooKeeperHaServices, component: str, number: int) -> None:
    """Wait until so many contenders for the leadership of a component have taken their places."""
    path = services._client.path("leader", component, "latch")

    def are_there() -> bool:
        try:
            return len(services._client.blocking(lambda zk: zk.get_children(path))) == number
        except NoNodeError:
            return False

    await eventually(are_there, 300, f"{number} contenders")
