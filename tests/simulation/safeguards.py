"""What the simulation notices when a safeguard is taken out of the framework.

Each safeguard is switched off by replacing one small piece of a product class for the length of a
run; nothing that ships knows of these switches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from flinkray.rpc import HeartbeatManager, RegisteredRpcConnection
from flinkray.rpc.serving import dispatch
from flinkray.testing.simulation import Simulation
from tests.simulation.registration_and_fencing import FAULTS, registration_and_fencing


class _UnfencedLane(dispatch._Lane):
    """Calls need no token."""

    __slots__ = ()
    token = property(lambda self: None, lambda self, token: None)


class _ForgetfulLane(dispatch._Lane):
    """Every frame is a new one."""

    __slots__ = ()
    last_sequence = property(lambda self: 0, lambda self, sequence: None)


Switch = Callable[[], AbstractContextManager[object]]

SAFEGUARDS: dict[str, tuple[str, Switch]] = {
    "fencing": (
        "an endpoint refuses calls with another session's token",
        lambda: patch.object(dispatch, "_Lane", _UnfencedLane),
    ),
    "generation check": (
        "a connection disregards the answer to a registration that it has given up",
        lambda: patch.object(RegisteredRpcConnection, "_is_current", lambda *_: True),
    ),
    "de-duplication": (
        "a connection refuses a frame that came before",
        lambda: patch.object(dispatch, "_Lane", _ForgetfulLane),
    ),
    "heartbeats": (
        "leader and workers notice each other's silence",
        lambda: patch.object(HeartbeatManager, "monitor_target", lambda *_: None),
    ),
}
"""Name -> what it does, and what switches it off."""


def seeds_until_noticed(name: str | None, first: int, at_most: int) -> tuple[int, str] | None:
    """Run seeds from *first* on without a safeguard (None: with all of them).

    Returns how many it took until one failed and with what; None: *at_most* were run in vain.
    """
    for number in range(at_most):
        error = run(name, first + number)
        if error is not None:
            return number + 1, str(error).splitlines()[0] if str(error) else repr(error)
    return None


def run(name: str | None, seed: int) -> Exception | None:
    """The error that one seed fails with."""
    simulation = Simulation(seed, faults=FAULTS, nodes=2)
    switched_off = nullcontext() if name is None else SAFEGUARDS[name][1]()
    logging.disable(logging.CRITICAL)  # thousands of refused frames
    try:
        with switched_off:
            simulation.run(registration_and_fencing(simulation))
    except Exception as error:  # noqa: BLE001 - whatever it is: it was noticed
        return error
    finally:
        logging.disable(logging.NOTSET)
    return None
