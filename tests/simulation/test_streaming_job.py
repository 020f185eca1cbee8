"""A streaming job with checkpoints, whose sink commits to an external system."""

from __future__ import annotations

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.streaming_job import (
    FAULTS,
    MASTERS_FAULTS,
    REPEATS_FAULTS,
    TOGETHER_FAULTS,
    WRITERS_FAULTS,
    LongStreamingJob,
    StreamingJob,
)


@simulate(seeds=12, nodes=2, faults=FAULTS)
async def test_a_streaming_job_commits_each_record_once_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    await StreamingJob(simulation).run()


@simulate(seeds=6, nodes=2, faults=FAULTS)
async def test_a_master_hook_is_restored_with_its_state_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    """CP-30, CP-31: the hook fails, too, and each record is committed once."""
    await StreamingJob(simulation, has_hook=True).run()


@simulate(seeds=6, nodes=2, faults=FAULTS)
async def test_results_of_a_model_are_committed_once_whatever_goes_wrong(
    simulation: Simulation,
) -> None:
    """The job of its replicas fails, is taken over and ends as any other."""
    await StreamingJob(simulation, has_model=True).run()


@simulate(seeds=3, nodes=2, faults=MASTERS_FAULTS)
async def test_neither_callers_nor_replicas_restart_whatever_goes_wrong_with_masters(
    simulation: Simulation,
) -> None:
    await StreamingJob(simulation, only_masters_die=True, has_model=True).run()


@simulate(seeds=12, nodes=2, faults=MASTERS_FAULTS)
async def test_no_task_is_restarted_whatever_goes_wrong_with_masters(
    simulation: Simulation,
) -> None:
    await StreamingJob(simulation, only_masters_die=True).run()


@simulate(seeds=6, nodes=2, faults=TOGETHER_FAULTS)
async def test_no_task_is_restarted_when_masters_die_together(simulation: Simulation) -> None:
    """Two within a second, or three within 19 s, including all masters that know what runs."""
    await LongStreamingJob(simulation, only_masters_die=True).run()


@simulate(seeds=6, nodes=2, faults=WRITERS_FAULTS)
async def test_master_paused_during_a_write_changes_nothing_that_its_successor_stored(
    simulation: Simulation,
) -> None:
    """They are believed dead between two operations on a disk, and continue afterwards."""
    await StreamingJob(simulation, only_masters_die=True).run()


@simulate(seeds=3, nodes=2, faults=REPEATS_FAULTS)
async def test_repeated_calls_to_masters_change_no_result_of_a_streaming_job(
    simulation: Simulation,
) -> None:
    """Each repetition has a new number, so that no connection recognizes it as a duplicate."""
    await StreamingJob(simulation, only_masters_die=True).run()


def test_streaming_job_with_the_same_seed_has_the_same_trace() -> None:
    traces = []
    for _ in range(2):
        simulation = Simulation(7, faults=FAULTS, nodes=2)
        simulation.run(StreamingJob(simulation).run())
        traces.append(simulation.trace_hash)
    assert traces[0] == traces[1]
