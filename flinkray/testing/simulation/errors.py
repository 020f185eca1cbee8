"""What goes wrong with a simulated run itself."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """A simulated run cannot go on; the text says why, its story how it came to this."""


class NothingWillHappenError(SimulationError):
    """The program waits for something that nobody will ever do, or has waited too long for it."""


class LivelockError(SimulationError):
    """Callbacks follow each other without end and no time passes."""


class ForbiddenInSimulationError(SimulationError):
    """A thread, a real sleep, a real socket or another process was asked for; names the call site.

    Pass blocking work to ``RpcService.run_blocking``, sleep with ``asyncio.sleep``, and talk by
    gateways.
    """


class UnhandledError(SimulationError):
    """An exception that nobody awaits; it is the cause of this one."""


class ProcessDied(BaseException):
    """Unwinds the blocking work of a process that died in the middle of it."""
