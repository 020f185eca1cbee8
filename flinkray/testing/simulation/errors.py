"""Errors of a simulated run itself."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """A simulated run cannot go on; the text says why, and its story shows how this came about."""


class NothingWillHappenError(SimulationError):
    """The program waits for an event that will never happen, or has waited too long."""


class LivelockError(SimulationError):
    """Callbacks follow each other without end, and no time passes."""


class ForbiddenInSimulationError(SimulationError):
    """The program asked for a thread, a real sleep, a real socket or another process.

    The text has the call site. Use ``RpcService.run_blocking``, ``asyncio.sleep`` and gateways.
    """


class UnhandledError(SimulationError):
    """An exception that nobody awaits; the exception is the cause of this error."""


class ProcessDied(BaseException):
    """Unwinds the blocking work of a process that died in the middle of the work."""
