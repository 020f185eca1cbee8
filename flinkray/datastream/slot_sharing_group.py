"""Slot-sharing groups and the resources of their slots."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import total_ordering

from flinkray.core.errors import ConfigurationError
from flinkray.core.resources import MOST_CORES, MOST_MEMORY, ResourceProfile, slot_resources


@total_ordering
class MemorySize:
    """A number of bytes.

    >>> MemorySize.of_mebi_bytes(3).get_bytes()
    3145728
    """

    def __init__(self, bytes_size: int) -> None:
        if bytes_size < 0:
            raise ValueError(f"a memory size must not be negative, got {bytes_size}")
        self._bytes = bytes_size

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        """Return the size of that many MiB (1,048,576 bytes)."""
        return MemorySize(mebi_bytes << 20)

    def get_bytes(self) -> int:
        """Return the size in bytes."""
        return self._bytes

    def get_kibi_bytes(self) -> int:
        """Return the size in whole KiB."""
        return self._bytes >> 10

    def get_mebi_bytes(self) -> int:
        """Return the size in whole MiB."""
        return self._bytes >> 20

    def get_gibi_bytes(self) -> int:
        """Return the size in whole GiB."""
        return self._bytes >> 30

    def get_tebi_bytes(self) -> int:
        """Return the size in whole TiB."""
        return self._bytes >> 40

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySize) and self._bytes == other._bytes

    def __lt__(self, other: MemorySize) -> bool:
        if not isinstance(other, MemorySize):
            return NotImplemented
        return self._bytes < other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __str__(self) -> str:
        return f"{self._bytes} bytes"

    def __repr__(self) -> str:
        return f"MemorySize({self._bytes})"


@dataclass
class Builder:
    """Builder of a :class:`SlotSharingGroup`; each method returns the builder."""

    _name: str
    _cpu_cores: float | None = None
    _task_heap: MemorySize | None = None
    _task_off_heap: MemorySize | None = None
    _managed: MemorySize | None = None
    _external: dict[str, float] = field(default_factory=dict)

    def set_cpu_cores(self, cpu_cores: float) -> Builder:
        if not 0 < cpu_cores <= MOST_CORES:
            raise ValueError(
                f"CPU cores must be positive and at most {MOST_CORES}, got {cpu_cores}"
            )
        self._cpu_cores = cpu_cores
        return self

    def set_task_heap_memory(self, task_heap_memory: MemorySize) -> Builder:
        if task_heap_memory.get_bytes() <= 0:
            raise ValueError("task heap memory must be positive")
        self._task_heap = task_heap_memory
        return self

    def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> Builder:
        return self.set_task_heap_memory(MemorySize.of_mebi_bytes(task_heap_memory_mb))

    def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> Builder:
        self._task_off_heap = task_off_heap_memory
        return self

    def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> Builder:
        return self.set_task_off_heap_memory(MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

    def set_managed_memory(self, managed_memory: MemorySize) -> Builder:
        self._managed = managed_memory
        return self

    def set_managed_memory_mb(self, managed_memory_mb: int) -> Builder:
        return self.set_managed_memory(MemorySize.of_mebi_bytes(managed_memory_mb))

    def set_external_resource(self, name: str, value: float) -> Builder:
        if not 0 <= value <= MOST_MEMORY:
            raise ValueError(
                f"external resource {name!r} must be from 0 to {MOST_MEMORY}, got {value}"
            )
        self._external[name] = value
        return self

    def build(self) -> SlotSharingGroup:
        """Build the group.

        Raises:
            ValueError: resources are given, but CPU cores or task heap memory are not.
        """
        if self._cpu_cores is not None and self._task_heap is not None:
            return SlotSharingGroup(
                self._name,
                self._cpu_cores,
                self._task_heap,
                self._task_off_heap or MemorySize(0),
                self._managed or MemorySize(0),
                tuple(self._external.items()),
            )
        if (
            self._cpu_cores is not None
            or self._task_heap is not None
            or self._task_off_heap is not None
            or self._managed is not None
            or self._external
        ):
            raise ValueError(
                f"slot-sharing group {self._name!r}: resources need both CPU cores and task heap "
                "memory; set both, or none"
            )
        return SlotSharingGroup(self._name)


class _Names:
    """Namespace that makes the name ``SlotSharingGroup.Builder`` available, as PyFlink's programs
    write it."""

    Builder = Builder


@dataclass(frozen=True)
class SlotSharingGroup(_Names):
    """Group of operators that may share slots.

    If resources are given, every slot of the group has them.

    >>> group = SlotSharingGroup.builder("heavy").set_cpu_cores(1.0) \\
    ...     .set_task_heap_memory_mb(512).build()
    >>> group.get_name(), group.get_task_heap_memory().get_mebi_bytes()
    ('heavy', 512)
    """

    name: str
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external_resources: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def builder(name: str) -> Builder:
        """Return a builder of a group with that name."""
        return Builder(name)

    def get_name(self) -> str:
        """Return the name by which operators refer to the group."""
        return self.name

    def get_cpu_cores(self) -> float | None:
        """Return the CPU cores of a slot. None: the group has no resources."""
        return self.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        """Return the memory of a slot for Python objects and user code. None: the group has no
        resources."""
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        """Return the memory of a slot outside the heap. None: the group has no resources."""
        return self.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        """Return the memory of a slot for state backends. None: the group has no resources."""
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """Return amounts of external resources by name; empty if none were given."""
        return dict(self.external_resources)

    def slot_profile(self) -> ResourceProfile | None:
        """Return the resources that a slot of the group must have. None: the group names none.
        Raises ConfigurationError: no slot can have these resources."""
        if self.cpu_cores is None:
            return None
        parts = (self.task_heap_memory, self.task_off_heap_memory, self.managed_memory)
        memory = sum(part.get_bytes() for part in parts if part is not None)
        try:
            return slot_resources(self.cpu_cores, memory, self.get_external_resources())
        except ValueError as error:
            raise ConfigurationError(f"slot-sharing group {self.name!r}: {error}") from error
