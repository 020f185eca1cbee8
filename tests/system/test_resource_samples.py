"""What the sampler of resources takes for impossible, and for unsettled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from flinkray.core.ids import AllocationID, JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.reports.job_info import ClusterOverview, TaskExecutorInfo
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.testing.waiting import wait_until
from tests.system.resource_sampler import ImpossibleSampleError, Sampler
from tests.system.resource_samples import (
    Claim,
    Group,
    Manager,
    RayState,
    Sample,
    Slot,
    Worker,
    differences,
    violations,
)

GIB = 2**30
FIRST, SECOND = JobID(b"1" * 16), JobID(b"2" * 16)
ALLOCATIONS = [AllocationID(bytes([i]) * 16) for i in range(4)]
NODE = "node"
WHOLE, HALF = ResourceProfile(1, GIB), ResourceProfile(0.5, GIB // 2)
OWN, SHARED = "TaskExecutor-0-0", "TaskExecutor-1-0"


def slot(index: int, job_id: JobID | None = None, allocation: int | None = None) -> Slot:
    return Slot(index, HALF, job_id, None if allocation is None else ALLOCATIONS[allocation])


SHARED_WORKER = Worker(
    SHARED, "shared", 0, WHOLE, ResourceProfile(0), 2, (slot(0, FIRST, 0), slot(1, SECOND, 1))
)
OWN_WORKER = Worker(
    OWN, "own", 0, WHOLE, ResourceProfile(0), 1, (Slot(0, WHOLE, FIRST, ALLOCATIONS[2]),)
)


def info(worker: Worker, free: int, *jobs: JobID) -> TaskExecutorInfo:
    group = WorkerGroupId(worker.group)
    place = WorkerLocation(ResourceID(worker.name), "", NODE, "", 1, group, worker.bundle)
    return TaskExecutorInfo(place, worker.total, worker.number_of_slots, free, jobs)


def sample(**changes: Any) -> Sample:
    """Two TaskExecutors of one core each fill a node of two; one is the first job's own, and of the
    other each job has a slot.  *ray* and *manager* are said twice."""
    own = replace(OWN_WORKER, owner=FIRST)
    ray = RayState(
        nodes={NODE: ResourceProfile(2, 2 * GIB)},
        available={NODE: ResourceProfile(0)},
        groups={
            "own": Group("flinkray-c-own", "CREATED", (WHOLE,), (NODE,)),
            "shared": Group("flinkray-c-shared", "CREATED", (WHOLE,), (NODE,)),
            "past": Group("flinkray-c-past", "REMOVED", (WHOLE,), (None,)),
        },
    )
    manager = Manager({OWN: own, SHARED: SHARED_WORKER}, {"own": (WHOLE,), "shared": (WHOLE,)}, 3)
    ray, manager = changes.pop("ray", ray), changes.pop("manager", manager)
    overview = ClusterOverview(
        version="",
        task_executors=(info(OWN_WORKER, 0, FIRST), info(SHARED_WORKER, 0, FIRST, SECOND)),
        slots_total=3,
        slots_available=0,
        jobs=(),
        cluster_total=ResourceProfile(2, 2 * GIB),
        cluster_available=ResourceProfile(0),
    )
    settled = Sample(
        ray_before=ray,
        claims=(
            Claim("raydp-executor-0", NODE, ResourceProfile(1, GIB), "own", 0),
            Claim("TaskExecutor-0-0", NODE, ResourceProfile(0), "own", 0),
            Claim("Dispatcher", NODE, ResourceProfile(0)),
        ),
        manager_before=manager,
        executors=(OWN_WORKER, SHARED_WORKER),
        overview=overview,
        manager_after=manager,
        ray_after=ray,
    )
    return replace(settled, **changes)


def with_worker(worker: Worker) -> Sample:
    """It says so of itself, instead of the one of that name."""
    others = {known.name: known for known in (OWN_WORKER, SHARED_WORKER)}
    return sample(executors=tuple({**others, worker.name: worker}.values()))


def manager(**changes: Any) -> Manager:
    return replace(sample().manager_after, **changes)


def with_workers(**workers: Worker) -> Manager:
    known = {worker.name: worker for worker in workers.values()}
    return manager(workers={**sample().manager_after.workers, **known})


def ray_state(groups: Mapping[str, Group], **changes: Any) -> RayState:
    state = sample().ray_after
    return replace(state, groups={**state.groups, **groups}, **changes)


def test_consistent_resource_sample_has_no_violations_and_no_differences() -> None:
    assert violations(sample()) == []
    assert differences(sample(), "flinkray-c-") == []


CONTRADICTIONS: dict[str, tuple[Sample, str]] = {
    "two jobs are in a slot": (
        with_worker(replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(0, SECOND, 1)))),
        "has slot 0 2 times",
    ),
    "a slot is one job's there, and another's here": (
        with_worker(replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(1, FIRST, 3)))),
        f"slot 1 of {SHARED} is job {FIRST}'s there, and job {SECOND}'s",
    ),
    "an allocation is one job's there, and another's here": (
        with_worker(replace(SHARED_WORKER, slots=(slot(1, FIRST, 1), slot(0, FIRST, 0)))),
        f"slot 1 of {SHARED} is job {FIRST}'s there, and job {SECOND}'s",
    ),
    "an allocation has two slots": (
        with_worker(replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(1, FIRST, 0)))),
        f"allocation {ALLOCATIONS[0]} has 2 slots",
    ),
    "a job has a slot of another one's own TaskExecutor": (
        sample(
            manager=with_workers(
                own=replace(
                    OWN_WORKER, owner=FIRST, slots=(Slot(0, WHOLE, SECOND, ALLOCATIONS[2]),)
                )
            ),
            executors=(SHARED_WORKER,),
        ),
        f"is job {FIRST}'s own, and has a slot of job {SECOND}",
    ),
    "a TaskExecutor has more assigned than it has": (
        with_worker(
            replace(
                SHARED_WORKER, slots=(slot(0, FIRST, 0), Slot(1, WHOLE, SECOND, ALLOCATIONS[1]))
            )
        ),
        f"has {WHOLE}, and assigned slots of 1.5 CPU",
    ),
    "the ResourceManager has more assigned than there is": (
        sample(
            manager=with_workers(
                shared=replace(SHARED_WORKER, total=HALF),
            )
        ),
        f"the ResourceManager says: {SHARED} has {HALF}, and assigned slots of {WHOLE}",
    ),
    "free and assigned are not all": (
        with_worker(replace(SHARED_WORKER, free=HALF)),
        f"assigned are {WHOLE}, and free {HALF}",
    ),
    "a slot is lost": (
        with_worker(replace(SHARED_WORKER, slots=(slot(0, FIRST, 0),), free=HALF)),
        "has 2 slots, but 0 are free and 1 assigned",
    ),
    "a slot is half free": (
        with_worker(replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(1, SECOND)), free=HALF)),
        "has a slot that is half free",
    ),
    "slots are miscounted": (
        sample(manager=manager(number_of_slots=4)),
        "the ResourceManager counts 4 slots of 3",
    ),
    "bundles exceed the node": (
        sample(ray=ray_state({"third": Group("another's", "CREATED", (HALF,), (NODE,))})),
        "node node has 2 CPU, 2g memory, and reserved are 2.5 CPU, 2.5g memory",
    ),
    "bundles exceed the node for a moment": (
        sample(
            ray_after=ray_state(
                {
                    "own": Group("flinkray-c-own", "REMOVED", (WHOLE,), (None,)),
                    "third": Group("another's", "CREATED", (WHOLE, HALF), (NODE, NODE)),
                }
            )
        ),
        "node node has 2 CPU, 2g memory, and reserved are 2.5 CPU, 2.5g memory",
    ),
    "bundles and actors exceed the node": (
        sample(claims=(Claim("somebody", NODE, ResourceProfile(0.5)),)),
        "node node has 2 CPU, 2g memory, and reserved are 2.5 CPU",
    ),
    "actors exceed their bundle": (
        sample(
            claims=tuple(
                Claim(name, NODE, ResourceProfile(0.6), "own", 0)
                for name in ("raydp-executor-0", "raydp-executor-1")
            )
        ),
        "bundle 0 of own has 1 CPU, 1g memory, and its actors 1.2 CPU",
    ),
    "a bundle is smaller than its TaskExecutor": (
        sample(ray=ray_state({"shared": Group("flinkray-c-shared", "CREATED", (HALF,), (NODE,))})),
        f"{SHARED} has {WHOLE}, and its bundle is {HALF}",
    ),
    "a bundle is not there": (
        with_worker(replace(SHARED_WORKER, bundle=1)),
        f"{SHARED} is in bundle 1 of shared: there is none",
    ),
    "two TaskExecutors are in a bundle": (
        sample(executors=(OWN_WORKER, replace(OWN_WORKER, name="TaskExecutor-0-0-b", slots=()))),
        "2 TaskExecutors are in bundle 0 of own",
    ),
    "a worker group is not Ray's": (
        sample(manager=manager(groups={"own": (WHOLE,), "shared": (WHOLE,), "past": (WHOLE,)})),
        "the ResourceManager has worker group past, and Ray has not",
    ),
    "a worker group is larger than Ray's": (
        sample(manager=manager(groups={"own": (WHOLE, WHOLE), "shared": (WHOLE,)})),
        "worker group own is",
    ),
    "the overview has more free slots than slots": (
        sample(overview=replace(sample().overview, task_executors=(info(SHARED_WORKER, 3),))),
        "the overview has 3 free slots of 2",
    ),
    "the overview has more jobs than slots": (
        sample(
            overview=replace(
                sample().overview, task_executors=(info(SHARED_WORKER, 1, FIRST, SECOND),)
            )
        ),
        f"in fewer slots of {SHARED}",
    ),
    "the overview's sum is not that of its TaskExecutors": (
        sample(overview=replace(sample().overview, slots_total=4)),
        "the overview has (0, 4) free and all slots; those of its TaskExecutors: (0, 3)",
    ),
    "the overview has more free than there is": (
        sample(overview=replace(sample().overview, cluster_available=ResourceProfile(3))),
        "the overview has more free than there is",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradiction_in_a_resource_sample_is_a_violation(case: str) -> None:
    contradictory, words = CONTRADICTIONS[case]
    assert any(words in found for found in violations(contradictory)), violations(contradictory)


def test_change_during_a_resource_sample_is_a_difference_but_no_violation() -> None:
    """The second job's slot was freed and given to the first job. A group was removed before
    another group took its place. A TaskExecutor has left."""
    freed = replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(1)), free=HALF)
    given = replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(1, FIRST, 3)))
    removed = ray_state(
        {
            "own": Group("flinkray-c-own", "REMOVED", (WHOLE,), (None,)),
            "next": Group("flinkray-c-next", "CREATED", (WHOLE,), (NODE,)),
            "third": Group("flinkray-c-third", "PENDING", (WHOLE,), (None,)),
        }
    )
    changing = sample(
        manager_before=with_workers(shared=SHARED_WORKER),
        executors=(given,),
        manager_after=Manager({SHARED: given}, {"shared": (WHOLE,), "next": (WHOLE,)}, 2),
        ray_after=removed,
    )
    for one in (changing, replace(changing, manager_after=with_workers(shared=freed))):
        assert violations(one) == []
        assert differences(one, "flinkray-c-") != []


UNSETTLED: dict[str, tuple[Sample, str]] = {
    "something has changed": (
        sample(manager_before=manager(groups={"own": (WHOLE,)})),
        "something has changed",
    ),
    "Ray has a group that the ResourceManager has not": (
        sample(ray=ray_state({"left": Group("flinkray-c-left", "CREATED", (HALF,), (NODE,))})),
        "Ray has groups",
    ),
    "a bundle has no TaskExecutor": (sample(executors=(OWN_WORKER,)), "there are bundles"),
    "the ResourceManager does not know of a slot": (
        sample(
            manager=with_workers(
                shared=replace(SHARED_WORKER, slots=(slot(0, FIRST, 0), slot(1)), free=HALF)
            )
        ),
        "and the ResourceManager knows",
    ),
    "the overview shows less": (
        sample(overview=replace(sample().overview, task_executors=(info(OWN_WORKER, 0, FIRST),))),
        "and the overview shows",
    ),
    "a node's resources are gone": (
        sample(ray=ray_state({}, nodes={NODE: ResourceProfile(3, 2 * GIB)})),
        "node node has 3 CPU, 2g memory: 2 CPU, 2g memory reserved",
    ),
}


@pytest.mark.parametrize("case", UNSETTLED)
def test_disagreement_of_ray_and_masters_in_a_resource_sample_is_a_difference(case: str) -> None:
    unsettled, words = UNSETTLED[case]
    found = differences(unsettled, "flinkray-c-")
    assert any(words in one for one in found), found


def test_resource_sampler_counts_samples_and_raises_the_first_impossible_one() -> None:
    contradictory, words = CONTRADICTIONS["two jobs are in a slot"]
    samples = [contradictory, sample()]
    with pytest.raises(ImpossibleSampleError) as failure, Sampler(samples.pop) as sampler:
        wait_until(lambda: sampler.count == 2, 150, "both samples")
    assert words in str(failure.value)
    assert "in sample 2:\nSample(ray_before=" in str(failure.value)
    with pytest.raises(ImpossibleSampleError, match="in sample 2"):
        sampler.latest()


def test_test_error_is_the_context_of_an_impossible_sample_error() -> None:
    contradictory, _ = CONTRADICTIONS["two jobs are in a slot"]
    with pytest.raises(ImpossibleSampleError) as failure, Sampler([contradictory].pop):
        raise TimeoutError
    assert isinstance(failure.value.__context__, TimeoutError)


def test_resource_sampler_raises_the_error_of_a_failed_sample() -> None:
    nothing: list[Sample] = []
    with pytest.raises(IndexError), Sampler(nothing.pop):
        pass
