"""PendingRestarts beside a model: each region with the failure that it waits for."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkray.scheduler.execution.pending_restarts import PendingRestart, PendingRestarts


class PendingRestartsMachine(RuleBasedStateMachine):
    """Of six regions, those that have failed: whether they run yet, and the generation of the
    restart that they wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = PendingRestarts()
        self.generation = 0
        self.waits_for: dict[int, int] = {}
        self.running = set(range(6))
        self.over: set[int] = set()
        self.is_global: dict[int, bool] = {}

    @rule(regions=st.sets(st.integers(0, 5), min_size=1), is_global=st.booleans())
    def failure(self, regions: set[int], is_global: bool) -> None:
        self.generation += 1
        taken_over = {self.waits_for[r] for r in regions if r in self.waits_for}
        self.is_global[self.generation] = is_global or any(self.is_global[g] for g in taken_over)
        self.waits_for.update(dict.fromkeys(regions, self.generation))
        restart, due = self.pending.add(
            self.generation, sorted(regions), regions & self.running, is_global=is_global
        )
        self.take_if_due(restart)
        for earlier in due:
            assert self.take_if_due(earlier)

    @rule(back=st.integers(0, 5))
    def delay_is_over(self, back: int) -> None:
        generation = self.generation - back
        restart = self.pending.delay_is_over(generation)
        assert (restart is not None) == (generation in self.waits_for.values())
        if restart is not None:
            self.over.add(generation)
            self.take_if_due(restart)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def region_ends(self, data: st.DataObject) -> None:
        region = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(region)
        restart = self.pending.region_ended(region)
        assert (restart is not None) == (region in self.waits_for)
        if restart is not None:
            self.take_if_due(restart)
        else:
            self.running.add(region)  # it has finished, and is produced again

    def take_if_due(self, restart: PendingRestart) -> bool:
        generation = restart.generation
        regions = [r for r, waits_for in self.waits_for.items() if waits_for == generation]
        is_due = generation in self.over and not self.running.intersection(regions)
        assert restart.is_due == is_due
        assert restart.is_global == self.is_global[generation]
        if is_due:
            assert self.pending.take(restart) == sorted(regions)
            assert not restart.regions
            for region in regions:
                del self.waits_for[region]
            self.running.update(regions)
        return is_due

    @rule(rare=st.integers(0, 20))
    def job_ends(self, rare: int) -> None:
        if rare == 0:
            self.pending.clear()
            self.waits_for.clear()

    @invariant()
    def the_same_regions_wait(self) -> None:
        assert {r for r in range(6) if r in self.pending} == self.waits_for.keys()
        assert bool(self.pending) == bool(self.waits_for)

    @invariant()
    def no_restart_waits_for_nothing(self) -> None:
        for generation in set(self.waits_for.values()) & self.over:
            regions = {r for r, waits_for in self.waits_for.items() if waits_for == generation}
            assert regions & self.running, f"restart {generation} of {regions} is due"


TestPendingRestarts = PendingRestartsMachine.TestCase
TestPendingRestarts.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_pending_restarts_are_empty_after_they_are_cleared() -> None:
    pending = PendingRestarts()
    pending.add(1, [0, 1], {0}, is_global=False)
    pending.clear()
    assert not pending
    assert 0 not in pending
    assert pending.find(1) is None
    assert pending.delay_is_over(1) is None
    assert pending.region_ended(0) is None
