"""MasterFormats beside a model, with answers that come late, twice, wrong or never."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.scheduler.graph.job_graph import MasterFormat
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    FinalizeFormat,
    FormatFailed,
    FormatFinalized,
    FormatInitialized,
    FormatRequest,
    InitializeFormat,
)
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    AskCoordinator,
    StartCoordinator,
    StopCoordinator,
)
from flinkray.scheduler.job.master_formats import MasterFormats
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.transition import StartTimer
from tests.scheduler.graphs import execution_graph, python_vertex, vertex_id

NAMES = ("a", "b", "c")
PARALLELISM = 2
FORMATS = st.one_of(st.none(), st.builds(MasterFormat, st.just(b"code"), st.booleans()))

SUBTASKS = st.integers(0, len(NAMES) * PARALLELISM - 1)


@dataclass
class Order:
    """One that was given, and whether it is waited for."""

    name: str
    generation: int
    """0: to initialise."""
    is_open: bool = True


class MasterFormatsMachine(RuleBasedStateMachine):
    """The model: every order that was given."""

    @initialize(
        formats=st.lists(FORMATS, min_size=1, max_size=3),
        is_made=st.booleans(),
    )
    def make(self, formats: list[MasterFormat | None], is_made: bool) -> None:
        """*is_made*: all is initialised at once; else it is left to the choice of rules whether the
        job ever runs."""
        self.of = dict(zip(NAMES, formats, strict=False))
        self.graph = execution_graph(
            vertices=[
                python_vertex(name, PARALLELISM, master_format=one) for name, one in self.of.items()
            ]
        )
        record = JobRecord(self.graph.job_graph, 0.0, 0.0)
        record.enter(JobStatus.CREATED, 0.0)
        record.enter(JobStatus.RUNNING, 0.0)
        self.formats = MasterFormats(self.graph.job_graph, record)
        self.orders: list[Order] = []
        self.initialised: set[str] = set()
        self.generation = 0
        self.losses = 0
        wanted = [name for name, one in self.of.items() if one is not None]
        asked, follows = self.hear(self.formats.initialize(0.0))
        assert self.formats.is_working == bool(wanted)
        assert asked == [
            InitializeFormat(vertex_id(name), self.format_of(name), PARALLELISM) for name in wanted
        ]
        assert follows == []
        self.orders += [Order(name, 0) for name in wanted]
        for order in self.open if is_made else ():
            self.is_initialized(order)

    def hear(self, steps: Iterable[Step]) -> tuple[list[FormatRequest], list[Step]]:
        """What is asked of the process, which starts and ends as it is told to; and what follows
        for the job."""
        asked: list[FormatRequest] = []
        follows: list[Step] = []
        queue = list(steps)
        while queue:
            match queue.pop(0):
                case StartCoordinator(coordinator):
                    assert coordinator == self.formats.coordinator_id
                    queue += self.formats.started(0.0)
                case StopCoordinator(coordinator):
                    assert coordinator == self.formats.coordinator_id
                    queue += self.formats.gone("it ended", 0.0)
                case AskCoordinator(coordinator, request):
                    assert coordinator == self.formats.coordinator_id
                    asked.append(request)
                case other:
                    follows.append(other)
        return asked, follows

    def told(self, event: CoordinatorEvent) -> list[Step]:
        asked, follows = self.hear(self.formats.told(event, 0.0))
        assert asked == [], "nothing is ordered but at the start and at the end"
        return follows

    @property
    def open(self) -> list[Order]:
        return [order for order in self.orders if order.is_open]

    @property
    def is_running(self) -> bool:
        """Whether all initialisations succeeded, and so the job was scheduled."""
        return self.initialised == {name for name, one in self.of.items() if one is not None}

    def format_of(self, name: str) -> MasterFormat:
        found = self.of[name]
        assert found is not None
        return found

    # answers: to any order ever given, at any time, any number of times

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def initialized(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.orders)).name
        order = next(o for o in self.orders if (o.name, o.generation) == (name, 0))
        self.is_initialized(order)

    def is_initialized(self, order: Order) -> None:
        name = order.name
        follows = [t.BeginExecution()] if self.open == [order] else []
        assert self.told(FormatInitialized(vertex_id(name))) == follows
        if order.is_open:
            order.is_open = False
            self.initialised.add(name)

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def finalized(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.orders))
        is_last = order.generation > 0 and self.open == [order]
        follows = [t.EndJob(JobStatus.FINISHED)] if is_last else []
        assert self.told(FormatFinalized(vertex_id(order.name), order.generation)) == follows
        if order.generation:
            order.is_open = False

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), rare=st.integers(0, 3))
    def failed(self, data: st.DataObject, rare: int) -> None:
        order = data.draw(st.sampled_from(self.orders))
        if rare and order.is_open:
            return
        follows = [t.GlobalFailure(Failure("why"))] if order.is_open else []
        assert self.told(FormatFailed(vertex_id(order.name), order.generation, "why")) == follows
        if order.is_open:
            for one in self.orders:
                one.is_open = False

    @rule(rare=st.integers(0, 3))
    def process_dies(self, rare: int) -> None:
        """It is missed by what is waited for, and only by that; to initialise, seven are asked."""
        if rare and self.open:
            return
        asked, follows = self.hear(self.formats.gone("killed", 0.0))
        if self.open and self.generation == 0 and self.losses < 7:
            if self.losses:
                assert asked == []
                key = t.FormatsPauseOver(self.losses + 1)
                assert follows == [StartTimer(key, 2.0 ** (self.losses - 2))]
                assert self.hear(self.pause_over(self.losses)) == ([], []), "an earlier one"
                asked, follows = self.hear(self.pause_over(self.losses + 1))
            self.losses += 1
            again = [vertex_id(order.name) for order in self.open]
            assert ([request.vertex_id for request in asked], follows) == (again, [])
            return
        failure = Failure("the process of the job's formats died: killed")
        assert follows == ([t.GlobalFailure(failure)] if self.open else [])
        for one in self.orders:
            one.is_open = False

    def pause_over(self, loss: int) -> Steps:
        return self.formats.pause_over(t.FormatsPauseOver(loss), 0.0)

    # the job

    @precondition(lambda self: self.is_running)
    @rule()
    def all_is_finished(self) -> None:
        self.generation += 1
        for order in self.orders:
            order.is_open = False
        wanted = [name for name, one in self.of.items() if one is not None and one.finalizes]
        asked, follows = self.hear(self.formats.finalize(0.0))
        assert self.formats.is_working == bool(wanted)
        assert asked == [
            FinalizeFormat(vertex_id(name), self.format_of(name), PARALLELISM, self.generation)
            for name in wanted
        ]
        assert follows == []
        self.orders += [Order(name, self.generation) for name in wanted]

    @precondition(lambda self: self.is_running)
    @rule(is_finishing=st.booleans(), chosen=st.sets(SUBTASKS), is_global=st.booleans())
    def executed_again(self, is_finishing: bool, chosen: set[int], is_global: bool) -> None:
        vertices = self.graph.subtasks
        if is_finishing:
            self.all_is_finished()
        again = vertices if is_global else [v for v in vertices if v.ordinal in chosen]
        late = self.open
        for order in self.orders:
            order.is_open = False
        assert self.formats.regions_reset(t.ResetRegions((), is_global, tuple(again)), 0.0) == ()
        for order in late:
            assert self.told(FormatFinalized(vertex_id(order.name), order.generation)) == []

    # what holds

    @invariant()
    def what_is_ordered_is_ordered_once(self) -> None:
        if hasattr(self, "formats"):
            keys = [(order.name, order.generation) for order in self.orders]
            assert len(set(keys)) == len(keys)
            assert len({order.generation for order in self.open}) <= 1

    def teardown(self) -> None:
        """Whatever was answered before: those that are waited for have an end."""
        if not hasattr(self, "formats"):
            return
        while self.open:
            order = self.open[0]
            of = vertex_id(order.name)
            if order.generation:
                follows = self.told(FormatFinalized(of, order.generation))
            else:
                follows = self.told(FormatInitialized(of))
            order.is_open = False
            assert bool(follows) == (not self.open)


TestMasterFormats = MasterFormatsMachine.TestCase
TestMasterFormats.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
