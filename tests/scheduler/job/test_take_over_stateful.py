"""JobSchedulers that follow each other, each with what the last one has noted and TaskExecutors
report, in a world that fails in any way at any time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import RestartStrategy
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.job_scheduler_actions import (
    CancelTasks,
    DeployTasks,
)
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from tests.scheduler.graphs import execution_graph, job
from tests.scheduler.job.taken_over_job import TakenOverJob
from tests.scheduler.job.test_job_scheduler_tasks_stateful import TasksMachine
from tests.scheduler.tasks_under_test import EARLY

CHOICES = st.integers(0, 10**6)
LATER = (*EARLY[1:], *(state for state in ExecutionState if state.is_terminal))
NOT_DEPLOYED = (ExecutionState.CREATED, ExecutionState.SCHEDULED)


class TakeOverMachine(TasksMachine):
    """The JobMaster dies, too: in the middle of what it says, and while others have something to
    tell it."""

    tasks: TakenOverJob

    def begin(self, shape: dict[str, Any], strategy: RestartStrategy, restart_all: bool) -> None:
        graph = replace(job(restart_strategy=strategy, **shape), restart_all=restart_all)
        self.graph = execution_graph(**shape)
        self.regions = PipelinedRegions(self.graph)
        self.tasks = TakenOverJob(graph, slots_each=2)
        self.timers, self.cancelled, self.kept = [], set(), {}
        self.act(t.StartJob())

    def attempt(self, name: str, subtask: int, number: int) -> ExecutionAttemptID:
        assert self.tasks.notes is not None
        (found,) = [
            a
            for a in self.tasks.where
            if self.tasks.name(a) == f"{name}{subtask + 1}"
            and a.attempt_number == number
            and a.graph_id == self.tasks.notes.graph_id
        ]
        return found

    # --- the JobMaster ----------------------------------------------------------------------------

    @precondition(lambda self: self.tasks.ended is None)
    @rule(data=st.data(), number=st.integers(0, 3))
    def job_master_dies(self, data: st.DataObject, number: int) -> None:
        if number:
            self.tasks.carried_out = number - 1
            self.say_last_words(data)
            if self.tasks.ended is not None:
                return
        unheard = self.happen_unheard(data) if data.draw(st.booleans()) else False
        lost = self.lose_some(data) if data.draw(st.integers(0, 3)) == 0 else False
        before = None if number or unheard or lost else self.what_should_go_on()
        self.take_over(before)

    def say_last_words(self, data: st.DataObject) -> None:
        """Events of which it carries out the first few actions, or none."""
        runs = self.runs()
        choices = ["give"] * bool(self.tasks.wanted) + ["timer"] * bool(self.timers)
        choices += ["finish", "fail"] * bool(runs)
        choice = data.draw(st.sampled_from(choices or ["cancel"]))
        if choice == "give":
            self.act("give", None)
        elif choice == "timer":
            self.act(data.draw(st.sampled_from(self.timers)))
        elif choice == "finish":
            self.act("report", [data.draw(st.sampled_from(runs))], ExecutionState.FINISHED)
        elif choice == "fail":
            self.act(
                "report", [data.draw(st.sampled_from(runs))], ExecutionState.FAILED, "it broke"
            )

    def happen_unheard(self, data: st.DataObject) -> bool:
        runs = self.runs()
        if not runs:
            return False
        state = data.draw(
            st.sampled_from([*EARLY[1:], *(s for s in ExecutionState if s.is_terminal)])
        )
        chosen = data.draw(st.lists(st.sampled_from(runs), min_size=1, max_size=3, unique=True))
        if state is ExecutionState.FINISHED:
            for attempt_id in chosen:
                self.kept.update(dict.fromkeys(self.blocking(attempt_id), attempt_id))
        self.tasks.happens(chosen, state, "unheard")
        return True

    def lose_some(self, data: st.DataObject) -> bool:
        there = sorted(self.tasks.locations)
        if not there:
            return False
        name = data.draw(st.sampled_from(there))
        self.kept = {p: a for p, a in self.kept.items() if self.tasks.where[a] != name}
        self.tasks.task_executor_dies(name)
        return True

    def what_should_go_on(self) -> dict[tuple[str, int], tuple[ExecutionState, int]] | None:
        """All of it, if nothing of it has failed; None: something has."""
        current = self.current()
        if self.tasks.status is not JobStatus.RUNNING:
            return None
        deployed = {s: e for s, e in current.items() if e[0] not in NOT_DEPLOYED}
        for (name, subtask), (state, number) in deployed.items():
            attempt_id = self.attempt(name, subtask, number)
            runs = state in EARLY and self.tasks.task_states.get(attempt_id) is state
            if not runs and state is not ExecutionState.FINISHED:
                return None
        return deployed

    def take_over(self, before: dict[tuple[str, int], tuple[ExecutionState, int]] | None) -> None:
        self.story = self.tasks.scheduler.story()
        self.tasks.next_job_master()
        self.timers, self.cancelled = [], set()
        actions = self.tasks.take_over()
        self.look_at(actions)
        if before is not None:
            after = self.current()
            assert {subtask: after[subtask] for subtask in before} == before
            assert not [a for a in actions if isinstance(a, (DeployTasks, CancelTasks))]
            assert self.tasks.status in (JobStatus.RUNNING, JobStatus.FINISHED), self.story
        for attempt_id in self.tasks.tasks:
            if self.tasks.task_states[attempt_id] is ExecutionState.CANCELING:
                assert attempt_id in self.cancelled, "told again, or it would never be heard"
        used = {r.slot.allocation_id for r in self.tasks.ledger.restored() if r.request_id}
        assert used == set(self.tasks.reserved)

    @precondition(lambda self: self.tasks.ended is None)
    @rule(rare=st.integers(0, 10))
    def job_master_dies_with_its_notes(self, rare: int) -> None:
        """Nothing goes on; what was there ends before the job has its slots."""
        if rare:
            return
        self.tasks.notes = None
        self.tasks.finished.clear()
        self.take_over(None)
        there = dict(self.tasks.tasks)
        assert set(there) <= self.cancelled
        self.tasks.happens(list(there), ExecutionState.CANCELED)
        assert not self.kept

    # --- what must hold ---------------------------------------------------------------------------

    def check_deployment(self, action: DeployTasks) -> None:
        if self.tasks.carried_out is not None:
            return  # not all that it says is heard
        super().check_deployment(action)
        for task in action.deployments.tasks:
            side = self.tasks.task_executors[action.location.resource_id]
            vertex: Any = side.parts[task.vertex].content
            others = [
                a
                for a in self.tasks.tasks
                if self.tasks.name(a) == f"{vertex.name}{task.subtask_index + 1}"
            ]
            assert len(others) == 1, (others, self.cancelled, self.tasks.scheduler.story())

    def present(self, *states: ExecutionState) -> list[ExecutionAttemptID]:
        return [
            self.attempt(name, subtask, number)
            for (name, subtask), (state, number) in self.current().items()
            if state in states
        ]

    @invariant()
    def nobody_reads_from_others_than_it_was_deployed_with(self) -> None:
        if not hasattr(self, "graph"):
            return
        ended_well = self.tasks.status is JobStatus.FINISHED
        finished = self.present(ExecutionState.FINISHED) if ended_well else []
        current = self.current()
        for attempt_id in (*self.present(*EARLY), *finished):
            for (data_set_id, partition), number in self.tasks.producers(attempt_id).items():
                result = self.graph.result(data_set_id)
                assert result is not None
                producer = result.producer.vertex.name, partition
                assert current[producer][1] == number


TestTakeOver = TakeOverMachine.TestCase
TestTakeOver.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
