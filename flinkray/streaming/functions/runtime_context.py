"""The runtime context that user functions get in ``open``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import FlinkRayError
from flinkray.state.backend import KeyedStateBackend
from flinkray.state.descriptors import (
    IN,
    OUT,
    AggregatingStateDescriptor,
    ArrayStateDescriptor,
    K,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    T,
    V,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.interfaces import (
    AggregatingState,
    ArrayState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from flinkray.streaming.functions.metrics import MetricGroup

if TYPE_CHECKING:
    from flinkray.streaming.functions.global_aggregates import GlobalAggregateManager


class ExternalResourceInfo:
    """Describes one accelerator of a slot. Its only property is ``index``, the id of the device as
    Ray counts the devices of a node."""

    def __init__(self, index: str) -> None:
        self._properties = {"index": index}

    def get_property(self, key: str) -> str | None:
        """Return a property of the accelerator; None if it has no property of that name."""
        return self._properties.get(key)

    def get_keys(self) -> list[str]:
        """Return the names of the accelerator's properties."""
        return list(self._properties)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExternalResourceInfo):
            return NotImplemented
        return self._properties == other._properties

    def __hash__(self) -> int:
        return hash(self._properties["index"])

    def __repr__(self) -> str:
        return f"ExternalResourceInfo({self._properties['index']!r})"


class DistributedCache:
    """Local copies of files that the program has registered."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def get_file(self, name: str) -> str:
        """Return the path of a file or directory.
        Do not change it: other functions read it, too.

        Raises:
            CachedFileError: no file was registered under that name.
        """
        path = self._paths.get(name)
        if path is None:
            known = ", ".join(map(repr, self._paths)) or "none"
            raise CachedFileError(
                f"no file is registered as {name!r}, known are: {known}; call "
                "register_cached_file before execute"
            )
        return path


class CachedFileError(FlinkRayError):
    """A function asks for a file that the program has not registered."""


class KeyedStateStore:
    """Gives functions the state of the current key; in windows, also that of a key and window."""

    def get_state(self, state_descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return value state: a single value for each key, or for each key and window."""
        return self._state(state_descriptor, ValueStateDescriptor)  # type: ignore[no-any-return]

    def get_list_state(self, state_descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return list state: a list for each key, or for each key and window."""
        return self._state(state_descriptor, ListStateDescriptor)  # type: ignore[no-any-return]

    def get_map_state(self, state_descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return map state: a dictionary for each key, or for each key and window."""
        return self._state(state_descriptor, MapStateDescriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return reducing state: all added values, reduced to one value."""
        return self._state(state_descriptor, ReducingStateDescriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[IN, OUT]
    ) -> AggregatingState[IN, OUT]:
        """Return aggregating state: the aggregate of all added values."""
        return self._state(  # type: ignore[no-any-return]
            state_descriptor, AggregatingStateDescriptor
        )

    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        """Return the state that *descriptor* describes; StateError unless its class is *kind*. A
        store that a program implements overrides the public methods instead."""
        raise NotImplementedError(f"{type(self).__name__} has no {descriptor.kind} state")


class RuntimeContext(KeyedStateStore):
    """Tells a function where it runs, and gives it metrics and keyed state."""

    def __init__(
        self,
        task_name: str,
        subtask_index: int,
        parallelism: int,
        max_parallelism: int,
        attempt_number: int,
        job_parameters: Mapping[str, str],
        cached_files: Mapping[str, str],
        metrics: MetricGroup,
        keyed_state: KeyedStateBackend | None,
        global_aggregates: GlobalAggregateManager,
        has_arrays: bool = False,
        is_restored: bool = False,
        devices: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self._task_name = task_name
        self._subtask_index = subtask_index
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._attempt_number = attempt_number
        self._job_parameters = dict(job_parameters)
        self._cache = DistributedCache(cached_files)
        self._metrics = metrics
        self._keyed_state = keyed_state
        self._global_aggregates = global_aggregates
        self._has_arrays = has_arrays
        """Whether the function gets batches with the slots of their keys (KeyedBatchFunction)."""
        self._is_restored = is_restored
        self._devices = devices

    def get_task_name(self) -> str:
        """Return the operator's name."""
        return self._task_name

    def get_task_name_with_subtasks(self) -> str:
        """Return a text such as ``Map (1/4)#0``. It has the operator's name, the number of the
        subtask from 1, the parallelism and the attempt."""
        return (
            f"{self._task_name} ({self._subtask_index + 1}/{self._parallelism})"
            f"#{self._attempt_number}"
        )

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the function's operator."""
        return self._parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the operator's maximum parallelism, which is the number of key groups."""
        return self._max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of this subtask, from 0."""
        return self._subtask_index

    def get_attempt_number(self) -> int:
        """Return the number of this subtask's attempt, from 0."""
        return self._attempt_number

    def get_external_resource_infos(self, resource_name: str) -> set[ExternalResourceInfo]:
        """Return the accelerators of this slot, for example for ``GPU`` or ``TPU`` (in upper or
        lower case). Empty if the slot-sharing group asks for none, and in programs without a
        cluster. In CUDA's programs the first device of the slot is ``cuda:0``, whatever its index:
        ``CUDA_VISIBLE_DEVICES`` names only the slot's devices."""
        wanted = resource_name.lower()
        ids = (own for name, own in self._devices.items() if name.lower() == wanted)
        return {ExternalResourceInfo(index) for own in ids for index in own}

    def is_restored(self) -> bool:
        """Return whether the task was restored from a checkpoint or savepoint.
        The checkpoint need not hold state of this function."""
        return self._is_restored

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Return a global parameter of the job; *default_value* if the job does not have it."""
        return self._job_parameters.get(key, default_value)

    def get_distributed_cache(self) -> DistributedCache:
        """Return the files that the program has registered with ``register_cached_file``."""
        return self._cache

    def get_metrics_group(self) -> MetricGroup:
        """Return the group in which the function registers metrics."""
        return self._metrics

    def get_metric_group(self) -> MetricGroup:
        """Return the group of :meth:`get_metrics_group`, by the newer name of that method."""
        return self._metrics

    def get_global_aggregate_manager(self) -> GlobalAggregateManager:
        """Return the manager of the aggregates that all tasks of the job share."""
        return self._global_aggregates

    def get_array_state(self, state_descriptor: ArrayStateDescriptor) -> ArrayState:
        """Return state with a number for each key, in an array. Only for a KeyedBatchFunction.

        Raises:
            StateError: the function is of another kind, or the name is used for another type.
        """
        if self._keyed_state is None or not self._has_arrays:
            raise StateError(
                f"array state {state_descriptor.name!r}: {self._task_name} is not given batches of "
                "a keyed stream; use it in a KeyedBatchFunction"
            )
        return self._keyed_state.array_state(state_descriptor)

    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        if self._keyed_state is None:
            raise StateError(
                f"state {descriptor.name!r}: {self._task_name} has no keyed state, because its "
                "stream is not keyed; call key_by before it"
            )
        return typed_state(self._keyed_state, descriptor, kind, None)


def typed_state(
    backend: KeyedStateBackend,
    descriptor: StateDescriptor,
    kind: type[StateDescriptor],
    context: Any,
) -> Any:
    """Return the state of a descriptor.
    Raises StateError if the descriptor is not of class *kind*."""
    if not isinstance(descriptor, kind):
        raise StateError(f"a {kind.__name__} is needed here, got {descriptor!r}")
    return backend.state(descriptor, context)
