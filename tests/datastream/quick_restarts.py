"""A cluster whose jobs are restarted at once, as often as tests make them fail."""

from __future__ import annotations

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "task.cancellation.interval": "50 ms",
    "cluster.registration.error-delay": "5 ms",
}
