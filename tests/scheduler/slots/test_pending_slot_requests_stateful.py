"""Who waits for a slot, against a list of all requests in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.core.ids import ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import size_of
from flinkray.scheduler.slots.pending_slot_requests import PendingRequests
from flinkray.scheduler.slots.slot_requests import SlotRequest
from tests.scheduler.builders import GIB, LARGE, SMALL, allocation, id_of, slot_on

MEDIUM = ResourceProfile(2.0, 2 * GIB)
profiles = st.sampled_from((SMALL, MEDIUM, LARGE))
HOSTS = ("te-0", "te-1")


@dataclass
class Waiting:
    request: SlotRequest
    profile: ResourceProfile
    is_batch: bool
    timeout: float
    since: float


class PendingRequestsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.requests = PendingRequests()
        self.waiting: list[Waiting] = []
        """Oldest first."""
        self.now = 0.0
        self.number = 0

    @rule(
        profile=profiles,
        is_batch=st.booleans(),
        timeout=st.sampled_from((3.0, 5.0)),
        before=st.lists(st.integers(0, 2), unique=True, max_size=2),
        near=st.lists(st.sampled_from(HOSTS), unique=True, max_size=2),
    )
    def a_request_comes(
        self,
        profile: ResourceProfile,
        is_batch: bool,
        timeout: float,
        before: list[int],
        near: list[str],
    ) -> None:
        self.number += 1
        request = SlotRequest(
            id_of(SlotRequestId, self.number),
            preferred_allocations=tuple(map(allocation, before)),
            preferred_task_executors=tuple(map(ResourceID, near)),
        )
        self.requests.add(request, profile, is_batch, timeout, self.now, False)
        self.waiting.append(Waiting(request, profile, is_batch, timeout, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_request_goes(self, data: st.DataObject) -> None:
        gone = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        pending = self.requests.remove(gone.request.request_id)
        assert pending is not None
        assert pending.request == gone.request
        assert self.requests.remove(gone.request.request_id) is None

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(
        number=st.integers(0, 2),
        host=st.sampled_from(HOSTS),
        held=profiles,
        matched=profiles,
    )
    def a_slot_comes(
        self, number: int, host: str, held: ResourceProfile, matched: ResourceProfile
    ) -> None:
        slot = slot_on(host, number, 0, held)
        served = self.requests.whom_to_serve(slot, matched)
        fitting = [one for one in self.waiting if one.profile.fits_into(held)]
        had_it = [o for o in fitting if slot.allocation_id in o.request.preferred_allocations]
        is_near = [
            o for o in fitting if slot.location.resource_id in o.request.preferred_task_executors
        ]
        exact = [o for o in fitting if o.profile == matched]
        largest = max((size_of(o.profile) for o in fitting), default=None)
        others = [o for o in fitting if size_of(o.profile) == largest]
        expected = next(iter(had_it or is_near or exact or others), None)
        if expected is None:
            assert served is None
        else:
            assert served is not None
            assert served.request == expected.request

    @invariant()
    def requests_are_found_oldest_first(self) -> None:
        assert [p.request for p in self.requests.all()] == [o.request for o in self.waiting]
        assert len(self.requests) == len(self.waiting)
        for profile in (SMALL, MEDIUM, LARGE):
            assert [p.request for p in self.requests.of_profile(profile)] == [
                o.request for o in self.waiting if o.profile == profile
            ]
        for one in self.waiting:
            assert one.request.request_id in self.requests
        batch = {(o.profile, o.timeout) for o in self.waiting if o.is_batch}
        assert {(ln.profile, ln.timeout) for ln in self.requests.batch_lanes()} == batch

    @invariant()
    def each_times_out_after_its_own_time(self) -> None:
        due = [o.since + o.timeout for o in self.waiting]
        assert self.requests.next_deadline() == min(due, default=inf)
        late = [o for o in self.waiting if o.since + o.timeout <= self.now]
        assert [p.request for p in self.requests.timed_out(self.now)] == [o.request for o in late]


TestPendingRequests = PendingRequestsMachine.TestCase
TestPendingRequests.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_oldest_request_of_a_profile_is_served_first_whatever_its_kind_and_timeout() -> None:
    requests = PendingRequests()
    kinds = [(False, 5.0), (True, 5.0), (False, 3.0)]
    for number, (is_batch, timeout) in enumerate([*kinds, *kinds]):
        request = SlotRequest(id_of(SlotRequestId, number))
        requests.add(request, SMALL, is_batch, timeout, 0.0, False)
    for number in range(2 * len(kinds)):
        served = requests.whom_to_serve(slot_on("te-0", 1), SMALL)
        assert served is not None
        assert served.request.request_id == id_of(SlotRequestId, number)
        requests.remove(served.request.request_id)
    assert requests.whom_to_serve(slot_on("te-0", 1), SMALL) is None


def test_slot_serves_the_oldest_request_of_its_matched_profile_or_else_a_fitting_one() -> None:
    requests = PendingRequests()
    for number, profile in enumerate((SMALL, MEDIUM, LARGE, SMALL, MEDIUM, LARGE)):
        request = SlotRequest(id_of(SlotRequestId, number))
        requests.add(request, profile, number > 2, 5.0, 0.0, could_be_held=True)
    other = ResourceProfile(0.5, GIB)
    for profile, matched, expected in (
        (LARGE, SMALL, 0),
        (LARGE, MEDIUM, 1),
        (MEDIUM, LARGE, 1),
        (MEDIUM, SMALL, 0),
        (LARGE, other, 2),
        (MEDIUM, other, 1),
        (SMALL, other, 0),
        (other, other, None),
    ):
        found = requests.whom_to_serve(slot_on("te-0", 9, profile=profile), matched)
        wanted = None if expected is None else id_of(SlotRequestId, expected)
        assert (None if found is None else found.request.request_id) == wanted
