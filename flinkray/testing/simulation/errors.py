"""Defines the errors of a simulated run itself."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """Raised if a simulated run cannot continue.

    The text says why, and the story shows the events before.
    """


class NothingWillHappenError(SimulationError):
    """Raised if the program waits for an event that cannot happen any more, or has waited beyond
    the time limit."""


class LivelockError(SimulationError):
    """Raised if callbacks follow each other without end, so that virtual time does not advance."""


class ForbiddenInSimulationError(SimulationError):
    """Raised if the program uses a thread, a real sleep, a real socket or another process. The text
    names the place of the call. Use ``RpcService.run_blocking``, ``asyncio.sleep`` and gateways
    instead."""


class UnhandledError(SimulationError):
    """Raised if no code awaits a task or future that has failed; the exception of the task is the
    cause of this error."""


class ProcessDied(BaseException):
    """Raised to end the blocking work of a simulated process that died in the middle of it."""
