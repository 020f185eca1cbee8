"""The slots of a job: the decisions of its SlotPool, and how subtasks share slots."""

__all__ = [
    "execution_slot_allocator",
    "logical_slot",
    "slot_ledger",
    "slot_pool",
    "slot_pool_actions",
    "slot_requests",
    "slot_sharing",
]
