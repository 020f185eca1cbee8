"""Checkpoints on S3: a server that speaks its protocol, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.checkpoint.errors import (
    CheckpointAccessError,
    CheckpointStorageError,
    CorruptCheckpointError,
    NoSuchBucketError,
)
from flinkray.checkpoint.handles import FileState
from flinkray.checkpoint.layout import (
    JobCheckpointStorage,
    delete_checkpoint,
    delete_checkpoints_of_job,
    exclusive_files,
    find_checkpoints,
)
from flinkray.checkpoint.metadata_file import read_metadata, write_metadata
from flinkray.core.locations import without_secrets
from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.ha.arrow_directory import ArrowDirectory
from flinkray.testing.threaded_cluster import threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.checkpoint.test_layout import BIG, JOB, content, keyed, metadata_with, written
from tests.datastream.tallies import expected, settings, tallies
from tests.s3_server import ROOT, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.new_bucket()


def test_s3_checkpoint_exists_once_its_metadata_does_and_is_deleted_completely(
    server: S3Server, bucket: str
) -> None:
    root = server.uri(bucket, "checkpoints")
    storage = JobCheckpointStorage(root, JOB, 20)
    writer = storage.checkpoint_writer(7)
    shared, exclusive = written(writer.shared(), BIG, BIG), written(writer.exclusive(), BIG)
    assert isinstance(shared, FileState)
    assert content(shared) == BIG + BIG
    assert find_checkpoints(root) == [], "nothing that is half written is one"
    metadata = metadata_with(keyed(shared), coordinator=exclusive)
    path = write_metadata(storage.checkpoint_directory(7), metadata)
    (found,) = find_checkpoints(root)
    assert read_metadata(found) == read_metadata(path)
    assert len(server.keys(bucket)) == 3
    delete_checkpoint(path, exclusive_files(metadata))
    (left,) = server.keys(bucket)
    assert "/shared/" in left
    delete_checkpoints_of_job(storage.directory)
    assert server.keys(bucket) == []
    assert find_checkpoints(root) == []


def test_unfinished_output_leaves_no_object_on_s3(server: S3Server, bucket: str) -> None:
    storage = JobCheckpointStorage(server.uri(bucket, "checkpoints"), JOB, 20)
    with storage.checkpoint_writer(7).shared() as output:
        output.write(BIG)
    assert server.keys(bucket) == []


def test_truncated_or_missing_s3_object_raises_an_error_with_its_location(
    server: S3Server, bucket: str
) -> None:
    storage = JobCheckpointStorage(server.uri(bucket, "checkpoints"), JOB, 20)
    path = write_metadata(storage.checkpoint_directory(7), metadata_with())
    (key,) = server.keys(bucket)
    objects = server.client("s3")
    whole = objects.get_object(Bucket=bucket, Key=key)["Body"].read()
    objects.put_object(Bucket=bucket, Key=key, Body=whole[:-3])
    with pytest.raises(CorruptCheckpointError, match="chk-7"):
        read_metadata(path)
    objects.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(CheckpointStorageError, match="chk-7"):
        read_metadata(path)


def test_missing_bucket_raises_an_error_that_is_not_retryable(server: S3Server) -> None:
    storage = JobCheckpointStorage(server.uri("no-such-bucket", "checkpoints"), JOB, 20)
    with pytest.raises(NoSuchBucketError, match=r"no-such-bucket.*make the bucket") as raised:
        written(storage.checkpoint_writer(7).shared(), BIG)
    assert not raised.value.retryable
    assert ROOT[1] not in str(raised.value), "errors tell no secrets"


def test_errors_distinguish_invalid_credentials_from_missing_rights(
    server: S3Server, bucket: str
) -> None:
    reader = server.new_user("reader", "s3:Get*", "s3:List*")
    with server.with_authentication():
        for credentials, text in (
            (("unknown", "secret"), "these credentials are not valid"),
            (reader, "give whose credentials these are the right"),
        ):
            uri = server.uri(bucket, "checkpoints", credentials)
            with pytest.raises(CheckpointAccessError, match=text) as raised:
                written(JobCheckpointStorage(uri, JOB, 20).checkpoint_writer(7).shared(), BIG)
            assert not raised.value.retryable
            assert credentials[1] not in str(raised.value)


def test_no_error_contains_the_secret_of_an_s3_uri() -> None:
    uri = "s3://key:sec/ret@bucket/checkpoints?region=us-east-1"
    with pytest.raises(CheckpointStorageError, match="write / as %2F") as raised:
        written(JobCheckpointStorage(uri, JOB, 20).checkpoint_writer(7).shared(), BIG)
    assert "ret" not in str(raised.value).replace("secrets", "")
    assert without_secrets("s3://key:sec%2Fret@bucket/a?secret=1") == "s3://key@bucket/a"
    assert without_secrets("hdfs://host:9000/a@b") == "hdfs://host:9000/a@b"
    assert without_secrets("/a@b:c") == "/a@b:c"


def test_arrow_directory_on_s3_writes_reads_lists_and_deletes_named_entries(
    server: S3Server, bucket: str
) -> None:
    directory = ArrowDirectory.from_uri(server.uri(bucket, "ha"))
    below = directory.subdirectory("jobs")
    assert below.read("one") is None
    assert below.names() == []
    below.write("one", b"1")
    below.write("one", b"2")
    assert below.read("one") == b"2"
    assert below.names() == ["one"]
    assert ROOT[1] not in below.location("one")
    below.delete("one")
    below.delete("one")
    assert below.names() == []


def test_program_restores_its_checkpoint_from_s3_after_a_crash(
    server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2E-04: with the address and the credentials in the environment."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    root = f"s3://{bucket}/checkpoints"
    options = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "20",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    with threaded_cluster(str(tmp_path / "cluster"), configuration=options) as cluster:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
        env.configure(Configuration.from_dict(settings(Path("unused"), "200 ms")))
        env.get_checkpoint_config().set_checkpoint_storage_dir(root)
        results = tallies(
            env.set_parallelism(1), 20_000, 5_000.0, tmp_path / "witness"
        ).execute_and_collect()
        wait_until(lambda: len(find_checkpoints(root)) > 0, 300, "a checkpoint")
        cluster.crash_all("TaskProcess")
        assert set(results) == expected(20_000)
    assert server.keys(bucket) == []
