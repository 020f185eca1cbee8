"""A program: connects by Ray Client, ``ray://…``, to a cluster that runs, and has a job done."""

from __future__ import annotations

import sys

import pytest
import ray

import flinkray
from flinkray.client.connect import open_rpc_service
from flinkray.client.ray_runtime import ClusterNotFoundError
from flinkray.core.errors import ConfigurationError
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.task_jobs import ends, task_job


def main(address: str) -> None:
    with pytest.raises(ClusterNotFoundError, match="no flinkray cluster 'nowhere'"):
        flinkray.connect(address, cluster_id="nowhere")
    assert not ray.is_initialized()
    with pytest.raises(ConfigurationError, match="ray exec"), open_rpc_service(address, "new"):
        pass
    with flinkray.connect(address) as client:
        handle = client.submit(task_job(ends, name="from outside"))
        assert handle.wait(300) is JobStatus.FINISHED, handle.exceptions()
        (overview,) = client.list_jobs()
        assert overview.name == "from outside"
        assert handle.details().vertices[0].parallelism == 1
        with pytest.raises(ClusterNotFoundError, match=r"ray\.shutdown"):
            flinkray.connect(address)
        with flinkray.connect() as second:  # by the same Ray
            assert len(second.list_jobs()) == 1
        assert len(client.list_jobs()) == 1
    assert not ray.is_initialized()


if __name__ == "__main__":
    main(sys.argv[1])
    print("done")  # noqa: T201
