"""What all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray cluster on this machine for the whole session; use namespaces of your own in it.

    With its dashboard, which serves Ray's state API.
    """
    ray.init(address="local", num_cpus=4, include_dashboard=True, log_to_driver=False)
    yield
    ray.shutdown()
