"""What several domains speak of: states, slots, tasks, failures."""

__all__ = ["failure", "io_metrics", "matching", "slots", "states", "story", "tasks"]
