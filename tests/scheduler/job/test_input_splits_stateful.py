"""InputSplitAssigner beside a model: requests, lost answers, and failovers of both kinds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flinkray.scheduler.job.input_splits import InputSplit, InputSplitAssigner

HOSTS = ("", "x", "y")


class InputSplitsMachine(RuleBasedStateMachine):
    """The model: the splits that each subtask's present attempt was given, in their order."""

    @initialize(places=st.lists(st.sets(st.sampled_from(["x", "y"])), max_size=8))
    def make(self, places: list[set[str]]) -> None:
        self.splits = [
            InputSplit(number, b"", tuple(sorted(where))) for number, where in enumerate(places)
        ]
        self.assigner = InputSplitAssigner(self.splits)
        self.given: dict[int, list[InputSplit]] = {}

    @rule(subtask=st.integers(0, 3), host=st.sampled_from(HOSTS))
    def asks_for_the_next(self, subtask: int, host: str) -> None:
        given = self.given.setdefault(subtask, [])
        free = [s for s in self.splits if all(s not in taken for taken in self.given.values())]
        split = self.assigner.next_split(subtask, len(given), host)
        if split is None:
            assert not free
            return
        assert split in free
        assert host in split.hosts or not any(host in one.hosts for one in free)
        given.append(split)

    @rule(subtask=st.integers(0, 3), back=st.integers(1, 8), host=st.sampled_from(HOSTS))
    def asks_again(self, subtask: int, back: int, host: str) -> None:
        given = self.given.get(subtask, [])
        if back <= len(given):
            number = len(given) - back
            assert self.assigner.next_split(subtask, number, host) is given[number]

    @rule(subtask=st.integers(0, 3))
    def is_executed_again(self, subtask: int) -> None:
        self.assigner.return_splits(subtask)
        self.given.pop(subtask, None)

    @rule(rare=st.integers(0, 9))
    def everything_is_executed_again(self, rare: int) -> None:
        if rare == 0:
            self.assigner.reset()
            self.given.clear()

    @invariant()
    def no_split_is_with_two(self) -> None:
        if hasattr(self, "assigner"):
            numbers = [split.number for given in self.given.values() for split in given]
            assert len(numbers) == len(set(numbers))

    def teardown(self) -> None:
        """No split is lost: one that asks until there are no more completes them."""
        if hasattr(self, "assigner"):
            while self.assigner.next_split(9, len(self.given.setdefault(9, []))) is not None:
                split = self.assigner.next_split(9, len(self.given[9]))
                assert split is not None
                self.given[9].append(split)
            numbers = sorted(split.number for given in self.given.values() for split in given)
            assert numbers == list(range(len(self.splits)))


TestInputSplits = InputSplitsMachine.TestCase
TestInputSplits.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
