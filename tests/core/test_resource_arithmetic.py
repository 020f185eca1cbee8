"""Sizes, and sums and differences of resource profiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.resources import ResourceProfile, format_memory_size, parse_memory_size

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
def test_profile_times_n_equals_n_additions_of_the_profile(
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
