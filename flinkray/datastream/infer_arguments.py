"""Checks the arguments of ``DataStream.infer``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flinkray.core.arguments import whole_number
from flinkray.core.durations import Span
from flinkray.core.resources import ResourceProfile, parse_memory_size, slot_resources
from flinkray.datastream.common.configuration import span_in_milliseconds
from flinkray.streaming.columnar.infer import InferSettings
from flinkray.streaming.functions.models import ModelDescriptor, ModelFunction
from flinkray.streaming.functions.output_tag import OutputTag

MOST_REPLICAS = 1_000

OUTPUTS = ("append", "replace")


def described(
    model: ModelFunction,
    replicas: int | tuple[int, int],
    profile: ResourceProfile,
    shared: str | None,
) -> ModelDescriptor:
    """Return the description of a model. Raises TypeError, ValueError and UserCodeError, as
    ``infer`` does."""
    if not isinstance(model, ModelFunction):
        kind = "the class itself" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"infer takes an object of a subclass of ModelFunction, not {kind}")
    fewest, most = replicas if isinstance(replicas, tuple) else (replicas, replicas)
    fewest, most = whole_number(fewest, "replicas"), whole_number(most, "replicas")
    if not 1 <= fewest <= most <= MOST_REPLICAS:
        raise ValueError(
            f"infer: replicas must be a number from 1 to {MOST_REPLICAS}, or two of them, (least, "
            f"largest), not {replicas!r}"
        )
    if shared is not None and (not shared or not shared.isprintable()):
        raise ValueError(f"infer: shared must be printable characters, not {shared!r}")
    return ModelDescriptor.of(model, fewest, most, profile, shared)


def slot_of_replica(
    cpu: float, gpu: float, memory: str | int, resources: Mapping[str, float] | None
) -> ResourceProfile:
    """Return the resources of a replica's slot. Raises ValueError: there is no such slot."""
    extended = dict(resources or {})
    if gpu:
        extended["GPU"] = gpu
    try:
        profile = slot_resources(cpu, parse_memory_size(memory), extended)
    except ValueError as error:
        raise ValueError(f"infer: {error}") from None
    if profile.cpu <= 0:
        raise ValueError(f"infer: cpu must be more than 0, not {cpu!r}")
    return profile


def infer_settings(
    batch_size: int,
    max_wait: Span | str,
    ordered: bool,
    output: str,
    timeout: Span | str,
    retries: int,
    errors: OutputTag[Any] | None,
) -> InferSettings:
    """Return the settings of the operator. Raises TypeError and ValueError, as ``infer`` does."""
    if whole_number(batch_size, "batch_size") < 1:
        raise ValueError(f"infer: batch_size must be at least 1, got {batch_size}")
    wait = span_in_milliseconds(max_wait)
    if wait < 0:
        raise ValueError(f"infer: max_wait must not be negative, got {max_wait!r}")
    if output not in OUTPUTS:
        raise ValueError(f"infer: output must be one of {', '.join(OUTPUTS)}, not {output!r}")
    seconds = span_in_milliseconds(timeout) / 1000
    if seconds <= 0:
        raise ValueError(f"infer: timeout must be more than 0, not {timeout!r}")
    if whole_number(retries, "retries") < 0:
        raise ValueError(f"infer: retries must not be negative, got {retries}")
    if errors is not None and not isinstance(errors, OutputTag):
        raise TypeError(f"infer: errors must be an OutputTag, not {type(errors).__name__}")
    return InferSettings(batch_size, wait, ordered, output == "append", seconds, retries, errors)
