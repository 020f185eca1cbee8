"""Ends of tasks of which the JobMaster is not told, and finds out by heartbeats."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from flinkray.actors.task_executor.endpoint import TaskExecutor
from flinkray.core.ids import ExecutionAttemptID
from flinkray.rpc.wire.envelope import Envelope
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.link import End
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import NODE, on_cluster, starts_of, until_executing
from tests.actors.chaos_cluster import ChaosCluster
from tests.simulation import inside

CONFIGURATION = {
    "heartbeat.interval": "1 s",
    "heartbeat.timeout": "5 s",
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.cpu.cores": "1",
}


def running_attempts(cluster: ChaosCluster) -> list[ExecutionAttemptID]:
    """As TaskExecutors know them."""
    simulation, found = cluster.simulation, []
    for process in simulation.processes("TaskExecutor"):
        executor = inside.endpoint_in(simulation, process, TaskExecutor)
        if executor is not None:
            for holding in inside.holdings(executor).values():
                found += list(holding.attempts)
    return found


@dataclass
class Moment:
    """What the test and the task's process know of each other."""

    is_over: bool = False
    """The task may end."""
    is_silent: bool = False
    """TaskExecutors hear no heartbeat of the JobMaster."""


@on_cluster(NODE, configuration=CONFIGURATION)
async def test_task_end_while_its_executor_registers_again_is_reported_afterwards(
    cluster: ChaosCluster,
) -> None:
    """The TaskExecutor had not heard its JobMaster for 5 s, two of which the JobMaster had slept,
    and the goodbye was lost: both sides had the same slots, and nobody reported the end of the
    task."""
    simulation, network = cluster.simulation, cluster.network
    moment = simulation.belongings[Moment] = Moment()

    async def ends(context: Any) -> None:
        from tests.actors.job_master.test_ends_of_tasks_that_are_not_told import Moment

        moment = Simulation.current().belongings[Moment]
        await eventually(lambda: moment.is_over, 300, "the test's word")

    builder = PythonJobBuilder("ends", restart_strategy=FixedDelayRestart(10, 0.1))
    builder.add(ends)
    job = builder.build()
    await cluster.submit(job)
    await until_executing(cluster, job.job_id)
    (master,) = simulation.processes("JobMaster")
    goodbyes: list[str] = []

    def is_lost(end: End, envelope: Envelope) -> bool:
        if envelope.method == "disconnect_task_executor" and not goodbyes:
            goodbyes.append(end.process.name)
            moment.is_silent = False
            simulation.hang(master)  # so the registration has to wait
            return True
        to_executor = end.peer.process.kind == "TaskExecutor"
        is_heartbeat = envelope.method == "heartbeat_from_job_master"
        return moment.is_silent and is_heartbeat and to_executor

    network.intercept, network.is_faulty = is_lost, True
    moment.is_silent = True
    simulation.hang(master)
    await asyncio.sleep(2)  # which the JobMaster does not hold against the TaskExecutor
    simulation.resume(master)
    await eventually(lambda: goodbyes, 100, "a goodbye that is lost")
    moment.is_over = True
    await eventually(lambda: not running_attempts(cluster), 50, "the task's end")
    simulation.resume(master)

    result = await asyncio.wait_for(cluster.result(job.job_id), 60)
    assert result.status is JobStatus.FINISHED
    assert (await cluster.details(job.job_id)).restarts == 0
    assert starts_of(cluster, "JobMaster") == 1
