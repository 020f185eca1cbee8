"""MasterFormats beside a model, with answers that come late, twice, wrong or never."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flinkray.scheduler.execution.execution_graph import ExecutionVertex
from flinkray.scheduler.graph.job_graph import MasterFormat
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.job.job_scheduler_actions import FinalizeOnMaster, InitializeOnMaster
from flinkray.scheduler.job.master_formats import MasterFormats
from flinkray.scheduler.job.outbox import Outbox
from tests.scheduler.builders import only
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
        self.outbox = Outbox()
        self.outbox.open(self.graph)
        self.formats = MasterFormats(self.graph, self.outbox)
        self.orders: list[Order] = []
        self.initialised: set[str] = set()
        self.splits: dict[str, Splits] = {}
        self.generation = 0
        wanted = [name for name, one in self.of.items() if one is not None]
        assert self.formats.initialize() == bool(wanted)
        told = only(self.outbox.take(), InitializeOnMaster)
        assert [(t.vertex_id, t.master_format) for t in told] == [
            (vertex_id(name), self.of[name]) for name in wanted
        ]
        self.orders += [Order(name, 0) for name in wanted]
        for order, number in zip(self.open, made or (), strict=False):
            self.is_initialized(order, number)

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
        splits = [InputSplit(i, name.encode()) for i in range(number)]
        is_last = self.open == [order]
        assert self.formats.initialized(vertex_id(name), splits) == is_last
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
        assert self.formats.finalized(vertex_id(order.name), order.generation) == is_last
        if order.generation:
            order.is_open = False

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), rare=st.integers(0, 3))
    def failed(self, data: st.DataObject, rare: int) -> None:
        order = data.draw(st.sampled_from(self.orders))
        if rare and order.is_open:
            return
        assert self.formats.failed(vertex_id(order.name), order.generation) == order.is_open
        if order.is_open:
            for one in self.orders:
                one.is_open = False

    # the job

    @precondition(lambda self: self.is_running)
    @rule()
    def all_is_finished(self) -> None:
        self.generation += 1
        for order in self.orders:
            order.is_open = False
        wanted = [name for name, one in self.of.items() if one is not None and one.finalizes]
        assert self.formats.finalize() == bool(wanted)
        told = only(self.outbox.take(), FinalizeOnMaster)
        assert [(t.vertex_id, t.master_format) for t in told] == [
            (vertex_id(name), self.of[name]) for name in wanted
        ]
        assert {t.generation for t in told} <= {self.generation}
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
        self.formats.reset(() if is_global else again, is_global)
        for order in late:
            assert not self.formats.finalized(vertex_id(order.name), order.generation)

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
    def nothing_is_ordered_but_at_the_start_and_at_the_end(self) -> None:
        if hasattr(self, "formats"):
            assert self.outbox.take() == []

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
                is_last = self.formats.finalized(of, order.generation)
            else:
                is_last = self.formats.initialized(of, ())
            order.is_open = False
            assert is_last == (not self.open)


TestMasterFormats = MasterFormatsMachine.TestCase
TestMasterFormats.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
