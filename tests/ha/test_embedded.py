"""Elections among the contenders of one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.ha import EmbeddedHaServices, LeaderElectionError, MemoryDirectory
from flinkray.ha.checkpoint_stores import CheckpointStoreFencedError, CompletedCheckpointPointer
from flinkray.ha.embedded import EmbeddedLeaderElection, EmbeddedLeaderService
from tests.ha.recorders import (
    Leader,
    RecordingContender,
    RecordingListener,
    callbacks_delivered,
    start,
)

JOB = JobID(b"a job of a test.")
SESSION = LeaderSessionID.generate()
OTHER_JOB = JobID(b"another test job")
NO_LEADER: Leader = (None, None)


@pytest.fixture
async def services() -> AsyncIterator[EmbeddedHaServices]:
    with ThreadPoolExecutor(1) as executor:
        services = EmbeddedHaServices(MemoryDirectory(), executor)
        yield services
        await services.close()


async def test_one_of_two_contenders_for_a_component_is_granted_leadership(
    services: EmbeddedHaServices,
) -> None:
    """SPEC HA-01."""
    for election in (
        services.get_resource_manager_leader_election,
        services.get_dispatcher_leader_election,
        lambda: services.get_job_master_leader_election(JOB, SESSION),
    ):
        first, second = await start(election()), await start(election())
        assert [len(first.story), len(second.story)] == [1, 0]


async def test_contenders_for_two_jobs_are_granted_leadership_independently(
    services: EmbeddedHaServices,
) -> None:
    """SPEC HA-01."""
    one = await start(services.get_job_master_leader_election(JOB, SESSION))
    other = await start(
        services.get_job_master_leader_election(OTHER_JOB, LeaderSessionID.generate())
    )
    assert one.session_id != other.session_id


async def test_listeners_are_told_of_a_leader_only_after_it_has_confirmed(
    services: EmbeddedHaServices,
) -> None:
    """SPEC HA-02."""
    listener, later = RecordingListener(), RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    election = services.get_dispatcher_leader_election()
    contender = await start(election)
    assert listener.leaders == []

    await election.confirm_leadership(contender.session_id, "Dispatcher/dispatcher")
    await services.get_dispatcher_leader_retriever().start(later)
    await callbacks_delivered()
    leader: Leader = ("Dispatcher/dispatcher", contender.session_id)
    assert listener.leaders == [leader]
    assert later.leaders == [leader]


async def test_leader_that_confirms_twice_is_announced_once(services: EmbeddedHaServices) -> None:
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    election = services.get_dispatcher_leader_election()
    contender = await start(election)
    for _ in range(2):
        await election.confirm_leadership(contender.session_id, "here")
    await callbacks_delivered()
    assert listener.leaders == [("here", contender.session_id)]


async def test_stopped_leader_retrieval_gets_no_announcement_that_was_under_way(
    services: EmbeddedHaServices,
) -> None:
    listener = RecordingListener()
    retriever = services.get_dispatcher_leader_retriever()
    await retriever.start(listener)
    election = services.get_dispatcher_leader_election()
    contender = await start(election)
    await election.confirm_leadership(contender.session_id, "here")
    await retriever.stop()
    await retriever.stop()
    await callbacks_delivered()
    assert listener.leaders == []


async def test_revoked_leader_loses_leadership_at_once_and_leads_again_in_a_new_session(
    services: EmbeddedHaServices,
) -> None:
    """SPEC HA-03."""
    service = services.resource_manager_leader_service
    listener = RecordingListener()
    await services.get_resource_manager_leader_retriever().start(listener)
    election = services.get_resource_manager_leader_election()
    contender = await start(election)
    old = contender.session_id
    await election.confirm_leadership(old, "here")

    await service.revoke_leadership()
    assert not await election.has_leadership(old)
    await service.grant_leadership()
    await callbacks_delivered()
    new = contender.session_id
    assert contender.story == [old, "revoked", new]
    assert new != old

    await election.confirm_leadership(old, "a late confirmation")
    assert not await election.has_leadership(old)
    assert await election.has_leadership(new)
    await election.confirm_leadership(new, "here")
    await callbacks_delivered()
    assert listener.leaders == [("here", old), NO_LEADER, ("here", new)]


@pytest.mark.parametrize("in_flight", ["grant", "revoke"])
async def test_election_closed_during_an_event_drops_the_event_and_another_one_can_lead(
    services: EmbeddedHaServices, in_flight: str
) -> None:
    """SPEC HA-04."""
    service = services.dispatcher_leader_service
    election = services.get_dispatcher_leader_election()
    if in_flight == "grant":
        contender = RecordingContender()
        await election.start_leader_election(contender)
        await election.close()
        await callbacks_delivered()
        assert contender.story == []
    else:
        contender = await start(election)
        await service.revoke_leadership()
        await election.close()
        await callbacks_delivered()
        assert contender.story == [contender.session_id, "revoked"]
    assert len((await start(services.get_dispatcher_leader_election())).story) == 1


async def test_listeners_are_told_of_no_leader_when_the_last_contender_leaves(
    services: EmbeddedHaServices,
) -> None:
    """SPEC HA-05."""
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    election = services.get_dispatcher_leader_election()
    contender = await start(election)
    await election.confirm_leadership(contender.session_id, "here")
    await election.close()
    await callbacks_delivered()
    assert listener.leaders == [("here", contender.session_id), NO_LEADER]


async def test_closed_leader_is_revoked_once_and_the_longest_waiting_contender_follows(
    services: EmbeddedHaServices,
) -> None:
    elections = [services.get_dispatcher_leader_election() for _ in range(3)]
    contenders = [await start(election) for election in elections]
    await elections[0].close()
    await elections[0].close()
    await callbacks_delivered()
    assert contenders[0].story == [contenders[0].session_id, "revoked"]
    assert [len(contender.story) for contender in contenders[1:]] == [1, 0]


async def test_closing_the_ha_services_is_reported_to_every_contender(
    services: EmbeddedHaServices,
) -> None:
    leader = await start(services.get_dispatcher_leader_election())
    waiting = await start(services.get_dispatcher_leader_election())
    await services.close()
    await callbacks_delivered()
    assert leader.story[1] == "revoked"
    for contender in (leader, waiting):
        assert isinstance(contender.story[-1], LeaderElectionError)
    with pytest.raises(LeaderElectionError, match="closed"):
        services.get_dispatcher_leader_election()


async def test_starting_an_election_or_a_retrieval_twice_raises_an_error(
    services: EmbeddedHaServices,
) -> None:
    election = services.get_dispatcher_leader_election()
    await start(election)
    with pytest.raises(LeaderElectionError, match="one contender"):
        await election.start_leader_election(RecordingContender())
    retriever = services.get_dispatcher_leader_retriever()
    await retriever.start(RecordingListener())
    with pytest.raises(LeaderElectionError, match="one listener"):
        await retriever.start(RecordingListener())


async def test_cleaning_up_a_job_ends_only_the_election_of_that_job(
    services: EmbeddedHaServices,
) -> None:
    ended = await start(services.get_job_master_leader_election(JOB, SESSION))
    running = await start(
        services.get_job_master_leader_election(OTHER_JOB, LeaderSessionID.generate())
    )
    await services.cleanup_job(JOB)
    await services.cleanup_job(JOB)
    await callbacks_delivered()
    assert "revoked" in ended.story
    assert running.story == [running.session_id]


async def test_deleting_the_checkpoints_of_a_job_makes_its_old_store_refuse_changes(
    services: EmbeddedHaServices,
) -> None:
    """The last JobMaster of the job died before it could discard the checkpoints."""
    store = services.get_completed_checkpoint_store(JOB, "died")
    counter = services.get_checkpoint_id_counter(JOB, "died")
    await store.recover()
    await counter.start()
    assert await counter.get_and_increment() == 1
    await store.add(CompletedCheckpointPointer(JOB, 1, "/checkpoints/chk-1/_metadata"))
    await services.forget_checkpoints(JOB)
    await services.forget_checkpoints(JOB)
    with pytest.raises(CheckpointStoreFencedError):
        await store.remove(1)
    assert await services.get_checkpoint_id_counter(JOB, "later").get() == 1
    assert not (await services.get_completed_checkpoint_store(JOB, "later").recover()).records


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "confirm", "revoke", "grant", "deliver"]),
        st.integers(min_value=0, max_value=3),
    ),
    max_size=60,
)


@given(_STEPS)
def test_at_most_one_contender_leads_and_each_is_granted_and_revoked_in_turn(
    steps: list[tuple[str, int]],
) -> None:
    """In random sequences of steps. Sessions never come back, and listeners are told only what the
    session's own leader has confirmed."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, int]]) -> None:
    service = EmbeddedLeaderService("Dispatcher")
    listener = RecordingListener()
    await service.create_retriever().start(listener)
    contenders = [RecordingContender() for _ in range(4)]
    elections: list[EmbeddedLeaderElection | None] = [None] * 4
    for action, index in steps:
        election, contender = elections[index], contenders[index]
        if action == "join" and election is None:
            elections[index] = service.create_election()
            await elections[index].start_leader_election(contender)  # type: ignore[union-attr]
        elif action == "leave" and election is not None:
            elections[index] = None
            await election.close()
        elif action == "confirm" and election is not None and contender.story:
            await election.confirm_leadership(contender.session_id, f"address {index}")
        elif action == "revoke":
            await service.revoke_leadership()
        elif action == "grant":
            await service.grant_leadership()
        elif action == "deliver":
            await callbacks_delivered()
        sessions = _sessions(contenders)
        leading = [
            (election, session)
            for election in elections
            if election is not None
            for session in sessions
            if await election.has_leadership(session)
        ]
        assert len(leading) <= 1
    await callbacks_delivered()
    sessions = _sessions(contenders)
    assert len(set(sessions)) == len(sessions)
    for contender in contenders:
        assert all(event == "revoked" for event in contender.story[1::2])
        assert all(isinstance(event, LeaderSessionID) for event in contender.story[::2])
    for address, session in listener.leaders:
        if address is not None:
            owner = next(i for i, c in enumerate(contenders) if session in c.story)
            assert address == f"address {owner}"
    assert all(a != b for a, b in zip(listener.leaders, listener.leaders[1:], strict=False))


def _sessions(contenders: list[RecordingContender]) -> list[LeaderSessionID]:
    return [
        event
        for contender in contenders
        for event in contender.story
        if isinstance(event, LeaderSessionID)
    ]
