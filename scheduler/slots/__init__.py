"""Decides which slots a job has, and which subtasks share a slot."""

__all__ = [
    "execution_slot_allocator",
    "logical_slots",
    "slot_ledger",
    "slot_pool",
    "slot_requests",
    "slot_sharing",
]
