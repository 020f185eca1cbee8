"""The life of an elastic job, which runs with what slots there are."""
