"""Runs whole programs in one process."""

__all__ = ["local_job"]
