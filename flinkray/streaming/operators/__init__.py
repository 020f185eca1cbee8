"""Stream operators, one module for each kind."""

__all__ = [
    "async_wait",
    "basic",
    "batch_mode",
    "broadcast",
    "collector",
    "interval_join",
    "keyed",
    "look_up",
    "operator",
    "process",
    "python_stage",
    "source",
    "task_services",
    "timestamps",
    "two_inputs",
]
