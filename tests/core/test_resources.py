"""Resource profiles are what Ray makes of them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from flinkray.core.resources import ResourceProfile, parse_memory_size, slot_resources


def test_resource_profile_equals_its_copy_that_ray_has_rounded() -> None:
    profile = ResourceProfile(1 / 3, 2**30, {"GPU": 0.0, "accelerator": 2 / 3})
    ray_resources = {"CPU": 0.3333, "memory": float(2**30), "accelerator": 0.6667}
    assert profile.to_ray_resources() == ray_resources
    assert ResourceProfile.from_ray_resources(ray_resources) == profile
    assert hash(ResourceProfile.from_ray_resources(ray_resources)) == hash(profile)


def test_negative_or_non_finite_amount_is_refused_with_the_resource_name() -> None:
    with pytest.raises(ValueError, match="resource GPU must be finite and not negative: -1"):
        ResourceProfile(1.0, 0, {"GPU": -1})
    for cpu in (math.nan, math.inf):
        with pytest.raises(ValueError, match="resource cpu"):
            ResourceProfile(cpu)


@pytest.mark.parametrize(
    ("cpu", "memory", "extended", "text"),
    [
        (math.inf, 0, {}, "cpu must be a number from 0 to 1000000, not inf"),
        (math.nan, 0, {}, "cpu must be a number from 0 to 1000000, not nan"),
        (-1, 0, {}, "cpu must be a number from 0 to 1000000, not -1"),
        (1e300, 0, {}, "cpu must be a number from 0 to 1000000, not 1e+300"),
        ("2", 0, {}, "cpu must be a number from 0 to 1000000, not '2'"),
        (True, 0, {}, "cpu must be a number from 0 to 1000000, not True"),
        (1, 2**60, {}, f"memory must be a number from 0 to {2**49}, not {2**60}"),
        (1, -1, {}, "memory must be"),
        (1, 0, {"GPU": math.inf}, "GPU must be"),
    ],
)
def test_invalid_slot_resources_are_refused_with_the_name_of_the_resource(
    cpu: Any, memory: int, extended: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        slot_resources(cpu, memory, extended)


def test_slot_has_the_requested_resources() -> None:
    assert slot_resources(1, 2**30, {"GPU": 1}) == ResourceProfile(1.0, 2**30, {"GPU": 1.0})


def test_memory_size_with_too_many_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="a number of 400 digits"):
        parse_memory_size("9" * 400)
