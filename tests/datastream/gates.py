"""Where a thread of a task is held, in the process of the test.

User code travels by value, and so would a gate that it refers to: it asks for the gate by name.
"""

from __future__ import annotations

import importlib
import threading


class Gate:
    """The first to come is held until the gate is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(300)


GATES: dict[str, Gate] = {}


def new_gate(name: str) -> Gate:
    """In place of the one of that name."""
    gate = GATES[name] = Gate()
    return gate


def pass_through(name: str) -> None:
    """In a task."""
    gates: dict[str, Gate] = importlib.import_module("tests.datastream.gates").GATES
    gates[name].pass_through()
