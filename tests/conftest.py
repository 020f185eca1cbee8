"""For all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flinkray.spark.ray_java import java_on_path


@pytest.fixture(scope="session", autouse=True)
def java_for_ray() -> Iterator[None]:
    """Tests start Ray by themselves, and Ray must see a Java then."""
    with java_on_path():
        yield
