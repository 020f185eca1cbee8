"""Schedules elastic (adaptive) jobs, whose parallelism depends on the available slots."""

__all__ = ["elastic_job_scheduler", "parallelism", "scaling"]
