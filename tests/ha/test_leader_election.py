"""What holds for the elections of every kind of services (Flink's LeaderElectionTest)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha import (
    EmbeddedHaServices,
    HighAvailabilityServices,
    MemoryDirectory,
    StandaloneHaServices,
)
from flinkray.ha.zookeeper import ZooKeeperClient, ZooKeeperHaServices
from flinkray.testing.waiting import eventually
from tests.ha.recorders import RecordingContender, callbacks_delivered, start
from tests.zookeeper_server import ZooKeeperServer

JOB = JobID(b"a job of a test.")
SESSION = LeaderSessionID.generate()


@pytest.fixture(params=["embedded", "standalone", "zookeeper"])
async def services(request: pytest.FixtureRequest) -> AsyncIterator[HighAvailabilityServices]:
    with ThreadPoolExecutor(1) as executor:
        services: HighAvailabilityServices
        if request.param == "embedded":
            services = EmbeddedHaServices(MemoryDirectory(), executor)
        elif request.param == "standalone":
            services = StandaloneHaServices(MemoryDirectory(), executor)
        else:
            server: ZooKeeperServer = request.getfixturevalue("zookeeper")
            client = ZooKeeperClient(server.hosts, request.getfixturevalue("root"), 4.0)
            client.start()
            services = ZooKeeperHaServices(client, MemoryDirectory(), executor)
        yield services
        await services.close()


async def test_election_has_leadership_from_grant_to_close_for_the_granted_session_only(
    services: HighAvailabilityServices,
) -> None:
    """SPEC HA-06."""
    election = services.get_job_master_leader_election(JOB, SESSION)
    random_session = LeaderSessionID.generate()
    assert not await election.has_leadership(LeaderSessionID.standalone())
    assert not await election.has_leadership(random_session)

    contender = await start(election)
    await eventually(lambda: contender.story, 300, "the grant")
    session = contender.session_id
    assert await election.has_leadership(session)
    assert not await election.has_leadership(random_session)
    await election.confirm_leadership(session, "JobMaster/jobmaster")
    assert await election.has_leadership(session)

    await election.close()
    assert not await election.has_leadership(session)
    assert contender.story == [session, "revoked"]


async def test_leadership_grant_that_arrives_after_the_election_was_closed_is_dropped(
    services: HighAvailabilityServices,
) -> None:
    """SPEC HA-11."""
    election = services.get_dispatcher_leader_election()
    contender = RecordingContender()
    await election.start_leader_election(contender)
    await election.close()
    await callbacks_delivered()
    assert contender.story == []
