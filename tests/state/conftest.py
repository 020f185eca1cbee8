"""Shared by the tests of state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.state.every_backend import choose


@pytest.fixture(params=["heap", "disk"])
def backend_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """What backend the test is about."""
    choose(request.param)
    yield request.param
    choose("heap")
