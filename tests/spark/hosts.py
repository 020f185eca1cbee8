"""Test doubles and hosts for Spark stages on a real Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flinkray.core.ids import ExecutionGraphID, JobID, JobMasterId, JobVertexID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.job.coordinator_events import CoordinatorFailure
from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo, SparkProgress, SparkResult
from flinkray.spark.environment import HOST_OPTION, RAYDP, STANDALONE
from flinkray.spark.executors import run_executor
from flinkray.spark.gateway import ExecutorLaunch, ExecutorSlot, SparkStageDescriptor
from flinkray.spark.processes import end_leftovers, leftover_processes, remove_scratch, stage_name
from flinkray.spark.ray_cluster import current_ray_context, ray_executor_actors
from flinkray.spark.stage import SparkStage
from flinkray.user_code import dump_function

SLOT = ResourceProfile(cpu=1.0, memory=2**30)

SPARK_HOST = os.environ.get("FLINKRAY_SPARK_HOST") or (
    RAYDP if find_spec("raydp") is not None else STANDALONE
)
"""What starts the executors of these tests: RayDP where it is installed."""


class RecordingListener:
    """Keeps a stage's events, in order; waits for the first of a kind."""

    def __init__(self) -> None:
        self.executors: list[tuple[SparkExecutorInfo, ...]] = []
        self.progresses: list[SparkProgress] = []
        self.outcomes: list[SparkResult | CoordinatorFailure] = []
        self._changed = threading.Condition()

    def executors_changed(self, registered: tuple[SparkExecutorInfo, ...]) -> None:
        self._add(self.executors, registered)

    def progress(self, progress: SparkProgress) -> None:
        self._add(self.progresses, progress)

    def finished(self, result: SparkResult) -> None:
        self._add(self.outcomes, result)

    def failed(self, failure: CoordinatorFailure) -> None:
        self._add(self.outcomes, failure)

    def wait(self, condition: Callable[[RecordingListener], Any], timeout: float) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout):
                raise TimeoutError(
                    f"nothing of the kind in {timeout} s; outcomes: {self.outcomes}, "
                    f"executors: {self.executors}"
                )
            return condition(self)

    def _add(self, events: list[Any], event: object) -> None:
        with self._changed:
            events.append(event)
            self._changed.notify_all()


@ray.remote(num_cpus=0, max_concurrency=8)  # type: ignore[call-overload]  # Ray lacks it
class StageHost:
    """A process of its own for one stage, as the SparkDriver's is."""

    def __init__(self, stage: SparkStageDescriptor, executor_timeout: float) -> None:
        self._listener = RecordingListener()
        self._stage = SparkStage(
            stage, _code_of(stage), current_ray_context(), self._listener, executor_timeout
        )

    def start(self) -> None:
        self._stage.start()

    def outcome(self, timeout: float) -> SparkResult | CoordinatorFailure:
        outcome: SparkResult | CoordinatorFailure = self._listener.wait(
            lambda seen: seen.outcomes and seen.outcomes[0], timeout
        )
        return outcome

    def outcomes_so_far(self) -> list[SparkResult | CoordinatorFailure]:
        return self._listener.outcomes

    def history(self, complete: int, timeout: float) -> list[tuple[SparkExecutorInfo, ...]]:
        """The reported lists of executors, once *complete* of them are complete."""
        count = self._stage._stage.parallelism

        def enough(seen: RecordingListener) -> list[Any] | None:
            lists = [e for e in seen.executors if len(e) == count]
            return seen.executors if len(lists) >= complete else None

        found: list[Any] = self._listener.wait(enough, timeout)
        return found

    def progresses(self) -> list[SparkProgress]:
        return self._listener.progresses

    def wait_for_active_tasks(self, timeout: float) -> None:
        def active(seen: RecordingListener) -> bool:
            return any(s.active_tasks for p in seen.progresses for s in p.active_stages)

        self._listener.wait(active, timeout)

    def jvm_pid(self) -> int:
        assert self._stage._application is not None
        return self._stage._application.jvm.pid

    def pid(self) -> int:
        return os.getpid()

    def session_directory(self) -> str:
        return current_ray_context().session_directory

    def wait_for_step(self, step: str) -> None:
        """Of the start of Spark."""

        def is_done() -> bool:
            application = self._stage._application
            return application is not None and step in application.timings

        wait_until(is_done)

    def timings(self) -> dict[str, float]:
        return self._stage.timings

    def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        self._stage.desk.application.result()
        return self._stage.desk.launch(slot)

    def executor_started(self, executor_id: str, pid: int) -> None:
        self._stage.desk.started(executor_id, pid)

    def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        return self._stage.desk.ended(executor_id, exit_code, how)

    def stop(self) -> None:
        self._stage.stop()


@ray.remote(num_cpus=0)
class SlotHolder:
    """Does in a bundle what the TaskExecutor of the slot does on the standalone host, and what the
    JobMaster does when an executor is lost: it has another one started."""

    def __init__(self, subtask_index: int) -> None:
        context, ray_context = ray.get_runtime_context(), current_ray_context()
        self._ray = ray_context
        self._slot = ExecutorSlot(
            subtask_index,
            subtask_index,
            context.get_actor_id() or "",
            context.get_node_id(),
            ray_context.node_ip,
        )

    def pid(self) -> int:
        return os.getpid()

    async def run(self, stage_host: Any) -> None:
        driver = _RemoteDriver(stage_host)
        while not driver.is_over:
            await run_executor(
                driver, self._slot, self._ray.session_directory, self._ray.logs_directory
            )


class _RemoteDriver:
    """A StageHost, as a driver of executors."""

    def __init__(self, stage_host: Any) -> None:
        self._stage_host = stage_host
        self.is_over = False
        """Whether an executor has ended because its session did."""

    async def launch_executor(self, slot: ExecutorSlot) -> ExecutorLaunch:
        launch: ExecutorLaunch = await self._stage_host.launch_executor.remote(slot)
        return launch

    async def executor_started(self, executor_id: str, pid: int) -> None:
        await self._stage_host.executor_started.remote(executor_id, pid)

    async def executor_ended(self, executor_id: str, exit_code: int, how: str) -> bool:
        self.is_over = exit_code == 0
        answer = self._stage_host.executor_ended.remote(executor_id, exit_code, how)
        is_needed: bool = await answer
        return is_needed


class HostedStage:
    """A stage that runs in a host; questions about it, answered here."""

    def __init__(
        self, stage: SparkStageDescriptor, group: PlacementGroup, executor_timeout: float
    ) -> None:
        self.job_id = stage.job_id
        self.namespace = f"flinkray-{stage_name(stage.job_id, stage.attempt_name)}"
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        host: Any = StageHost  # mypy knows nothing of what decorates a class
        self.actor: Any = host.options(scheduling_strategy=strategy).remote(stage, executor_timeout)
        self._session_directory = ray.get(self.actor.session_directory.remote())
        self._others_directories = set(Path(self._session_directory).glob("app-*"))
        self.host_pid_known: int = ray.get(self.actor.pid.remote())
        self._group = group
        self.holders: dict[int, Any] = {}
        self.group_id = group.id.hex()
        if stage.configuration[HOST_OPTION] == STANDALONE:
            for index in range(stage.parallelism):
                self.hold_slot(index)
        ray.get(self.actor.start.remote())

    def hold_slot(self, index: int) -> None:
        """On the standalone host: have a process start executors in the bundle."""
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        holder: Any = SlotHolder
        self.holders[index] = holder.options(scheduling_strategy=strategy).remote(index)
        self.holders[index].run.remote(self.actor)

    def kill_holder(self, index: int) -> None:
        os.kill(ray.get(self.holders[index].pid.remote()), signal.SIGKILL)

    def outcome(self, timeout: float = 120.0) -> SparkResult | CoordinatorFailure:
        outcome: SparkResult | CoordinatorFailure = ray.get(self.actor.outcome.remote(timeout))
        return outcome

    def history(self, complete: int, timeout: float = 90.0) -> list[tuple[SparkExecutorInfo, ...]]:
        history: list[tuple[SparkExecutorInfo, ...]] = ray.get(
            self.actor.history.remote(complete, timeout)
        )
        return history

    def executors(self) -> tuple[SparkExecutorInfo, ...]:
        """The first complete list."""
        return self.history(complete=1)[-1]

    def executors_seen_from_outside(self) -> set[tuple[int, int]]:
        """Bundle and process of each executor, as Ray and the operating system have them."""
        if not self.holders:
            actors = ray_executor_actors(self.namespace).values()
            assert {actor.placement_group for actor in actors} <= {self.group_id}
            return {(actor.bundle_index, actor.pid) for actor in actors if actor.is_alive}
        holders = {ray.get(h.pid.remote()): index for index, h in self.holders.items()}
        return {
            (holders[process.ppid()], process.pid)
            for process in leftover_processes(self.job_id)
            if process.ppid() in holders
        }

    def are_executors_gone(self) -> bool:
        actors = ray_executor_actors(self.namespace).values()
        return all(actor.is_dead for actor in actors) and not any(
            process.name() == "java" for process in leftover_processes(self.job_id)
        )

    def progresses(self) -> list[SparkProgress]:
        progresses: list[SparkProgress] = ray.get(self.actor.progresses.remote())
        return progresses

    def wait_for_active_tasks(self, timeout: float = 120.0) -> None:
        ray.get(self.actor.wait_for_active_tasks.remote(timeout))

    def wait_for_step(self, step: str) -> None:
        ray.get(self.actor.wait_for_step.remote(step))

    def jvm_pid(self) -> int:
        pid: int = ray.get(self.actor.jvm_pid.remote())
        return pid

    def host_pid(self) -> int:
        return self.host_pid_known

    def app_master_pid(self) -> int:
        executors = {actor.pid for actor in ray_executor_actors(self.namespace).values()}
        [pid] = [
            process.pid
            for process in leftover_processes(self.job_id)
            if process.name() == "java" and process.pid not in executors | {self.jvm_pid()}
        ]
        return pid

    def pid_of_starting_executor(self) -> int:
        """Of the first that has registered with RayDP's app master, and not yet with Spark."""
        found: list[int] = []

        def is_there() -> bool:
            actors = ray_executor_actors(self.namespace).values()
            found.extend(actor.pid for actor in actors if actor.is_alive)
            return bool(found)

        wait_until(is_there)
        return found[0]

    def files_left(self) -> list[Path]:
        """What the stage keeps on disk while it runs, in the Ray session's directory."""
        session = Path(self._session_directory)
        working = set(session.glob("app-*")) - self._others_directories
        return [*session.glob(f"spark-{self.job_id}*"), *sorted(working)]

    def stop(self) -> None:
        ray.get(self.actor.stop.remote())

    def free_slots(self) -> None:
        """Of the stage, which is over, nothing goes on in them, and their TaskExecutors clean up:
        on the standalone host these may have been about to start another executor."""
        for index in self.holders:
            holder = psutil.Process(ray.get(self.holders[index].pid.remote()))
            holder.kill()
            holder.wait(300)
        end_leftovers(self.job_id)
        if self.holders:
            remove_scratch(self._session_directory, self.job_id)


class Launcher:
    """Starts stages; at the end, stops them and ends what they left."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stages: list[HostedStage] = []

    def start(
        self,
        group: PlacementGroup,
        function: Callable[[Any], Any],
        configuration: dict[str, str] | None = None,
        executor_timeout: float = 180.0,
    ) -> HostedStage:
        location = self._directory / f"result-{len(self._stages)}"
        described = descriptor(group, function, str(location), 0, configuration)
        stage = HostedStage(described, group, executor_timeout)
        self._stages.append(stage)
        return stage

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *exc: object) -> None:
        for stage in self._stages:
            for actor in (stage.actor, *stage.holders.values()):
                ray.kill(actor)
            wait_until(lambda stage=stage: not psutil.pid_exists(stage.host_pid_known))  # type: ignore[misc]
            end_leftovers(stage.job_id, grace=0.5)


def wait_until(condition: Callable[[], bool], timeout: float = 150.0) -> None:
    """For what other processes do and nobody reports."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        threading.Event().wait(0.02)


def _code_of(stage: SparkStageDescriptor) -> bytes:
    assert isinstance(stage.code, bytes)
    return stage.code


def descriptor(
    group: PlacementGroup,
    function: Callable[[Any], Any],
    result_location: str,
    attempt: int = 0,
    configuration: dict[str, str] | None = None,
) -> SparkStageDescriptor:
    return SparkStageDescriptor(
        job_id=JobID.generate(),
        job_name="test",
        vertex_id=JobVertexID.generate(),
        attempt_number=attempt,
        listener_address="JobMaster-test/jobmaster",
        job_master_id=JobMasterId.generate(),
        graph_id=ExecutionGraphID.generate(),
        worker_group=WorkerGroupId(group.id.hex()),
        parallelism=group.bundle_count,
        slot_profile=SLOT,
        code=dump_function(function),
        configuration={HOST_OPTION: SPARK_HOST, **(configuration or {})},
        result_location=result_location,
    )
