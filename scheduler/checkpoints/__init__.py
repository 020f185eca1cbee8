"""Checkpoints: the decisions of the coordinator, and who is given which state at a restore."""

__all__ = ["errors", "restored_vertices", "state_assignment"]
