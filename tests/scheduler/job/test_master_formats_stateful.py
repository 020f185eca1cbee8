"""MasterFormats beside a model, with answers that come late, twice, wrong or never."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.scheduler.execution.execution_graph import ExecutionVertex
from flinkray.scheduler.graph.job_graph import MasterFormat
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    FinalizeFormat,
    FormatFailed,
    FormatFinalized,
    FormatInitialized,
    FormatRequest,
    InitializeFormat,
)
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    AskCoordinator,
    StartCoordinator,
    StartTimer,
    StopCoordinator,
    TimerKey,
    TimerPurpose,
)
from flinkray.scheduler.job.master_formats import MasterFormats
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.job.transitions import (
    BeginExecution,
    EndJob,
    FormatsPauseOver,
    GlobalFailure,
    ResetRegions,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import JobStatus
from tests.scheduler.graphs import execution_graph, python_vertex, vertex_id

NAMES = ("a", "b", "c")
PARALLELISM = 2
FORMATS = st.one_of(
    st.none(), st.builds(MasterFormat, st.just(b"code"), st.booleans(), st.booleans())
)

SPLITS_MADE = st.integers(0, 4)
SUBTASKS = st.integers(0, len(NAMES) * PARALLELISM - 1)


@dataclass
class Order:
    """One that was given, and whether it is waited for."""

    name: str
    generation: int
    """0: to initialise."""
    is_open: bool = True


@dataclass
class Splits:
    """Of a vertex: those that nobody has, and what each subtask was given, in its order."""

    free: set[int]
    given: dict[int, list[int]] = field(default_factory=dict)


class MasterFormatsMachine(RuleBasedStateMachine):
    """The model: every order that was given, and every split's place."""

    @initialize(
        formats=st.lists(FORMATS, min_size=1, max_size=3),
        made=st.none() | st.lists(SPLITS_MADE, min_size=3, max_size=3),
    )
    def make(self, formats: list[MasterFormat | None], made: list[int] | None) -> None:
        """*made*: all is initialised at once, with so many splits of each; else it is left to the
        choice of rules whether the job ever runs."""
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
        self.splits: dict[str, Splits] = {}
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
        for order, number in zip(self.open, made or (), strict=False):
            self.is_initialized(order, number)

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
    @rule(data=st.data(), number=SPLITS_MADE)
    def initialized(self, data: st.DataObject, number: int) -> None:
        name = data.draw(st.sampled_from(self.orders)).name
        order = next(o for o in self.orders if (o.name, o.generation) == (name, 0))
        self.is_initialized(order, number)

    def is_initialized(self, order: Order, number: int) -> None:
        name = order.name
        splits = tuple(InputSplit(i, name.encode()) for i in range(number))
        follows = [BeginExecution()] if self.open == [order] else []
        assert self.told(FormatInitialized(vertex_id(name), splits)) == follows
        if order.is_open:
            order.is_open = False
            self.initialised.add(name)
            if self.format_of(name).makes_splits:
                self.splits[name] = Splits(set(range(number)))

    @precondition(lambda self: self.orders)
    @rule(data=st.data())
    def finalized(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.orders))
        is_last = order.generation > 0 and self.open == [order]
        follows = [EndJob(JobStatus.FINISHED)] if is_last else []
        assert self.told(FormatFinalized(vertex_id(order.name), order.generation)) == follows
        if order.generation:
            order.is_open = False

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), rare=st.integers(0, 3))
    def failed(self, data: st.DataObject, rare: int) -> None:
        order = data.draw(st.sampled_from(self.orders))
        if rare and order.is_open:
            return
        follows = [GlobalFailure(Failure("why"))] if order.is_open else []
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
                key = TimerKey(TimerPurpose.FORMATS, self.losses + 1)
                assert follows == [StartTimer(key, 2.0 ** (self.losses - 2))]
                assert self.hear(self.pause_over(self.losses)) == ([], []), "an earlier one"
                asked, follows = self.hear(self.pause_over(self.losses + 1))
            self.losses += 1
            again = [vertex_id(order.name) for order in self.open]
            assert ([request.vertex_id for request in asked], follows) == (again, [])
            return
        failure = Failure("the process of the job's formats died: killed")
        assert follows == ([GlobalFailure(failure)] if self.open else [])
        for one in self.orders:
            one.is_open = False

    def pause_over(self, loss: int) -> Steps:
        return self.formats.pause_over(FormatsPauseOver(loss), 0.0)

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
    @rule(
        asking=st.lists(SUBTASKS, max_size=6),
        is_finishing=st.booleans(),
        chosen=st.sets(SUBTASKS),
        is_global=st.booleans(),
    )
    def executed_again(
        self, asking: list[int], is_finishing: bool, chosen: set[int], is_global: bool
    ) -> None:
        """JM-12.  *asking*: subtasks that ask for a split before it."""
        vertices = self.graph.subtasks
        for vertex in vertices:
            if vertex.job_vertex.vertex.name in self.splits:
                for _ in range(asking.count(vertex.ordinal)):
                    self.next_split(vertex)
        if is_finishing:
            self.all_is_finished()
        again = vertices if is_global else [v for v in vertices if v.ordinal in chosen]
        for vertex in again:
            splits = self.splits.get(vertex.job_vertex.vertex.name)
            if splits is not None:
                splits.free |= set(splits.given.pop(vertex.subtask_index, ()))
        late = self.open
        for order in self.orders:
            order.is_open = False
        assert self.formats.regions_reset(ResetRegions((), is_global, tuple(again)), 0.0) == ()
        for order in late:
            assert self.told(FormatFinalized(vertex_id(order.name), order.generation)) == []

    @rule(data=st.data(), number=st.integers(1, 3))
    def subtask_asks_for_splits(self, data: st.DataObject, number: int) -> None:
        vertex: ExecutionVertex = data.draw(st.sampled_from(self.graph.subtasks))
        if vertex.job_vertex.vertex.name not in self.splits:
            assert self.formats.next_split(vertex, 0, "") is None
            return
        for _ in range(number):
            self.next_split(vertex)

    def next_split(self, vertex: ExecutionVertex) -> bool:
        """Whether there was one."""
        name = vertex.job_vertex.vertex.name
        splits = self.splits[name]
        given = splits.given.setdefault(vertex.subtask_index, [])
        split = self.formats.next_split(vertex, len(given), "")
        assert (split is None) == (not splits.free), "no split is lost"
        if split is None:
            return False
        assert split.data == name.encode(), "of its own vertex"
        splits.free.remove(split.number)
        given.append(split.number)
        return True

    @rule(data=st.data())
    def subtask_asks_again(self, data: st.DataObject) -> None:
        vertex: ExecutionVertex = data.draw(st.sampled_from(self.graph.subtasks))
        splits = self.splits.get(vertex.job_vertex.vertex.name, Splits(set()))
        for number, given in enumerate(splits.given.get(vertex.subtask_index, ())):
            split = self.formats.next_split(vertex, number, "")
            assert split is not None
            assert split.number == given

    # what holds

    @invariant()
    def what_is_ordered_is_ordered_once(self) -> None:
        if hasattr(self, "formats"):
            keys = [(order.name, order.generation) for order in self.orders]
            assert len(set(keys)) == len(keys)
            assert len({order.generation for order in self.open}) <= 1

    def teardown(self) -> None:
        """Whatever was answered before: those that are waited for have an end, and one subtask of a
        vertex gets all splits that its others do not have."""
        if not hasattr(self, "formats"):
            return
        for vertex in self.graph.vertices:
            while vertex.vertex.name in self.splits and self.next_split(vertex.subtasks[0]):
                pass
        while self.open:
            order = self.open[0]
            of = vertex_id(order.name)
            if order.generation:
                follows = self.told(FormatFinalized(of, order.generation))
            else:
                follows = self.told(FormatInitialized(of, ()))
            order.is_open = False
            assert bool(follows) == (not self.open)


TestMasterFormats = MasterFormatsMachine.TestCase
TestMasterFormats.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
