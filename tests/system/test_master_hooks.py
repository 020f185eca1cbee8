"""Master hooks of sources on Ray: they run in the StreamCoordinator's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.client import ClusterClient, JobHandle
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types, WatermarkStrategy
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.checkpoints.failures import CheckpointError
from flinkray.testing.waiting import wait_until
from tests.datastream.hooked import HookedNumbers, diary, restored_from, wait_for_line
from tests.datastream.tallies import newest, settings
from tests.system.observer import kill, live_actors

pytestmark = [pytest.mark.ray, pytest.mark.kill]


def hooked(client: ClusterClient, folder: Path, checkpoints: Path, savepoint: str) -> JobHandle:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    options = settings(checkpoints, "300 ms") | {"execution.state-recovery.path": savepoint}
    env.configure(Configuration.from_dict(options)).set_parallelism(1)
    source = HookedNumbers("a", folder, 1_000_000, 100.0)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    numbers.uid("numbers").sink_to(DiscardingSink()).uid("nowhere")
    return client.job(env.execute_async("hooked").get_job_id())


def test_master_hook_takes_part_in_checkpoints_savepoints_and_restores(
    client: ClusterClient, tmp_path: Path
) -> None:
    """CP-30, CP-31."""
    folder, checkpoints = tmp_path / "hooks", tmp_path / "checkpoints"
    folder.mkdir()
    job = hooked(client, folder, checkpoints, "")
    wait_until(lambda: newest(checkpoints) > 1, 300, "two checkpoints")

    (folder / "fail").touch()
    with pytest.raises(CheckpointError, match="no room for a bookmark"):
        job.trigger_savepoint(str(tmp_path / "savepoints"), timeout=300)
    (folder / "fail").unlink()
    assert len(diary(folder, "a", "create")) == 1, "the job does not restart"

    (coordinator,) = (a for a in live_actors() if a.kind == "StreamCoordinator")
    kill(coordinator.pid)
    checkpoint_id = restored_from(folder, "a")

    wait_until(lambda: newest(checkpoints) > checkpoint_id, 300, "a checkpoint after the restart")
    savepoint = job.stop_with_savepoint(str(tmp_path / "savepoints"), timeout=300)
    triggers = diary(folder, "a", "trigger")
    assert len(set(triggers)) == len(triggers), "once per checkpoint"
    wait_for_line(folder, "a", "close")

    job = hooked(client, folder, tmp_path / "again", savepoint)
    assert restored_from(folder, "a", 2) > checkpoint_id
    job.cancel()
    job.wait(timeout=300)
