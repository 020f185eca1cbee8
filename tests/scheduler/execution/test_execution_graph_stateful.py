"""ExecutionGraph and its Executions beside a model: any event for any attempt, at any time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.core.errors import IllegalTransitionError, JobSubmissionError
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.execution.execution_graph import (
    PRIOR_ATTEMPTS_KEPT,
    Execution,
    ExecutionGraph,
)
from flinkray.scheduler.graph.job_graph import IntermediateDataSet, JobEdge, ResultPartitionType
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot
from flinkray.scheduler.shared.states import ExecutionState
from tests.scheduler.builders import GRAPH, allocated_slot
from tests.scheduler.graphs import (
    ALL_TO_ALL,
    POINTWISE,
    data_set_id,
    job,
    python_vertex,
    vertex_id,
)

MAY = {
    "schedule": "CREATED",
    "deploy": "SCHEDULED",
    "initialize": "DEPLOYING",
    "run": "DEPLOYING INITIALIZING",
    "finish": "DEPLOYING INITIALIZING RUNNING",
}
"""What moves an attempt on, and the states in which that is possible."""
LEADS_TO = {
    "schedule": "SCHEDULED",
    "deploy": "DEPLOYING",
    "initialize": "INITIALIZING",
    "run": "RUNNING",
    "finish": "FINISHED",
}
TERMINAL = ("FINISHED", "CANCELED", "FAILED")
NAMES = [chr(ord("a") + number) for number in range(8)]


@dataclass
class Attempt:
    """What is known of an attempt: the states it was in, each with its time."""

    number: int
    entered: dict[str, float]
    slot: AllocatedSlot | None = None
    failure: Failure | None = None

    @property
    def state(self) -> str:
        return [*self.entered][-1]

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL


@dataclass
class Subtask:
    """All attempts of a subtask, the current one last."""

    name: str
    index: int
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def current(self) -> Attempt:
        return self.attempts[-1]


class ExecutionGraphMachine(RuleBasedStateMachine):
    """The model: every attempt that there ever was, and who reads what."""

    @initialize(
        parallelism=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        executed=st.integers(1, 3),
        first_attempt=st.sampled_from([0, 7]),
    )
    def make(self, parallelism: list[int], executed: int, first_attempt: int) -> None:
        """The first vertex is executed with another parallelism than it wants."""
        self.now = 0.0
        self.slots = count(1)
        self.first_attempt = first_attempt
        self.subtasks: list[Subtask] = []
        self.wide: dict[str, int] = {}
        """Vertices in their order, with their parallelism."""
        self.edges: list[tuple[str, str]] = []
        wanted = dict(zip(NAMES, parallelism, strict=False))
        self.graph = ExecutionGraph(
            job(vertices=[python_vertex(name, number) for name, number in wanted.items()]),
            GRAPH,
            self.now,
            parallelism={vertex_id("a"): executed},
            first_attempt=first_attempt,
        )
        for name, number in {**wanted, "a": executed}.items():
            self.expect(name, number)

    def expect(self, name: str, parallelism: int) -> None:
        self.wide[name] = parallelism
        for index in range(parallelism):
            attempt = Attempt(self.first_attempt, {"CREATED": self.now})
            self.subtasks.append(Subtask(name, index, [attempt]))

    def enter(self, attempt: Attempt, state: str) -> None:
        assert not attempt.has_ended
        attempt.entered[state] = self.now

    def draw(self, data: st.DataObject) -> tuple[Subtask, Execution]:
        ordinal = data.draw(st.integers(0, len(self.subtasks) - 1))
        self.now += 1.0
        return self.subtasks[ordinal], self.graph.subtasks[ordinal].current

    # attempts

    @rule(data=st.data(), event=st.sampled_from(sorted(MAY)))
    def moves_on(self, data: st.DataObject, event: str) -> None:
        """EX-01, EX-05."""
        subtask, execution = self.draw(data)
        self.move(subtask, execution, event)

    def move(self, subtask: Subtask, execution: Execution, event: str) -> None:
        attempt = subtask.current
        slot = allocated_slot(next(self.slots))
        call: dict[str, Callable[[], object]] = {
            "schedule": lambda: execution.schedule(self.now),
            "deploy": lambda: execution.deploy(slot, self.now),
            "initialize": lambda: execution.initialize(self.now),
            "run": lambda: execution.run(self.now),
            "finish": lambda: execution.finish(self.now),
        }
        if attempt.state in MAY[event].split():
            assert call[event]() is not False
            self.enter(attempt, LEADS_TO[event])
            if event == "deploy":
                attempt.slot = slot
        elif event == "schedule" and attempt.state == "CANCELED":
            assert call[event]() is False
        else:
            refusal = f"cannot go from {attempt.state} to {LEADS_TO[event]}"
            with pytest.raises(IllegalTransitionError, match=refusal):
                call[event]()

    @rule(data=st.data(), steps=st.integers(2, 5), skip=st.booleans())
    def lives(self, data: st.DataObject, steps: int, skip: bool) -> None:
        """Several steps of the usual way, perhaps without initialising."""
        subtask, execution = self.draw(data)
        for event in [*LEADS_TO][:steps]:
            if not (skip and event == "initialize"):
                self.move(subtask, execution, event)

    @rule(data=st.data())
    def is_cancelled(self, data: st.DataObject) -> None:
        """EX-03, EX-04."""
        subtask, execution = self.draw(data)
        attempt = subtask.current
        news = not attempt.has_ended and attempt.state != "CANCELING"
        assert execution.begin_cancel(self.now) == (news and attempt.slot is not None)
        if news:
            self.enter(attempt, "CANCELING")
            if attempt.slot is None:
                self.enter(attempt, "CANCELED")

    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        """EX-05."""
        subtask, execution = self.draw(data)
        attempt = subtask.current
        failure = Failure(f"failure at {self.now}")
        is_failure = not attempt.has_ended and attempt.state != "CANCELING"
        assert execution.end(failure, self.now) == is_failure
        if is_failure:
            self.enter(attempt, "FAILED")
            attempt.failure = failure
        elif not attempt.has_ended:
            self.enter(attempt, "CANCELED")

    @rule(data=st.data(), times=st.sampled_from([1, 1, 10]))
    def is_executed_again(self, data: st.DataObject, times: int) -> None:
        """What has not ended is not followed by another."""
        subtask, execution = self.draw(data)
        vertex = execution.vertex
        if not subtask.current.has_ended:
            with pytest.raises(IllegalTransitionError, match="it has not ended"):
                vertex.reset_for_new_execution(self.now)
            return
        for turn in range(times):
            following = vertex.reset_for_new_execution(self.now)
            assert following is vertex.current
            subtask.attempts.append(Attempt(subtask.current.number + 1, {"CREATED": self.now}))
            if turn < times - 1:
                following.begin_cancel(self.now)
                self.enter(subtask.current, "CANCELING")
                self.enter(subtask.current, "CANCELED")

    # vertices

    @precondition(lambda self: len(self.wide) < len(NAMES))
    @rule(data=st.data(), parallelism=st.integers(1, 3), wrong=st.sampled_from(["", "", *"trw"]))
    def attached(self, data: st.DataObject, parallelism: int, wrong: str) -> None:
        """EG-01, EG-02: a refused one leaves nothing behind."""
        self.now += 1.0
        name = NAMES[len(self.wide)]
        results = (IntermediateDataSet(data_set_id(len(self.wide)), ResultPartitionType.PIPELINED),)
        patterns = st.sampled_from([ALL_TO_ALL, POINTWISE])
        readable = {NAMES[number]: number for number in range(len(self.wide))}
        readable = {n: i for n, i in readable.items() if self.graph.result(data_set_id(i))}
        read = sorted(data.draw(st.sets(st.sampled_from([*readable])))) if readable else []
        inputs = [JobEdge(data_set_id(readable[n]), data.draw(patterns)) for n in read]
        vertex = python_vertex(name, parallelism, results=results, inputs=tuple(inputs))
        if wrong:
            refused = {
                "t": replace(vertex, vertex_id=vertex_id(data.draw(st.sampled_from([*self.wide])))),
                "r": replace(vertex, inputs=(*inputs, JobEdge(data_set_id(99), ALL_TO_ALL))),
                "w": replace(vertex, parallelism=4, max_parallelism=3),
            }
            with pytest.raises(JobSubmissionError, match=f"vertex '{name}'"):
                self.graph.attach((refused[wrong],), self.now)
            return
        self.graph.attach((vertex,), self.now)
        self.expect(name, parallelism)
        self.edges += [(source, name) for source in read]

    # what holds

    @invariant()
    def every_attempt_has_the_states_that_it_was_in_and_one_end(self) -> None:
        if not hasattr(self, "graph"):
            return
        for subtask, vertex in zip(self.subtasks, self.graph.subtasks, strict=True):
            kept = subtask.attempts[-1 - PRIOR_ATTEMPTS_KEPT :]
            for attempt, execution in zip(kept, (*vertex.prior, vertex.current), strict=True):
                assert execution.attempt_number == attempt.number
                entered = {state.name: at for state, at in execution.entered.items()}
                assert entered == attempt.entered
                assert execution.state.name == attempt.state
                ends = [state for state in execution.entered if state.is_terminal]
                assert len(ends) == (attempt.state in TERMINAL)
                assert execution.slot is attempt.slot
                assert execution.failure is attempt.failure
                steps = str(execution.story).count("->")
                assert steps == len(attempt.entered) - 1
            assert all(execution.state.is_terminal for execution in vertex.prior)

    @invariant()
    def vertices_have_ended_and_finished_when_all_their_current_attempts_have(self) -> None:
        if not hasattr(self, "graph"):
            return
        for vertex in self.graph.vertices:
            states = {s.current.state for s in self.subtasks if s.name == vertex.vertex.name}
            assert vertex.is_terminal == states.issubset(TERMINAL)
            assert vertex.is_finished == (states == {"FINISHED"})
        everywhere = {subtask.current.state for subtask in self.subtasks}
        assert self.graph.is_terminal == everywhere.issubset(TERMINAL)
        assert self.graph.is_finished == (everywhere == {"FINISHED"})

    @invariant()
    def current_attempts_are_found_and_no_others(self) -> None:
        """EX-11."""
        if not hasattr(self, "graph"):
            return
        for subtask, vertex in zip(self.subtasks, self.graph.subtasks, strict=True):
            for number in range(-1, subtask.current.number + 2):
                found = self.graph.find(ExecutionAttemptID(GRAPH, vertex.vertex_id, number))
                assert found is (vertex.current if number == subtask.current.number else None)
        for name, parallelism in self.wide.items():
            for index in (-1, parallelism):
                outside = ExecutionVertexID(vertex_id(name), index)
                attempt_id = ExecutionAttemptID(GRAPH, outside, self.first_attempt)
                assert self.graph.find(attempt_id) is None
        unknown = ExecutionAttemptID(
            GRAPH, ExecutionVertexID(vertex_id("?"), 0), self.first_attempt
        )
        assert self.graph.find(unknown) is None

    @invariant()
    def subtasks_are_numbered_through_and_edges_are_those_that_were_asked_for(self) -> None:
        if not hasattr(self, "graph"):
            return
        ordinals = [ordinal for vertex in self.graph.vertices for ordinal in vertex.ordinals]
        assert ordinals == [s.ordinal for s in self.graph.subtasks] == [*range(len(self.subtasks))]
        assert [s.task_name for s in self.graph.subtasks] == [
            f"{s.name} ({s.index + 1}/{self.wide[s.name]})" for s in self.subtasks
        ]
        edges = [
            (edge.result.producer.vertex.name, edge.consumer.vertex.name)
            for edge in self.graph.edges
        ]
        assert edges == self.edges
        assert [edge.index for edge in self.graph.edges] == [*range(len(edges))]
        for vertex in self.graph.vertices:
            name = vertex.vertex.name
            readers = [e.consumer.vertex.name for r in vertex.results for e in r.edges]
            assert readers == [target for source, target in self.edges if source == name]
            sources = [e.result.producer.vertex.name for e in vertex.inputs]
            assert sources == [source for source, target in self.edges if target == name]

    def teardown(self) -> None:
        """Whatever happened: cancelled, and told that they have ended, all have."""
        if hasattr(self, "graph"):
            for vertex in self.graph.subtasks:
                if vertex.current.begin_cancel(self.now):
                    vertex.current.end(Failure("its end"), self.now)
                elif vertex.current.state is ExecutionState.CANCELING:
                    assert not vertex.current.end(Failure("its end"), self.now)
            assert self.graph.is_terminal


TestExecutionGraph = ExecutionGraphMachine.TestCase
TestExecutionGraph.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
