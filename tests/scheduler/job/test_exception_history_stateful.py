"""ExceptionHistory beside a model that forgets nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flinkray.scheduler.job.exception_history import ExceptionHistory
from flinkray.scheduler.reports.job_info import ExceptionEntry
from flinkray.scheduler.shared.failure import Failure

CONCURRENT_KEPT = 16
TASKS = st.sampled_from([None, "map (1/2)", "map (2/2)"])
TRACEBACKS = st.sampled_from([None, "in line 7"])
NUMBERS = st.integers(1, 12)


class ExceptionHistoryMachine(RuleBasedStateMachine):
    """The model: all failures in their order, each a root or one that came with the root before."""

    @initialize(size=st.sampled_from([1, 2, 16]))
    def make(self, size: int) -> None:
        self.history = ExceptionHistory(size)
        self.size = size
        self.now = 0.0
        self.log: list[tuple[bool, ExceptionEntry]] = []
        """Whether it is a root."""

    def next_failure(self, task: str | None, traceback: str | None, is_root: bool) -> Failure:
        self.now += 1.0
        where = None if task is None else "te0 bundle 0 on 10.0.0.1"
        text = f"failure {len(self.log)}"
        self.log.append((is_root, ExceptionEntry(self.now, text, traceback, task, where)))
        return Failure(text, traceback, task=task, location=where)

    @rule(task=TASKS, traceback=TRACEBACKS, number=NUMBERS)
    def failures(self, task: str | None, traceback: str | None, number: int) -> None:
        for _ in range(number):
            self.history.add(self.next_failure(task, traceback, True), self.now)

    @rule(task=TASKS, traceback=TRACEBACKS, number=NUMBERS)
    def concurrent_failures(self, task: str | None, traceback: str | None, number: int) -> None:
        for _ in range(number):
            failure = self.next_failure(task, traceback, not self.log)
            self.history.add_concurrent(failure, self.now)

    @invariant()
    def what_is_told_are_the_newest_roots_each_with_what_came_first_with_it(self) -> None:
        if not hasattr(self, "history"):
            return
        roots = [number for number, (is_root, _) in enumerate(self.log) if is_root]
        ends = [*roots[1:], len(self.log)]
        expected = []
        for root, end in zip(roots, ends, strict=False):
            with_it = [entry for _, entry in self.log[root + 1 : end]][:CONCURRENT_KEPT]
            expected.append((self.log[root][1], with_it))
        told = [
            (ExceptionEntry(e.timestamp, e.text, e.traceback, e.task, e.location), e.concurrent)
            for e in self.history.entries
        ]
        assert told == [(root, tuple(with_it)) for root, with_it in expected[-self.size :]]

    @invariant()
    def there_is_a_bound_to_it(self) -> None:
        if hasattr(self, "history"):
            assert len(self.history.entries) <= self.size
            assert all(len(e.concurrent) <= CONCURRENT_KEPT for e in self.history.entries)


TestExceptionHistory = ExceptionHistoryMachine.TestCase
TestExceptionHistory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
