"""The process that holds a job's slots: the SlotPool."""
