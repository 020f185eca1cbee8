"""Resource profiles, memory sizes and their arithmetic."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.resources import (
    ResourceProfile,
    format_memory_size,
    parse_memory_size,
    slot_resources,
)


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


def test_resource_profile_of_a_slot_has_the_requested_cpu_memory_and_gpu() -> None:
    assert slot_resources(1, 2**30, {"GPU": 1}) == ResourceProfile(1.0, 2**30, {"GPU": 1.0})


def test_memory_size_with_too_many_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="a number of 400 digits"):
        parse_memory_size("9" * 400)


amounts = st.integers(0, 1_000_000).map(lambda n: n / 10_000)
profiles = st.builds(
    ResourceProfile,
    amounts,
    st.integers(0, 2**40),
    st.dictionaries(st.sampled_from(["GPU", "TPU", "custom"]), amounts),
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), (7, 7), ("512m", 2**29), ("1.5 g", 3 * 2**29), ("2GiB", 2**31), ("1kb", 1024)],
)
def test_units_of_memory_sizes_are_powers_of_1024(text: str | int, size: int) -> None:
    assert parse_memory_size(text) == size


@pytest.mark.parametrize("text", ["", "m", "1x", "-1m", "1 2g", "g1"])
def test_malformed_memory_size_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="not a memory size") as caught:
        parse_memory_size(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0b"), (1023, "1023b"), (2**29, "512m"), (3 * 2**29, "1.5g")]
)
def test_memory_size_is_written_in_its_short_form(size: int, text: str) -> None:
    assert format_memory_size(size) == text


@given(profiles, profiles)
def test_sum_of_two_resource_profiles_minus_one_of_them_is_the_other(
    one: ResourceProfile, other: ResourceProfile
) -> None:
    total = one + other
    assert one.fits_into(total)
    assert other.fits_into(total)
    rest = total - other
    assert rest.fits_into(one)
    assert one.fits_into(rest)


@given(profiles, st.integers(1, 20))
def test_resource_profile_times_n_equals_the_sum_of_n_such_profiles(
    profile: ResourceProfile, count: int
) -> None:
    total = ResourceProfile(0.0)
    for _ in range(count):
        total += profile
    assert total.fits_into(profile.times(count))
    assert profile.times(count).fits_into(total)


def test_subtracting_more_than_a_profile_has_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot take 2 CPU from 1 CPU"):
        ResourceProfile(1.0) - ResourceProfile(2.0)
    assert not ResourceProfile(0.0, 0, {"GPU": 1.0}).fits_into(ResourceProfile(8.0, 2**40))


def test_internal_resources_of_ray_are_ignored() -> None:
    ray = {
        "CPU": 4.0,
        "memory": 2.0**30,
        "object_store_memory": 1e9,
        "node:10.0.0.1": 1.0,
        "node:__internal_head__": 1.0,
        "bundle_group_0_abc": 1000.0,
        "GPU": 1.0,
    }
    profile = ResourceProfile.from_ray_resources(ray)
    assert profile == ResourceProfile(4.0, 2**30, {"GPU": 1.0})
    assert profile.to_ray_resources() == {"CPU": 4.0, "memory": 2.0**30, "GPU": 1.0}
    assert str(profile) == "4 CPU, 1g memory, 1 GPU"
    assert hash(profile) == hash(ResourceProfile(4.0, 2**30, {"GPU": 1.0}))
