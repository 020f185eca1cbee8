"""The end of a TaskExecutor that nobody manages."""

from __future__ import annotations

from collections.abc import Callable

from flinkray.core.config_option import format_duration
from flinkray.core.errors import FlinkRayError
from flinkray.core.options import TASK_EXECUTOR_REGISTRATION_TIMEOUT
from flinkray.rpc import RpcEndpoint, TimerHandle


class RegistrationTimeoutError(FlinkRayError):
    """The TaskExecutor found no ResourceManager for too long, and ended itself."""


class RegistrationTimeout:
    """Runs while an endpoint is not registered; when it is over, that is fatal to the endpoint."""

    def __init__(self, endpoint: RpcEndpoint, timeout: float, obstacle: Callable[[], str]) -> None:
        """*timeout* in seconds; *obstacle* tells people why it is not registered."""
        self._endpoint = endpoint
        self._timeout = timeout
        self._obstacle = obstacle
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Begin, or begin anew."""
        self.stop()
        self._timer = self._endpoint.schedule_deadline(self._timeout, self._over)

    def stop(self) -> None:
        """Registered; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._endpoint.on_fatal_error(
            RegistrationTimeoutError(
                f"{self._endpoint.address} could not register at the ResourceManager within "
                f"{format_duration(self._timeout)} ({TASK_EXECUTOR_REGISTRATION_TIMEOUT.key}): "
                f"{self._obstacle()}"
            )
        )
