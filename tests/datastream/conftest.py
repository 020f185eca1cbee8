"""What the tests of the API share."""

from __future__ import annotations

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.manual_clock import ManualClock


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    """On a clock that stands still while records flow, with two subtasks."""
    return StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(2)
