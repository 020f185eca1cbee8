"""Defines resource profiles: the resources that a slot needs or a TaskExecutor has."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from numbers import Real

from flinkray.core.message import message
from flinkray.core.schema import stored

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
MOST_CORES = 1_000_000
MOST_MEMORY = 2**49
"""Largest amount of memory in bytes: Ray counts in 64 bits, in units of 1/10000."""

DEVICES = frozenset({"GPU", "TPU", "NPU", "HPU", "RBLN", "neuron_cores"})
"""Ray's names of resources that are numbered devices."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?\s*", re.IGNORECASE)


@lru_cache(1024, typed=True)
def parse_memory_size(text: str | int) -> int:
    """Return a memory size in bytes, from ``1024``, ``"512m"``, ``"1.5 g"`` or ``"2GiB"``.
    Units are powers of 1024. Raises ValueError, with examples, if *text* is not a memory size."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a memory size: {text!r} (write for example 512m or 1.5g)")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if math.isinf(size):
        raise ValueError(f"not a memory size: a number of {len(match[1])} digits")
    return int(size)


def slot_resources(
    cpu: float, memory: int, extended: Mapping[str, float] | None = None
) -> ResourceProfile:
    """Return the profile of a slot from the amounts that a user asks for.
    Raises ValueError, which names an invalid amount: more than any node has, or a device and a part
    of another (Ray gives a part of one device, or whole ones)."""
    amounts = (("cpu", cpu, MOST_CORES), ("memory", memory, MOST_MEMORY))
    others = ((name, amount, MOST_MEMORY) for name, amount in (extended or {}).items())
    for name, amount, most in (*amounts, *others):
        if not isinstance(amount, Real) or isinstance(amount, bool) or not 0 <= amount <= most:
            raise ValueError(f"{name} must be a number from 0 to {most}, not {amount!r}")
    for name, amount in (extended or {}).items():
        if name in DEVICES and amount > 1 and amount != int(amount):
            raise ValueError(f"{name} must be at most 1 or a whole number, not {amount!r}")
    return ResourceProfile(float(cpu), int(memory), dict(extended or {}))


def format_memory_size(size: int) -> str:
    """Return a memory size as a short text with at most one decimal: ``512m``, ``1.5g``."""
    for unit in ("t", "g", "m", "k"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f}".removesuffix(".0") + unit
    return f"{size}b"


@stored("ResourceProfile")
@message
class ResourceProfile:
    """An amount of resources: CPU cores, bytes of memory, and Ray resources by name (as ``GPU``).
    Amounts are rounded to Ray's granularity of 1/10000; amounts of zero are dropped."""

    cpu: float
    memory: int = 0
    extended: dict[str, float] = field(default_factory=dict)
    _hash: int = field(init=False, repr=False, compare=False, default=0)
    """Cached hash, since profiles are looked up far more often than made.
    The hash uses numbers only, so it is the same in every process."""

    def __post_init__(self) -> None:
        for name, amount in (("cpu", self.cpu), ("memory", self.memory), *self.extended.items()):
            if not 0 <= amount < math.inf:
                raise ValueError(f"resource {name} must be finite and not negative: {amount}")
        # rounded as Ray does, so that a recovered profile equals the reserved one
        extended = {n: _round(a) for n, a in self.extended.items() if _round(a) > 0}
        object.__setattr__(self, "cpu", _round(self.cpu))
        object.__setattr__(self, "extended", extended)
        amounts = tuple(amount for _, amount in sorted(extended.items()))
        object.__setattr__(self, "_hash", hash((self.cpu, self.memory, amounts)))

    def __hash__(self) -> int:
        return self._hash

    def fits_into(self, other: ResourceProfile) -> bool:
        """Return whether *other* has at least as much of every resource."""
        return (
            _round(self.cpu) <= _round(other.cpu)
            and self.memory <= other.memory
            and all(
                _round(amount) <= _round(other.extended.get(name, 0.0))
                for name, amount in self.extended.items()
            )
        )

    def is_zero(self) -> bool:
        return self.fits_into(ResourceProfile(0.0))

    def __add__(self, other: ResourceProfile) -> ResourceProfile:
        names = sorted(self.extended.keys() | other.extended.keys())
        return ResourceProfile(
            _round(self.cpu + other.cpu),
            self.memory + other.memory,
            {n: _round(self.extended.get(n, 0.0) + other.extended.get(n, 0.0)) for n in names},
        )

    def __sub__(self, other: ResourceProfile) -> ResourceProfile:
        """Return the resources of self minus *other*. Raises ValueError if *other* is larger."""
        if not other.fits_into(self):
            raise ValueError(f"cannot take {other} from {self}")
        return ResourceProfile(
            _round(self.cpu - other.cpu),
            self.memory - other.memory,
            {n: _round(a - other.extended.get(n, 0.0)) for n, a in self.extended.items()},
        )

    def reduced_by(self, other: ResourceProfile) -> ResourceProfile:
        """Return the resources of self minus *other*, with zero as the smallest amount."""
        return ResourceProfile(
            max(0.0, self.cpu - other.cpu),
            max(0, self.memory - other.memory),
            {n: max(0.0, a - other.extended.get(n, 0.0)) for n, a in self.extended.items()},
        )

    def times(self, count: int) -> ResourceProfile:
        return ResourceProfile(
            _round(self.cpu * count),
            self.memory * count,
            {n: _round(a * count) for n, a in self.extended.items()},
        )

    def to_ray_resources(self) -> dict[str, float]:
        """Return the profile as a placement group bundle: ``{"CPU": …, "memory": …, …}``.
        Zero amounts are left out."""
        resources = {"CPU": float(self.cpu), "memory": float(self.memory), **self.extended}
        return {name: amount for name, amount in resources.items() if amount > 0}

    @classmethod
    def from_ray_resources(cls, resources: dict[str, float]) -> ResourceProfile:
        """Create a profile from the resources that Ray lists for a node or bundle.
        Ray's internal entries are left out."""
        extended = {
            name: amount
            for name, amount in sorted(resources.items())
            if name not in ("CPU", "memory", "object_store_memory")
            and not name.startswith("node:")
            and "_group_" not in name
        }
        return cls(resources.get("CPU", 0.0), int(resources.get("memory", 0.0)), extended)

    def __str__(self) -> str:
        parts = [f"{self.cpu:g} CPU"]
        if self.memory:
            parts.append(f"{format_memory_size(self.memory)} memory")
        parts += [f"{amount:g} {name}" for name, amount in sorted(self.extended.items())]
        return ", ".join(parts)


def _round(amount: float) -> float:
    return round(amount, 4)
