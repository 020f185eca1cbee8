"""Configurations of clusters in which tests let processes die."""

from __future__ import annotations

RESTARTS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "10 ms",
}
"""Options of a job that restarts at once."""
QUICK_RESTARTS = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "task.cancellation.interval": "50 ms",
    "cluster.registration.error-delay": "5 ms",
    **RESTARTS,
}
"""Failed jobs restart at once, 20 times."""
MASTERS_MAY_DIE = {
    **QUICK_RESTARTS,
    "restart-strategy.type": "none",
    "jobmaster.max-failovers": "100",
}
"""Failed jobs do not restart. Masters may die 100 times."""
