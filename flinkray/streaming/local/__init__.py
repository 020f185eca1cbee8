"""A runner for whole programs in one process."""
