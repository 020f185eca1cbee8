"""Decides which slots a job has, and which subtasks share a slot."""

__all__ = [
    "logical_slots",
    "slot_ledger",
    "slot_pool",
    "slot_requests",
    "slot_sharing",
]
