"""An elastic job that is resized while slots, and processes, come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismRange
from flinkray.testing.simulation import Simulation, simulate
from flinkray.testing.simulation.calls import CallObserver, ObservedCall
from tests.simulation.elastic_job import ElasticJob, ElasticUser
from tests.simulation.job_user import JobUser
from tests.simulation.streaming_job import FAULTS, MASTERS_FAULTS
from tests.simulation.streaming_world import StreamingWorld
from tests.simulation.test_take_over import NOTES, Deaths, Moment, job_masters, of


@simulate(seeds=3, nodes=2, faults=FAULTS)
async def test_an_elastic_job_commits_each_record_once_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    await ElasticJob(simulation).run()


@simulate(seeds=3, nodes=2, faults=MASTERS_FAULTS)
async def test_elastic_job_restarts_only_to_scale_when_masters_die(
    simulation: Simulation,
) -> None:
    await ElasticJob(simulation, only_masters_die=True).run()


# --- JobMasters that die at a certain moment ------------------------------------------------------


class ShrinkingUser(ElasticUser):
    """Resizes the job once, when it has a checkpoint."""

    async def _resize_often(self, world: StreamingWorld, graph: JobGraph) -> None:
        await self.simulation.eventually(lambda: bool(world.completed), within=30)
        await self._resize(world, graph, (), ParallelismRange(1, 1))


@dataclass
class ShrinkingJob(ElasticJob):
    """From two subtasks of each vertex to one."""

    user_is: ClassVar[type[JobUser]] = ShrinkingUser

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sizes = [2, 2]
        self.hold.is_on = True


def is_being_scaled(call: ObservedCall) -> bool:
    return NOTES(call) and call.arguments[0].notes.is_being_scaled


def is_smaller(call: ObservedCall) -> bool:
    return NOTES(call) and max(call.arguments[0].notes.parallelisms) == 1


MOMENTS: dict[str, list[Moment]] = {
    "it notes that all is stopped": [is_being_scaled],
    "tasks are cancelled": [of("TaskExecutor", "cancel_tasks")],
    "the sources go back to the checkpoint": [of("StreamCoordinator", "restore")],
    "the next attempts are noted": [is_smaller],
    "the next attempts run": [is_smaller, of("JobMaster", "tasks_reported")],
    "its successor says what it adopts": [is_being_scaled, of("TaskExecutor", "adopt_slots")],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_job_is_scaled_without_failure_if_its_job_master_dies_at_any_critical_moment(
    moment: str,
) -> None:
    """The job allows no restart, so a failure would end it."""
    simulation = Simulation(1, nodes=2)
    deaths = Deaths(simulation, job_masters(*MOMENTS[moment]))
    job = ShrinkingJob(simulation, only_masters_die=True, observers=(deaths,))
    simulation.run(job.run())
    assert not deaths.moments
    assert job.user.told["settled"] == 1


@dataclass
class EndsSlowly(CallObserver):
    """The coordinator of the sources stands still when it is asked to stop."""

    simulation: Simulation
    is_over: bool = False

    def begins(self, call: ObservedCall) -> None:
        if of("StreamCoordinator", "stop")(call) and not self.is_over:
            self.is_over = True
            simulation, slow = self.simulation, call.receiver
            simulation.hang(slow)
            simulation.scheduler.at(simulation.now + 3.0, lambda: simulation.resume(slow))


def test_tasks_restarted_after_a_take_over_ask_the_new_source_coordinator() -> None:
    """The coordinator of the last JobMaster takes long to end; after its end nobody
    would answer."""
    simulation = Simulation(1, nodes=2)
    slow = EndsSlowly(simulation)
    deaths = Deaths(simulation, job_masters(is_being_scaled))
    job = ShrinkingJob(simulation, only_masters_die=True, observers=(slow, deaths))
    simulation.run(job.run())
    assert slow.is_over


def test_next_job_master_runs_a_job_that_waited_with_the_slots_that_are_available() -> None:
    """The JobMaster does not request all slots that the job would like: such requests would fail
    in the end."""
    simulation = Simulation(1, nodes=2)
    deaths = Deaths(simulation, job_masters(NOTES))
    job = ShrinkingJob(simulation, only_masters_die=True, observers=(deaths,))
    job.sizes, job.node = [6, 6], ResourceProfile(1, 2**34)
    job.settings = {
        **job.settings,
        "jobmanager.adaptive-scheduler.resource-stabilization-timeout": "2 s",
    }
    simulation.run(job.run())
    assert not deaths.moments
    assert simulation.now < 30.0
