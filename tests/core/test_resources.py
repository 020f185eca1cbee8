"""Resource profiles are what Ray makes of them."""

from __future__ import annotations

import pytest

from flinkray.core.resources import ResourceProfile


def test_a_profile_equals_what_ray_gives_back_of_it() -> None:
    profile = ResourceProfile(1 / 3, 2**30, {"GPU": 0.0, "accelerator": 2 / 3})
    ray_resources = {"CPU": 0.3333, "memory": float(2**30), "accelerator": 0.6667}
    assert profile.to_ray_resources() == ray_resources
    assert ResourceProfile.from_ray_resources(ray_resources) == profile
    assert hash(ResourceProfile.from_ray_resources(ray_resources)) == hash(profile)


def test_a_negative_or_undefined_amount_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="resource GPU must not be negative: -1"):
        ResourceProfile(1.0, 0, {"GPU": -1})
    with pytest.raises(ValueError, match="resource cpu"):
        ResourceProfile(float("nan"))
