"""The slots of a job: its SlotPool's decisions, and how subtasks share slots."""
