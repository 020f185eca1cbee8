"""The life of an elastic job, which runs with what slots there are."""

__all__ = ["elastic_job_scheduler", "parallelism", "scaling"]
