"""Which goals were met in one run."""

from __future__ import annotations


class Goals:
    """Printed as they are looked at."""

    def __init__(self) -> None:
        self.are_met = True

    def check(self, text: str, is_met: bool) -> None:
        print(f"  goal: {text}: {'met' if is_met else 'MISSED'}", flush=True)
        self.are_met &= is_met
