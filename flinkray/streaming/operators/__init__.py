"""Stream operators, one module for each kind."""

__all__ = [
    "async_wait",
    "basic",
    "batch_mode",
    "broadcast",
    "calls",
    "collector",
    "interval_join",
    "keyed",
    "look_up",
    "model_replicas",
    "operator",
    "process",
    "python_stage",
    "source",
    "task_services",
    "timestamps",
    "two_inputs",
]
