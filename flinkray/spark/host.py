"""Defines the interface of a host, which provides the executors of a Spark stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo


@dataclass(frozen=True, slots=True)
class HostProperties:
    """Properties of a stage's JVMs that the host of the executors decides."""

    class_path: str
    """Class path of the driver's JVM."""
    spark: Mapping[str, str]
    """Spark properties that the user cannot set."""
    driver_options: tuple[str, ...] = ()
    """Options of the driver's JVM."""
    driver_environment: Mapping[str, str] = field(default_factory=dict)


class SparkHost(ABC):
    """Provides the executors of a stage attempt.

    Executor i runs in bundle i of the stage's worker group (a Ray placement group). The driver's
    process calls :meth:`start` before the session is opened, :meth:`opened` after it, :meth:`stop`
    while the driver's JVM may still run, and :meth:`await_end` when the JVM has ended. Methods
    block; methods that return information may be called from another thread.
    """

    properties: HostProperties
    loss: ClassVar[str]
    """Text for people that says what has happened if :meth:`is_lost` is true."""

    @abstractmethod
    def start(self, gateway: Any, timed: Callable[[str, Callable[[], Any]], Any]) -> str:
        """Start a master in the driver's JVM, with which a session can be opened; return its URL.

        Args:
            gateway: py4j's gateway to the driver's JVM.
            timed: calls the given function, and notes the time that it takes under the given name.
        """

    @abstractmethod
    def opened(self, java_context: Any) -> None:
        """Start executors, because the session is open now. *java_context*: the JVM's
        SparkContext."""

    @abstractmethod
    def executors(self, active: Iterable[str]) -> tuple[SparkExecutorInfo, ...]:
        """Return the registered executors with their processes, ordered by bundle (that is, by
        slot).

        Args:
            active: Spark's ids of the executors that are registered now. An executor is left out if
                its process is not known (yet) or has ended.
        """

    @abstractmethod
    def missed(self) -> str | None:
        """Return a text that says why a slot has no executor and will get none. None: the host
        knows of no such slot."""

    @abstractmethod
    def is_lost(self) -> bool:
        """Return whether no executor can run (any more), although the driver's JVM runs."""

    @abstractmethod
    def executor_logs(self, logs_directory: str) -> str:
        """Return where the executors' logs are, as a text for people."""

    @abstractmethod
    def stop(self) -> None:
        """End everything that the host started beside the session, which has been stopped before.

        Raises:
            Py4JError, OSError: the driver's JVM is ending.
        """

    @abstractmethod
    def await_end(self) -> None:
        """Wait until the executors have ended, at most some seconds."""
