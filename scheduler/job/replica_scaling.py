"""Decides how many replicas of a model run, from how busy they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionJobVertex
from flinkray.scheduler.graph.job_graph import MODEL
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.transition_loop import Steps
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState

WINDOW = 2.0
"""Seconds over which the load is measured, at least."""
PRESSED = 0.5
"""Part of the time from which on replicas are added: they work while further requests wait."""
GROWTH = 1.5
"""Largest factor by which the number grows at a time; it grows by at least one."""
SPARE = 0.6
"""Part of the time for which fewer replicas would have to work, so that one is stopped."""
CALM = 30.0
"""Seconds for which the load must be low before a replica is stopped."""


@dataclass
class _Load:
    """What is known of the load of one vertex."""

    since: float = 0.0
    """Monotonic seconds when the window began."""
    before: dict[ExecutionAttemptID, IOMetrics] = field(default_factory=dict)
    calm_since: float | None = None


class ReplicaScaling:
    """Adds replicas while requests wait at the callers and all replicas work, and stops them one by
    one when fewer could do the work. Nothing is decided while a replica starts or restarts."""

    def __init__(self, graph: ExecutionGraph) -> None:
        self._loads = {
            vertex: _Load()
            for vertex in graph.vertices
            if vertex.vertex.invokable.kind == MODEL
            and vertex.vertex.min_parallelism < vertex.parallelism
        }

    @property
    def are_there(self) -> bool:
        """Whether there are replicas whose number may change."""
        return bool(self._loads)

    def measured(self, transition: t.ReplicasMeasured, now: float) -> Steps:
        """Return the change of the number of replicas that follows from what they have reported."""
        steps = []
        for vertex, load in self._loads.items():
            number = self._wanted(vertex, load, transition, now)
            if number != vertex.active:
                load.calm_since = None
                steps.append(t.ScaleReplicas(vertex, number))
        return steps

    def _wanted(
        self, vertex: ExecutionJobVertex, load: _Load, measured: t.ReplicasMeasured, now: float
    ) -> int:
        active = vertex.active
        running = [subtask.current for subtask in vertex.subtasks[:active]]
        metrics = {
            e.attempt_id: measured.metrics[e.attempt_id]
            for e in running
            if e.state is ExecutionState.RUNNING and e.attempt_id in measured.metrics
        }
        if len(metrics) < active or metrics.keys() != load.before.keys():
            load.since, load.before = now, metrics
            load.calm_since = None
            return active
        if now - load.since < WINDOW:
            return active
        before = load.before
        elapsed = sum(m.elapsed_ms - before[a].elapsed_ms for a, m in metrics.items())
        pressed = sum(m.back_pressured_ms - before[a].back_pressured_ms for a, m in metrics.items())
        busy = sum(m.busy_ms - before[a].busy_ms for a, m in metrics.items())
        load.since, load.before = now, metrics
        if elapsed <= 0:
            return active
        if pressed / elapsed >= PRESSED:
            load.calm_since = None
            return min(vertex.parallelism, max(active + 1, int(active * GROWTH)))
        is_calm = (busy + pressed) / elapsed * active < SPARE * (active - 1)
        if not is_calm or active <= vertex.vertex.min_parallelism:
            load.calm_since = None
        elif load.calm_since is None:
            load.calm_since = now
        elif now - load.calm_since >= CALM:
            return active - 1
        return active
