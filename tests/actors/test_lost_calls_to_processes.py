"""What the whole cluster's seeds have brought to light between an owner and its processes."""

from __future__ import annotations

import asyncio
from typing import Any

from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.core.ids import ExecutionAttemptID
from flinkray.rpc.wire.envelope import Envelope
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, NoRestart
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.simulation.link import End
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import (
    NODE,
    losing_answer,
    on_cluster,
)
from tests.actors.chaos_cluster import ChaosCluster
from tests.simulation import inside

ONE_SLOT = {"taskmanager.numberOfTaskSlots": "1", "taskmanager.cpu.cores": "1"}


def running_tasks(cluster: ChaosCluster) -> list[ExecutionAttemptID]:
    """In all task processes that live."""
    simulation = cluster.simulation
    found: list[ExecutionAttemptID] = []
    for process in simulation.processes("TaskProcess"):
        endpoint = inside.endpoint_in(simulation, process, TaskProcess)
        if endpoint is not None:
            found += [attempt_id for _, attempt_id in inside.tasks_in(endpoint)]
    return found


@on_cluster(NODE, configuration=ONE_SLOT)
async def test_task_whose_start_was_not_answered_does_not_run_beside_its_next_attempt(
    cluster: ChaosCluster,
) -> None:
    """Seed 38: the TaskExecutor took the start for failed, and the task process ran the task for
    ever."""

    async def waits(context: Any) -> None:
        await asyncio.get_running_loop().create_future()

    builder = PythonJobBuilder("waits", restart_strategy=FixedDelayRestart(10, 0.1))
    builder.add(waits)
    job = builder.build()
    with losing_answer(cluster, "run_tasks") as lost:
        await cluster.submit(job)
        await eventually(lambda: lost, 50, "an answer that is lost")

        async def runs_again() -> bool:
            (vertex,) = (await cluster.details(job.job_id)).vertices
            (execution,) = vertex.executions
            return execution.attempt_number > 0 and execution.state is ExecutionState.RUNNING

        await eventually(runs_again, 300, "the next attempt")

    (attempt,) = running_tasks(cluster)
    assert attempt.attempt_number > 0


@on_cluster(NODE, configuration=ONE_SLOT)
async def test_ended_job_is_cleaned_up_in_half_a_minute_although_a_call_is_lost(
    cluster: ChaosCluster,
) -> None:
    """Seed 1008013: the Dispatcher waited a minute for the answer to a call that never arrived."""

    async def finishes(context: Any) -> None:
        """Has nothing to do."""

    lost: list[str] = []

    def is_lost(end: End, envelope: Envelope) -> bool:
        is_first = envelope.method == "release_job" and not lost
        if is_first:
            lost.append(envelope.method)
        return is_first

    cluster.network.intercept, cluster.network.is_faulty = is_lost, True
    builder = PythonJobBuilder("ends", restart_strategy=NoRestart())
    builder.add(finishes)
    job = builder.build()
    await cluster.submit(job)
    await eventually(lambda: lost, 50, "a call that is lost")
    stored = cluster.stored_jobs
    await eventually(lambda: stored.result_in("clean", job.job_id), 30, "a clean result")
    cluster.network.intercept = None
    assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED
