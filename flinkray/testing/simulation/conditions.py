"""What the weather does to frames."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Conditions:
    """Of the network and of what supervises processes, now; times in virtual seconds.

    The shares are probabilities of a frame; at most one of them befalls it.
    """

    latency: tuple[float, float] = (0.0001, 0.001)
    """Shortest and longest time that a frame takes."""
    loss: float = 0.0
    """It never arrives, as if a buffer had been full at the other side.

    Notices of ends and requests to stop are not lost, and a call that waits without a deadline
    loses its connection instead: no time-out would ever tell its caller."""
    duplication: float = 0.0
    """It arrives twice, the second time whenever it likes."""
    breaks_before: float = 0.0
    """The connection breaks, and it does not arrive."""
    breaks_after: float = 0.0
    """It arrives, and then the connection breaks: who sent it cannot know that it has arrived."""
    delay: float = 0.0
    """It takes up to :attr:`longest_delay`; later ones of its connection wait for it."""
    longest_delay: float = 2.0
    connect_timeout: float = 5.0
    """For which a connection that gets no answer is tried."""
    silence_timeout: float = 15.0
    """After which a connection to a lost node, or across a partition, is taken to be broken."""
    start: tuple[float, float] = (0.001, 0.1)
    """That a process takes until it makes its endpoint."""
    restart: tuple[float, float] = (0.001, 1.0)
    """From a death until the process is started again."""
    orphans_live: tuple[float, float] = (0.0, 0.05)
    """For which a process outlives its owner's sudden death."""
    node_death_noticed: tuple[float, float] = (1.0, 10.0)
    """Until the supervisor has found out that a node is lost."""
    provider: tuple[float, float] = (0.0, 0.02)
    """That the provider of workers takes before it does what it is asked for, and to say so."""
    blocking: tuple[float, float] = (0.0, 0.002)
    """That a call of ``run_blocking`` takes."""

    @property
    def faulty(self) -> float:
        """Share of the frames that something befalls."""
        return self.loss + self.duplication + self.breaks_before + self.breaks_after + self.delay
