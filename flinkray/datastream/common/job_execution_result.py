"""The result of a program that has ended: a module of PyFlink's."""

from flinkray.client.job_result import JobExecutionResult

__all__ = ["JobExecutionResult"]
