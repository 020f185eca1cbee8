"""Where the executors of a Spark stage come from: what every host of them can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flinkray.scheduler.shared.spark_reports import SparkExecutorInfo


@dataclass(frozen=True, slots=True)
class HostProperties:
    """What a host adds to the properties that every stage has."""

    class_path: str
    """Of the driver's JVM."""
    spark: Mapping[str, str]
    """Spark properties that the user cannot set."""
    driver_options: tuple[str, ...] = ()
    """Options of the driver's JVM."""
    driver_environment: Mapping[str, str] = field(default_factory=dict)


class SparkHost(ABC):
    """Has executor i of a stage run in bundle i of the stage's worker group.

    One for each attempt of a stage, in the driver's process.  Its life is the application's:
    :meth:`start` before the session is opened, :meth:`opened` after, :meth:`stop` while the
    driver's JVM may still be there, :meth:`await_end` when it is not.  Methods block; those that
    tell something may be called from another thread than the rest.
    """

    properties: HostProperties
    loss: ClassVar[str]
    """What has happened when :meth:`is_lost`; for people."""

    @abstractmethod
    def start(self, gateway: Any, timed: Callable[[str, Callable[[], Any]], Any]) -> str:
        """Make a master that a session can be opened at, by the driver's JVM; returns its URL.

        Args:
            gateway: py4j's, to the driver's JVM.
            timed: calls what it is given, as a step of the start that has this name.
        """

    @abstractmethod
    def opened(self, java_context: Any) -> None:
        """The session is open: executors may come.  *java_context*: Scala's SparkContext."""

    @abstractmethod
    def executors(self, active: Iterable[str]) -> tuple[SparkExecutorInfo, ...]:
        """Which executors run where, in order of their bundles.

        Args:
            active: Spark's ids of those that are registered now.  One whose process is not known
                (yet), or is known to have ended, is left out.
        """

    @abstractmethod
    def missed(self) -> str | None:
        """Why a slot has no executor, if none will come there by itself; for people."""

    @abstractmethod
    def is_lost(self) -> bool:
        """Whether no executor can run (any more), although the driver's JVM does."""

    @abstractmethod
    def executor_logs(self, logs_directory: str) -> str:
        """Where executors log, for people."""

    @abstractmethod
    def stop(self) -> None:
        """End what is there beside the session, which has been stopped.

        Raises:
            Py4JError, OSError: the driver's JVM is going.
        """

    @abstractmethod
    def await_end(self) -> None:
        """Return when the executors have ended, or some seconds later."""
