"""DeploymentReconciliation between a JobMaster and TaskExecutors whose messages are lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from flinkray.actors.job_master.deployment_reconciliation import DeploymentReconciliation
from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID, ResourceID
from tests.actors.resource_cluster import GRAPH

HOSTS = [ResourceID(name) for name in "ab"]
Attempts = frozenset[ExecutionAttemptID]


class ReconciliationMachine(RuleBasedStateMachine):
    """The model: what the JobMaster believes, what runs, how the last heartbeat differed."""

    def __init__(self) -> None:
        super().__init__()
        self.found = DeploymentReconciliation()
        self.number = 0
        self.believed: dict[ExecutionAttemptID, tuple[ResourceID, bool]] = {}
        """Attempt -> where it was sent, and whether that is acknowledged."""
        self.running: dict[ResourceID, set[ExecutionAttemptID]] = {host: set() for host in HOSTS}
        self.last: dict[ResourceID, tuple[Attempts, Attempts]] = {}

    @rule(host=st.sampled_from(HOSTS), arrives=st.booleans())
    def deploy(self, host: ResourceID, arrives: bool) -> None:
        self.number += 1
        vertex = ExecutionVertexID(JobVertexID(bytes(16)), self.number)
        attempt_id = ExecutionAttemptID(GRAPH, vertex, 0)
        self.found.deploying(host, (attempt_id,))
        self.believed[attempt_id] = host, False
        if arrives:
            self.running[host].add(attempt_id)

    @precondition(lambda self: self.believed)
    @rule(data=st.data())
    def acknowledged(self, data: st.DataObject) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.believed, key=str)))
        host, _ = self.believed[attempt_id]
        self.found.deployed(host, (attempt_id,))
        self.believed[attempt_id] = host, True

    @precondition(lambda self: any(self.running.values()))
    @rule(data=st.data(), is_told=st.booleans())
    def ends(self, data: st.DataObject, is_told: bool) -> None:
        host = data.draw(st.sampled_from([h for h in HOSTS if self.running[h]]))
        attempt_id = data.draw(st.sampled_from(sorted(self.running[host], key=str)))
        self.running[host].remove(attempt_id)
        if is_told:
            self.give_up((attempt_id,))

    @precondition(lambda self: self.believed)
    @rule(data=st.data())
    def is_given_up(self, data: st.DataObject) -> None:
        self.give_up((data.draw(st.sampled_from(sorted(self.believed, key=str))),))

    def give_up(self, attempts: tuple[ExecutionAttemptID, ...]) -> None:
        self.found.ended(attempts)
        for attempt_id in attempts:
            self.believed.pop(attempt_id, None)

    @rule(host=st.sampled_from(HOSTS), rare=st.integers(0, 5))
    def dies(self, host: ResourceID, rare: int) -> None:
        if rare == 0:
            self.found.task_executor_lost(host)
            self.running[host].clear()
            self.last.pop(host, None)
            for attempt_id in [a for a, (where, _) in self.believed.items() if where == host]:
                del self.believed[attempt_id]

    @rule(host=st.sampled_from(HOSTS))
    def heartbeat(self, host: ResourceID) -> None:
        here = frozenset(self.running[host])
        believed = {a: known for a, (where, known) in self.believed.items() if where == host}
        missing = frozenset(a for a, known in believed.items() if known and a not in here)
        unknown = here - believed.keys()
        before = self.last.get(host, (frozenset(), frozenset()))
        found = self.found.heartbeat(host, here)
        assert set(found.missing) == missing & before[0]
        assert set(found.unknown) == unknown & before[1]
        self.last[host] = missing, unknown

    def teardown(self) -> None:
        """After three heartbeats of each, and what follows from them, both sides are the same."""
        for host in HOSTS:
            for attempt_id in [a for a, (where, _) in self.believed.items() if where == host]:
                self.found.deployed(host, (attempt_id,))
                self.believed[attempt_id] = host, True
            for _ in range(3):
                found = self.found.heartbeat(host, self.running[host])
                self.give_up(found.missing)
                self.running[host] -= set(found.unknown)
        for host in HOSTS:
            assert self.running[host] == {a for a, (h, _) in self.believed.items() if h == host}
        self.found.ended(tuple(self.believed))
        for host in HOSTS:
            self.found.heartbeat(host, ())
        assert not self.found._task_executors
        assert not self.found._places


TestReconciliation = ReconciliationMachine.TestCase
TestReconciliation.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
