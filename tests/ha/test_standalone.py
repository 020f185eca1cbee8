"""Leader election without competitors, and what every election promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha import (
    EmbeddedHaServices,
    HighAvailabilityServices,
    LeaderElectionError,
    LeaderRetrievalService,
    MemoryDirectory,
    StandaloneHaServices,
)
from flinkray.ha.zookeeper import ZooKeeperClient, ZooKeeperHaServices
from flinkray.testing.waiting import eventually
from tests.ha.recorders import (
    Leader,
    RecordingContender,
    RecordingListener,
    callbacks_delivered,
    start,
)
from tests.zookeeper_server import ZooKeeperServer

JOB = JobID(b"a job of a test.")
ZERO = LeaderSessionID(bytes(16))


@pytest.fixture
async def services() -> AsyncIterator[StandaloneHaServices]:
    with ThreadPoolExecutor(1) as executor:
        services = StandaloneHaServices(MemoryDirectory(), executor)
        yield services
        await services.close()


async def leaders_told_by(retriever: LeaderRetrievalService) -> list[Leader]:
    listener = RecordingListener()
    await retriever.start(listener)
    await callbacks_delivered()
    return listener.leaders


async def test_standalone_contender_is_granted_leadership_at_once_with_session_zero(
    services: StandaloneHaServices,
) -> None:
    """SPEC HA-07."""
    for election in (
        services.get_dispatcher_leader_election(),
        services.get_resource_manager_leader_election(),
        services.get_job_master_leader_election(JOB, ZERO),
    ):
        contender = RecordingContender()
        await election.start_leader_election(contender)
        await callbacks_delivered()
        assert contender.story == [ZERO]


async def test_standalone_retrievers_report_the_configured_addresses(
    services: StandaloneHaServices,
) -> None:
    """SPEC HA-07."""
    assert await leaders_told_by(services.get_dispatcher_leader_retriever()) == [
        ("Dispatcher/dispatcher", ZERO)
    ]
    assert await leaders_told_by(services.get_resource_manager_leader_retriever()) == [
        ("ResourceManager/resourcemanager", ZERO)
    ]
    with ThreadPoolExecutor(1) as executor:
        elsewhere = StandaloneHaServices(
            MemoryDirectory(), executor, resource_manager_address="RM-2/resourcemanager"
        )
        assert await leaders_told_by(elsewhere.get_resource_manager_leader_retriever()) == [
            ("RM-2/resourcemanager", ZERO)
        ]


async def test_standalone_retriever_knows_only_the_job_master_address_it_was_given(
    services: StandaloneHaServices,
) -> None:
    """SPEC HA-07. The session id is flinkray's addition: each attempt of a JobMaster
    has its own."""
    session = LeaderSessionID.generate()
    retriever = services.get_job_master_leader_retriever
    assert await leaders_told_by(retriever(JOB)) == [("UNKNOWN", ZERO)]
    assert await leaders_told_by(retriever(JOB, "JM/jobmaster")) == [("JM/jobmaster", ZERO)]
    assert await leaders_told_by(retriever(JOB, "JM/jobmaster", session)) == [
        ("JM/jobmaster", session)
    ]


async def test_standalone_retrieval_stopped_before_its_callback_ran_reports_no_leader(
    services: StandaloneHaServices,
) -> None:
    listener = RecordingListener()
    retriever = services.get_dispatcher_leader_retriever()
    await retriever.start(listener)
    await retriever.stop()
    await callbacks_delivered()
    assert listener.leaders == []
    with pytest.raises(LeaderElectionError, match="twice"):
        await retriever.start(listener)


async def test_closing_an_election_revokes_its_contender(services: StandaloneHaServices) -> None:
    """SPEC HA-08."""
    election = services.get_dispatcher_leader_election()
    assert not await election.has_leadership(ZERO)
    contender = RecordingContender()
    await election.start_leader_election(contender)
    await callbacks_delivered()
    assert await election.has_leadership(ZERO)
    await election.close()
    await election.close()
    assert contender.story == [ZERO, "revoked"]
    assert not await election.has_leadership(ZERO)


async def test_closed_ha_services_refuse_elections_and_retrievers(
    services: StandaloneHaServices,
) -> None:
    await services.close()
    for hand_out in (
        services.get_dispatcher_leader_election,
        services.get_dispatcher_leader_retriever,
        lambda: services.get_job_master_leader_retriever(JOB),
    ):
        with pytest.raises(LeaderElectionError, match="closed"):
            hand_out()


SESSION = LeaderSessionID.generate()


@pytest.fixture(params=["embedded", "standalone", "zookeeper"])
async def any_services(
    request: pytest.FixtureRequest,
) -> AsyncIterator[HighAvailabilityServices]:
    with ThreadPoolExecutor(1) as executor:
        any_services: HighAvailabilityServices
        if request.param == "embedded":
            any_services = EmbeddedHaServices(MemoryDirectory(), executor)
        elif request.param == "standalone":
            any_services = StandaloneHaServices(MemoryDirectory(), executor)
        else:
            server: ZooKeeperServer = request.getfixturevalue("zookeeper")
            client = ZooKeeperClient(server.hosts, request.getfixturevalue("root"), 4.0)
            client.start()
            any_services = ZooKeeperHaServices(client, MemoryDirectory(), executor)
        yield any_services
        await any_services.close()


async def test_election_has_leadership_from_grant_to_close_for_the_granted_session_only(
    any_services: HighAvailabilityServices,
) -> None:
    """SPEC HA-06."""
    election = any_services.get_job_master_leader_election(JOB, SESSION)
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
    any_services: HighAvailabilityServices,
) -> None:
    """SPEC HA-11."""
    election = any_services.get_dispatcher_leader_election()
    contender = RecordingContender()
    await election.start_leader_election(contender)
    await election.close()
    await callbacks_delivered()
    assert contender.story == []
