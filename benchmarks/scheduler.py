"""What a JobMaster decides for two vertices of n subtasks each, all-to-all: time and memory.

    python benchmarks/scheduler.py [--rounds N]

For n = 1,000 and 10,000, each round in a process of its own: building the execution graph,
initialising the whole scheduler, scheduling it until every deployment is ready to be sent,
computing the tasks to restart after one failure, and carrying that failover out.  Printed are
medians of the rounds, the growth from 1,000 to 10,000, and the figures that Flink 1.14 publishes
for the same shape (other machine).

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from _results import Figure, Results, parse

from flinkray.core.garbage_collection import spare_what_is_there
from flinkray.core.ids import (
    AllocationID,
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    JobVertexID,
    ResourceID,
    SlotRequestId,
    WorkerGroupId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import (
    PYTHON,
    DistributionPattern,
    FixedDelayRestart,
    IntermediateDataSet,
    Invokable,
    JobEdge,
    JobGraph,
    JobType,
    JobVertex,
    ResultPartitionType,
)
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.failover import RestartPipelinedRegionFailoverStrategy
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
    JobSchedulerAction,
)
from flinkray.scheduler.shared.slots import AllocatedSlot, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import SlotAllocated, SlotRequests

SIZES = (1_000, 10_000)
SLOTS_EACH = 2
PROFILE = ResourceProfile(1.0, 2**30)
JOB = JobID(bytes(16))

MEASURES = {
    "graph": "build the execution graph, s",
    "graph_mb": "  memory that it takes, MB",
    "init": "initialise the scheduler (graph, regions, strategies), s",
    "deploy": "slots, and deployments for every TaskExecutor, s",
    "restart": "tasks to restart after one failure, s",
    "failover": "the failover: cancel, end, restart, deploy again, s",
    "blocking_restart": "tasks to restart, blocking edge, s",
    "peak_mb": "peak memory of the process, MB",
}
FLINK = {"init": 0.63, "deploy": 17.0, "restart": 0.17}
"""Seconds for 10,000 x 10,000, Flink 1.14, published."""
GOALS = {"graph": 1.0, "graph_mb": 500.0, **FLINK, "restart": 0.2}
GROWTH = 12.0


def job_of(size: int, result_type: ResultPartitionType) -> JobGraph:
    data_set = IntermediateDataSet(IntermediateDataSetID(bytes(16)), result_type)
    edge = JobEdge(data_set.data_set_id, DistributionPattern.ALL_TO_ALL)
    code = Invokable(PYTHON, b"")
    source = JobVertexID((1).to_bytes(16, "big"))
    sink = JobVertexID((2).to_bytes(16, "big"))
    vertices = (
        JobVertex(source, "source", size, PROFILE, code, results=(data_set,)),
        JobVertex(sink, "sink", size, PROFILE, code, inputs=(edge,)),
    )
    is_batch = result_type is ResultPartitionType.BLOCKING
    job_type = JobType.BATCH if is_batch else JobType.STREAMING
    return JobGraph(JOB, "all to all", vertices, FixedDelayRestart(9), job_type)


def rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def timed(call: Callable[[], object]) -> float:
    """CPU seconds: nothing here waits for anything, but other programs may want the processor."""
    start = time.process_time()
    call()
    return time.process_time() - start


def slot(number: int) -> AllocatedSlot:
    executor = number // SLOTS_EACH
    name = f"TaskExecutor-{executor}"
    group = WorkerGroupId("group")
    location = WorkerLocation(ResourceID(name), f"{name}/taskexecutor", "n", "ip", 1, group, 0)
    allocation = AllocationID(number.to_bytes(16, "big"))
    return AllocatedSlot(allocation, number % SLOTS_EACH, PROFILE, location)


def answer(
    actions: Iterable[JobSchedulerAction], slots: list[AllocatedSlot]
) -> tuple[SlotAllocated, ...]:
    requests: list[SlotRequestId] = []
    for action in actions:
        if isinstance(action, SlotRequests):
            requests += [request.request_id for request in action.requests]
    return tuple(SlotAllocated(r, s) for r, s in zip(requests, slots, strict=True))


class Run:
    """One job from its graph to its second execution; every step checks that it did its work."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots = [slot(number) for number in range(size)]
        self.result: dict[str, float] = {}

    def measure(self) -> dict[str, float]:
        pipelined = job_of(self.size, ResultPartitionType.PIPELINED_BOUNDED)
        before = rss_mb()
        self.result["graph"] = timed(lambda: self.build(pipelined))
        self.result["graph_mb"] = rss_mb() - before
        self.restart(self.graph, "restart")
        del self.graph
        self.build(job_of(self.size, ResultPartitionType.BLOCKING))
        self.restart(self.graph, "blocking_restart")
        del self.graph
        self.result["init"] = timed(lambda: self.initialise(pipelined))
        self.result["deploy"] = timed(self.deploy)
        self.result["failover"] = timed(self.fail_over)
        self.result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return self.result

    def build(self, job_graph: JobGraph) -> None:
        self.graph = ExecutionGraph(job_graph, ExecutionGraphID.generate(), 0.0)

    def restart(self, graph: ExecutionGraph, name: str) -> None:
        for subtask in graph.subtasks:
            subtask.current.schedule(0.0)
        strategy = RestartPipelinedRegionFailoverStrategy(graph, PipelinedRegions(graph))
        found: list[int] = []
        self.result[name] = timed(lambda: found.extend(strategy.tasks_to_restart([0])))
        expected = self.size * 2 if name == "restart" else self.size + 1
        assert len(found) == expected, len(found)

    def initialise(self, job_graph: JobGraph) -> None:
        self.scheduler = JobScheduler(
            job_graph,
            "JobMaster/jobmaster",
            new_graph_id=ExecutionGraphID.generate,
            default_restart_strategy=FixedDelayRestart(0),
            epoch_offset=0.0,
            now=0.0,
        )

    def deploy(self) -> None:
        started = self.scheduler.handle(t.StartJob(), 1.0)
        self.check(self.scheduler.handle(t.SlotsTold(tuple(answer(started, self.slots))), 2.0))

    def check(self, actions: list[JobSchedulerAction]) -> None:
        messages = [a for a in actions if isinstance(a, DeployTasks)]
        assert len(messages) == self.size // SLOTS_EACH
        assert sum(len(m.deployments.tasks) for m in messages) == 2 * self.size

    def fail_over(self) -> None:
        graph = self.scheduler._graph
        first = graph.subtasks[0].current.attempt_id
        failed = TaskExecutionState(JOB, first, ExecutionState.FAILED, "it broke")
        actions = self.scheduler.handle(t.TasksReported((failed,)), 3.0)
        (timer,) = (a.event for a in actions if isinstance(a, StartTimer))
        asked = [x for a in actions if isinstance(a, CancelTasks) for x in a.attempts]
        assert len(asked) == 2 * self.size - 1
        reports = [TaskExecutionState(JOB, x, ExecutionState.CANCELED) for x in asked]
        self.scheduler.handle(t.TasksReported(tuple(reports)), 4.0)
        actions = self.scheduler.handle(timer, 5.0)
        self.check(self.scheduler.handle(t.SlotsTold(tuple(answer(actions, self.slots))), 6.0))


def measure_in_process(size: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def report(rounds: int, results: Results) -> None:
    """Measure and print."""
    runs = {size: [measure_in_process(size) for _ in range(rounds)] for size in SIZES}
    small, large = (
        {name: statistics.median(run[name] for run in runs[size]) for name in MEASURES}
        for size in SIZES
    )
    print(f"\nCPU time, medians of {rounds} rounds, two vertices of n subtasks, all-to-all")
    print(f"{'':58}{'n=1,000':>9}{'n=10,000':>9}{'growth':>8}  {'Flink 1.14':>10}  ahead")
    for name, text in MEASURES.items():
        line = f"{text:58}{small[name]:9.4g}{large[name]:9.4g}{large[name] / small[name]:7.1f}x"
        if name in FLINK:
            line += f"  {FLINK[name]:10.2f} {FLINK[name] / large[name]:5.1f}x"
        print(line)
    print()
    for name, goal in GOALS.items():
        title, _, unit = MEASURES[name].rpartition(", ")
        what = f"decisions for 10,000 x 10,000 tasks: {title.strip()}"
        peer = f"Flink 1.14: {FLINK[name]:g} s" if name in FLINK else ""
        results.add(Figure(name, what, large[name], goal, unit, peer=peer))
    steps = ("graph", "restart", "deploy", "failover")
    growth = sum(large[name] for name in steps) / sum(small[name] for name in steps)
    what = f"decisions: growth of {' + '.join(steps)} from 1,000 to 10,000"
    results.add(Figure("growth", what, growth, GROWTH, "x"))
    results.raw = {str(size): of_size for size, of_size in runs.items()}
    results.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        spare_what_is_there()  # as the process of a JobMaster does
        print(json.dumps(Run(int(sys.argv[2])).measure()))
    else:
        parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
        parser.add_argument("--rounds", type=int, default=5)
        options = parse(parser)
        report(options.rounds, Results(options))
