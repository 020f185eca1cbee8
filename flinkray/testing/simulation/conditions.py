"""Defines the conditions of the simulated network and of process supervision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Conditions:
    """The present conditions of the simulated network and of the supervision of processes; times in
    virtual seconds. The fractions are the probabilities that a frame meets a fault; at most one of
    these faults happens to a frame."""

    latency: tuple[float, float] = (0.0001, 0.001)
    """The shortest and longest time that a frame takes."""
    loss: float = 0.0
    """The fraction of frames that never arrive, as if a buffer was full at the other side.

    Notices of ends and requests to stop are not lost, and a call that waits without a deadline
    loses its connection instead, as no timeout would ever end its wait.
    """
    duplication: float = 0.0
    """The fraction of frames that arrive twice, the second time at any later moment."""
    breaks_before: float = 0.0
    """The fraction of frames that do not arrive because the connection breaks."""
    breaks_after: float = 0.0
    """The fraction of frames that arrive just before the connection breaks.

    The sender cannot know that such a frame has arrived.
    """
    delay: float = 0.0
    """The fraction of frames that take up to :attr:`longest_delay`.

    Later frames of the same connection wait for such a frame.
    """
    longest_delay: float = 2.0
    connect_timeout: float = 5.0
    """Seconds until a connection attempt without an answer fails."""
    silence_timeout: float = 15.0
    """How long until a connection to a lost node, or across a partition, counts as broken."""
    start: tuple[float, float] = (0.001, 0.1)
    """The shortest and longest time until a new process makes its endpoint."""
    restart: tuple[float, float] = (0.001, 1.0)
    """The shortest and longest time from a death until the process is started again."""
    orphans_live: tuple[float, float] = (0.0, 0.05)
    """The shortest and longest time that a process outlives its owner's sudden death."""
    node_death_noticed: tuple[float, float] = (1.0, 10.0)
    """The shortest and longest time until the supervisor notices that a node is lost."""
    provider: tuple[float, float] = (0.0, 0.02)
    """The shortest and longest time that the provider of workers takes to act, and to report."""
    blocking: tuple[float, float] = (0.0, 0.002)
    """The shortest and longest time that a call of ``run_blocking`` takes."""

    @property
    def faulty(self) -> float:
        """The fraction of frames that meet any fault."""
        return self.loss + self.duplication + self.breaks_before + self.breaks_after + self.delay
