"""Elastic jobs: which parallelism, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.errors import JobStateError
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.elastic.parallelism import (
    bounds_for,
    desired_slots,
    parallelism_bounds,
    parallelism_for,
    with_bounds,
    within,
)
from flinkray.scheduler.elastic.scaling import (
    ElasticScaling,
    Execute,
    GiveUp,
    ScalingAction,
    ScalingSettings,
    WaitFor,
)
from flinkray.scheduler.graph.job_graph import (
    JobGraph,
    JobVertex,
    ParallelismBounds,
    ParallelismRange,
    SchedulerMode,
)
from flinkray.scheduler.shared.slots import ResourceRequirement
from tests.scheduler.builders import GIB, LARGE, SMALL, one
from tests.scheduler.graphs import job, python_vertex, vertex_id


def elastic(
    name: str,
    lower: int,
    upper: int,
    group: str = "default",
    profile: ResourceProfile = SMALL,
) -> JobVertex:
    vertex = python_vertex(name, upper, min_parallelism=lower, slot_sharing_group=group)
    return replace(vertex, slot_profile=profile)


def graph(*vertices: JobVertex) -> JobGraph:
    return job(vertices=vertices)


def chosen(job_graph: JobGraph, *slots: tuple[ResourceProfile, int]) -> dict[str, int] | None:
    profiles = [profile for profile, number in slots for _ in range(number)]
    parallelism = parallelism_for(job_graph, profiles)
    names = {vertex.vertex_id: vertex.name for vertex in job_graph.vertices}
    return None if parallelism is None else {names[v]: n for v, n in parallelism.items()}


def adaptive(*vertices: JobVertex) -> JobGraph:
    return replace(graph(*vertices), scheduler_mode=SchedulerMode.ADAPTIVE)


A, B = vertex_id("a"), vertex_id("b")
AT_FIRST = (ParallelismBounds(A, 1, 3), ParallelismBounds(B, 2, 8))

# --- bounds ---------------------------------------------------------------------------------------


def test_only_an_elastic_job_has_parallelism_bounds() -> None:
    vertices = elastic("a", 1, 3), elastic("b", 2, 8)
    assert parallelism_bounds(adaptive(*vertices)) == AT_FIRST
    assert parallelism_bounds(graph(*vertices)) == ()


def test_new_bounds_of_a_vertex_change_neither_other_vertices_nor_its_key_groups() -> None:
    """DI-20: state stays where it is."""
    job_graph = adaptive(elastic("a", 1, 3), elastic("b", 2, 1000))
    changed = with_bounds(job_graph, (ParallelismBounds(B, 3, 30),))
    assert parallelism_bounds(changed) == (AT_FIRST[0], ParallelismBounds(B, 3, 30))
    assert [vertex.key_groups for vertex in changed.vertices] == [128, 2048]
    again = with_bounds(changed, (ParallelismBounds(B, 1, 5),))
    assert again.vertices[1].key_groups == 2048
    assert with_bounds(again, (ParallelismBounds(B, 2, 1000),)) == job_graph


@pytest.mark.parametrize("upper", [8, 100])
def test_new_bounds_leave_an_unset_max_parallelism_unset(upper: int) -> None:
    """DI-20: otherwise the next JobMaster would refuse the state that the job started with."""
    changed = with_bounds(adaptive(elastic("a", 1, 3)), (ParallelismBounds(A, 1, upper),))
    assert changed.vertices[0].max_parallelism is None
    assert changed.vertices[0].key_groups == 128


def test_new_bounds_leave_a_configured_max_parallelism_as_it_is() -> None:
    own = replace(elastic("a", 1, 3), max_parallelism=6)
    changed = with_bounds(adaptive(own), (ParallelismBounds(A, 1, 6),))
    assert changed.vertices == (replace(own, parallelism=6),)


def test_parallelism_of_a_non_parallel_vertex_is_refused_with_the_reason() -> None:
    """DI-20: more key groups would not help such a vertex."""
    alone = replace(elastic("a", 1, 1), non_parallel=True)
    with pytest.raises(JobStateError, match="one subtask"):
        with_bounds(adaptive(alone), (ParallelismBounds(A, 1, 200),))


@pytest.mark.parametrize("own", [None, 6, 128])
def test_bounds_beyond_the_key_groups_are_refused_with_the_maximum(
    own: int | None,
) -> None:
    """DI-20: the key groups of the graph, or of the state that the job was restored from."""
    job_graph = adaptive(replace(elastic("a", 1, 3), max_parallelism=own), elastic("b", 1, 2))
    known = {} if own else {A: 6}
    most = own or 6
    text = f"vertex 'a' cannot have 2 to {most + 1} subtasks.* {most}, .* Ask for {most} at most"
    with pytest.raises(JobStateError, match=text):
        with_bounds(job_graph, (ParallelismBounds(A, 2, most + 1),), known)
    with_bounds(job_graph, (ParallelismBounds(A, 2, most), ParallelismBounds(B, 1, 128)), known)


def test_bounds_may_exceed_the_graphs_key_groups_if_the_restored_state_has_more() -> None:
    """DI-20."""
    changed = with_bounds(
        adaptive(elastic("a", 1, 3)), (ParallelismBounds(A, 1, 200),), {A: 1024, B: 7}
    )
    assert [vertex.key_groups for vertex in changed.vertices] == [1024]
    again = with_bounds(changed, (ParallelismBounds(A, 1, 1000),))
    assert again.vertices[0].key_groups == 1024


def test_default_bounds_leave_out_non_parallel_vertices() -> None:
    """DI-20."""
    alone = replace(elastic("alone", 1, 1), non_parallel=True)
    job_graph = adaptive(elastic("a", 1, 3), elastic("b", 2, 8), alone)
    named = (ParallelismBounds(A, 1, 2),)
    assert bounds_for(job_graph, named, None) == named
    assert bounds_for(job_graph, named, ParallelismRange(3, 5)) == (
        *named,
        ParallelismBounds(B, 3, 5),
    )


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ((), "no vertex is named"),
        ((ParallelismBounds(vertex_id("c"), 1, 2),), f"no vertex {vertex_id('c')}"),
        ((ParallelismBounds(A, 1, 100_000),), "parallelism"),
        ((ParallelismBounds(A, 4, 3),), "min parallelism 4"),
    ],
)
def test_empty_unknown_excessive_or_reversed_bounds_are_refused(
    bounds: tuple[ParallelismBounds, ...], problem: str
) -> None:
    """DI-20."""
    with pytest.raises(JobStateError, match=problem):
        with_bounds(adaptive(elastic("a", 1, 3), elastic("b", 2, 8)), bounds)


def test_bounds_of_a_job_with_a_fixed_parallelism_are_refused() -> None:
    """DI-20."""
    with pytest.raises(JobStateError, match=r"submit it with jobmanager\.scheduler=adaptive"):
        with_bounds(graph(elastic("a", 1, 3)), (ParallelismBounds(A, 1, 2),))


# --- how much -------------------------------------------------------------------------------------


def test_bounds_are_limited_to_the_key_groups_of_each_vertex() -> None:
    job_graph = adaptive(elastic("a", 5, 9), elastic("b", 2, 8), elastic("c", 1, 2))
    limited = within(job_graph, {A: 4, B: 3, vertex_id("c"): 2})
    bounds = [(one.lower, one.upper) for one in parallelism_bounds(limited)]
    assert bounds == [(4, 4), (2, 3), (1, 2)]
    assert within(job_graph, {}) == job_graph


def test_vertices_of_a_co_location_group_are_all_limited_to_the_fewest_key_groups() -> None:
    together = [replace(elastic(name, 1, 8), co_location_group="one") for name in "ab"]
    limited = within(adaptive(*together, elastic("c", 1, 8)), {B: 3})
    assert [vertex.parallelism for vertex in limited.vertices] == [3, 3, 8]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, None),
        (2, {"a": 2, "b": 2}),
        (3, {"a": 3, "b": 3}),
        (5, {"a": 3, "b": 5}),
        (50, {"a": 3, "b": 8}),
    ],
)
def test_vertices_of_a_slot_sharing_group_fill_every_slot_up_to_their_upper_bounds(
    number: int, expected: dict[str, int] | None
) -> None:
    job_graph = graph(elastic("a", 1, 3), elastic("b", 2, 8))
    assert chosen(job_graph, (SMALL, number)) == expected
    assert desired_slots(job_graph) == (ResourceRequirement(SMALL, 8),)


def test_slots_are_divided_among_sharing_groups_equally_above_their_minimum() -> None:
    job_graph = graph(elastic("a", 1, 2, "x"), elastic("b", 1, 8, "y"))
    assert chosen(job_graph, (SMALL, 1)) is None
    assert chosen(job_graph, (SMALL, 2)) == {"a": 1, "b": 1}
    assert chosen(job_graph, (SMALL, 5)) == {"a": 1, "b": 4}
    assert chosen(job_graph, (SMALL, 7)) == {"a": 2, "b": 5}
    assert chosen(job_graph, (SMALL, 99)) == {"a": 2, "b": 8}


def test_slot_sharing_group_needs_as_many_slots_as_its_widest_vertex_has_subtasks() -> None:
    job_graph = graph(elastic("b", 4, 8), elastic("a", 1, 3))
    assert desired_slots(job_graph) == (ResourceRequirement(SMALL, 8),)
    assert chosen(job_graph, (SMALL, 3)) is None
    assert chosen(job_graph, (SMALL, 4)) == {"b": 4, "a": 3}


def test_large_slots_are_kept_for_slot_sharing_groups_that_need_them() -> None:
    job_graph = graph(elastic("a", 1, 9, "x"), elastic("b", 1, 9, "y", LARGE))
    for slots in ([(LARGE, 2), (SMALL, 3)], [(SMALL, 3), (LARGE, 2)]):
        assert chosen(job_graph, *slots) == {"a": 3, "b": 2}
    assert chosen(job_graph, (LARGE, 4)) == {"a": 2, "b": 2}
    assert chosen(job_graph, (SMALL, 4)) is None


WIDE, DEEP = ResourceProfile(2.0, GIB), ResourceProfile(1.0, 4 * GIB)


@pytest.mark.parametrize("second", [WIDE, DEEP])
def test_slot_that_fits_two_profiles_goes_to_the_profile_that_no_other_slot_fits(
    second: ResourceProfile,
) -> None:
    """Whatever the order of the slots."""
    job_graph = graph(elastic("a", 1, 1, "x", WIDE), elastic("b", 1, 1, "y", DEEP))
    slots = (ResourceProfile(2.0, 4 * GIB), 1), (second, 1)
    assert chosen(job_graph, *slots) == {"a": 1, "b": 1}
    assert chosen(job_graph, *reversed(slots)) == {"a": 1, "b": 1}


def test_small_slots_are_not_used_for_large_profiles() -> None:
    job_graph = graph(elastic("a", 1, 4, "x"), elastic("b", 1, 4, "y", LARGE))
    assert chosen(job_graph, (SMALL, 10)) is None
    assert chosen(job_graph, (SMALL, 10), (LARGE, 1)) == {"a": 4, "b": 1}
    assert chosen(job_graph, (LARGE, 3)) == {"a": 2, "b": 1}


@given(
    bounds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4),
    slots=st.integers(0, 40),
)
def test_additional_slot_lowers_no_parallelism_and_all_parallelisms_are_in_bounds(
    bounds: list[tuple[int, int]], slots: int
) -> None:
    job_graph = graph(
        *(elastic(f"v{i}", low, low + more, f"g{i}") for i, (low, more) in enumerate(bounds))
    )
    lowest = sum(low for low, _ in bounds)
    found = chosen(job_graph, (SMALL, slots))
    assert (found is None) == (slots < lowest)
    if found is None:
        return
    assert sum(found.values()) == min(slots, sum(low + more for low, more in bounds))
    for i, (low, more) in enumerate(bounds):
        assert low <= found[f"v{i}"] <= low + more
    larger = chosen(job_graph, (SMALL, slots + 1))
    assert larger is not None
    assert all(larger[name] >= number for name, number in found.items())


def test_largest_profile_is_assigned_a_slot_first_whatever_the_order_of_the_vertices() -> None:
    """A small profile must not take the only slot that is large enough for a large one."""
    small, large = elastic("a", 1, 1), elastic("b", 1, 1, "other", ResourceProfile(4.0, GIB))
    supply = (ResourceProfile(4.0, GIB), 1), (ResourceProfile(1.0, 2 * GIB), 1)
    assert chosen(graph(small, large), *supply) == {"a": 1, "b": 1}
    assert chosen(graph(large, small), *supply) == {"a": 1, "b": 1}


# --- when -----------------------------------------------------------------------------------------

SETTINGS = ScalingSettings(300.0, 10.0, 30.0)


class Scaled:
    """One vertex ``a`` from 2 to 4, and the time."""

    def __init__(self) -> None:
        self.scaling = ElasticScaling(graph(elastic("a", 2, 4)), SETTINGS)

    def slots(self, number: int, now: float) -> list[ScalingAction]:
        return self.scaling.slots_changed([SMALL] * number, now)

    def executed(self, actions: list[ScalingAction]) -> int:
        return one(actions, Execute).parallelism[vertex_id("a")]


def test_job_waits_for_slots_as_long_as_its_settings_say() -> None:
    scaling = ElasticScaling(graph(elastic("a", 2, 4)), ScalingSettings(7.0, 3.0, 2.0))
    assert scaling.start(100.0) == [WaitFor(7.0, 1)]
    assert scaling.slots_changed([SMALL] * 2, 101.0) == [WaitFor(3.0, 2)]


def test_scaling_timer_that_fires_early_is_set_again_for_the_remaining_time() -> None:
    """The delay and the clock are rounded."""
    scaled = Scaled()
    timer = one(scaled.scaling.start(0.0), WaitFor)
    again = one(scaled.scaling.timer(timer.generation, 299.5), WaitFor)
    assert again.delay == 0.5
    one(scaled.scaling.timer(again.generation, 300.0), GiveUp)


def test_job_fails_if_its_minimum_of_slots_does_not_come_before_the_timeout() -> None:
    scaled = Scaled()
    timer = one(scaled.scaling.start(0.0), WaitFor)
    assert scaled.slots(1, 1.0) == []
    assert "1 slots" in one(scaled.scaling.timer(timer.generation, 300.0), GiveUp).reason
    assert scaled.slots(4, 301.0) == []


def executing(number: int) -> Scaled:
    scaled = Scaled()
    scaled.scaling.start(0.0)
    timer = one(scaled.slots(number, 0.0), WaitFor)
    assert scaled.executed(scaled.scaling.timer(timer.generation, 10.0)) == number
    return scaled


def test_job_is_not_scaled_within_the_cooldown_after_a_take_over() -> None:
    scaled = Scaled()
    scaled.slots(2, 100.0)
    assert scaled.scaling.take_over({vertex_id("a"): 2}, 100.0) == []
    timer = one(scaled.slots(4, 101.0), WaitFor)
    assert timer.delay == 29.0
    assert scaled.executed(scaled.scaling.timer(timer.generation, 130.0)) == 4


def test_job_continues_with_the_remaining_slots_after_a_loss() -> None:
    scaled = executing(3)
    assert scaled.slots(2, 50.0) == []
    timer = one(scaled.scaling.nothing_runs(51.0), WaitFor)
    assert timer.delay == 9.0
    assert scaled.scaling.parallelism is None
    assert scaled.executed(scaled.scaling.timer(timer.generation, 60.0)) == 2


def test_job_that_falls_below_its_minimum_of_slots_waits_the_full_time_from_the_loss() -> None:
    scaled = executing(2)
    scaled.slots(1, 250.0)
    timer = one(scaled.scaling.nothing_runs(251.0), WaitFor)
    assert timer.delay == 300.0
    one(scaled.scaling.timer(timer.generation, 551.0), GiveUp)


def test_job_is_not_scaled_if_one_vertex_would_grow_and_another_would_shrink() -> None:
    a, b = elastic("a", 1, 4, "x"), elastic("b", 1, 4, "y", LARGE)
    scaling = ElasticScaling(graph(a, b), SETTINGS)
    scaling.start(0.0)
    timer = one(scaling.slots_changed([SMALL] * 3 + [LARGE], 0.0), WaitFor)
    executed = one(scaling.timer(timer.generation, 10.0), Execute)
    assert executed.parallelism == {a.vertex_id: 3, b.vertex_id: 1}
    assert scaling.slots_changed([SMALL] + [LARGE] * 3, 100.0) == []


def test_job_with_a_lower_parallelism_than_its_raised_minimum_keeps_running() -> None:
    """DI-20."""
    scaled = executing(2)
    assert scaled.scaling.resize(graph(elastic("a", 3, 4)), 20.0) == []
    assert scaled.scaling.parallelism == {vertex_id("a"): 2}
    assert scaled.executed(scaled.slots(4, 100.0)) == 4


def test_ended_job_makes_no_more_scaling_decisions() -> None:
    scaled = executing(2)
    scaled.scaling.end(11.0)
    assert scaled.slots(4, 100.0) == scaled.scaling.nothing_runs(101.0) == []
    assert "execute with 2 subtasks" in scaled.scaling.story()


def test_scaling_that_is_decided_again_waits_for_all_snapshots_that_run_at_that_time() -> None:
    """The snapshots awaited before are no longer decisive: the slots have to be stable first."""
    snapshots = {1}
    scaling = ElasticScaling(
        graph(elastic("a", 2, 4)), SETTINGS, snapshots=lambda: frozenset(snapshots)
    )
    scaling.start(0.0)
    one(
        scaling.timer(one(scaling.slots_changed([SMALL] * 2, 1.0), WaitFor).generation, 11.0),
        Execute,
    )
    assert scaling.slots_changed([SMALL] * 4, 100.0) == []
    timer = one(scaling.slots_changed([SMALL] * 3, 101.0), WaitFor)
    snapshots.add(2)
    assert scaling.timer(timer.generation, 111.0) == []
    snapshots.remove(1)
    assert scaling.snapshot_is_over(112.0) == []
    snapshots.remove(2)
    one(scaling.snapshot_is_over(113.0), Execute)
    told = [line for line in scaling.story().splitlines() if "waits for" in line]
    assert [line.partition("waits for ")[2].split(":")[0] for line in told] == [
        "1 snapshots",
        "2 snapshots",
    ]
