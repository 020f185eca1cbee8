"""The life of an elastic job, which runs with the slots that are available."""

__all__ = ["elastic_job_scheduler", "parallelism", "scaling"]
