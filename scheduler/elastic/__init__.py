"""The elastic (adaptive) scheduler of jobs, which run with the available slots."""

__all__ = ["elastic_job_scheduler", "parallelism", "scaling"]
