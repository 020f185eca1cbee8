"""Defines the errors of a simulated run itself."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """Raised if a simulated run cannot continue.

    The text says why, and the story shows the events before.
    """


class NothingWillHappenError(SimulationError):
    """The program waits for an event that will never happen, or has waited too long."""


class LivelockError(SimulationError):
    """Callbacks follow each other endlessly, and virtual time does not advance."""


class ForbiddenInSimulationError(SimulationError):
    """The program asked for a thread, a real sleep, a real socket or another process.

    The text has the call site. Use ``RpcService.run_blocking``, ``asyncio.sleep`` and gateways.
    """


class UnhandledError(SimulationError):
    """An exception was raised that nobody awaits; it is the cause of this error."""


class ProcessDied(BaseException):
    """Raised to end the blocking work of a simulated process that died in the middle of it."""
