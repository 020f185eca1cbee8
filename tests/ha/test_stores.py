"""Job graphs and job results, in memory, in local files and behind pyarrow."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

import msgpack
import pytest

from flinkray.checkpoint import locations
from flinkray.core.errors import StoredFormatError, UnreadableRecordError
from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.file_results import ResultDirectory
from flinkray.ha import (
    Directory,
    JobGraphStore,
    JobResultStore,
    JobStoreFencedError,
    JobStoreStateError,
    LeaderContender,
    MemoryDirectory,
    StandaloneHaServices,
    StoreError,
    absolute_location,
    open_directory,
)
from flinkray.ha.entries import VERSION, encode_entry

ONE, TWO, THREE = (JobID(bytes([n]) * 16) for n in (1, 2, 3))


@stored("tests.Graph")
@message
class Graph:
    """Stands for a job graph."""

    job_id: JobID
    text: str = ""


@stored("tests.Result")
@message
class Result:
    """Stands for a job result."""

    job_id: JobID
    text: str = ""


@pytest.fixture
def graphs(services: StandaloneHaServices) -> JobGraphStore[Graph]:
    return services.get_job_graph_store(Graph)


@pytest.fixture
def results(services: StandaloneHaServices) -> JobResultStore[Result]:
    return services.get_job_result_store(Result)


# --- job graphs


async def test_job_graph_that_was_put_is_recovered_by_another_store_object(
    services: StandaloneHaServices, graphs: JobGraphStore[Graph]
) -> None:
    """SPEC HA-24."""
    await graphs.put_job_graph(Graph(ONE, "first"))
    again = services.get_job_graph_store(Graph)
    assert await again.recover_job_graph(ONE) == Graph(ONE, "first")
    assert await again.recover_job_graph(TWO) is None


async def test_putting_a_job_graph_again_updates_it(graphs: JobGraphStore[Graph]) -> None:
    """SPEC HA-24."""
    await graphs.put_job_graph(Graph(ONE, "first"))
    await graphs.put_job_graph(Graph(ONE, "second"))
    assert await graphs.get_job_ids() == (ONE,)
    assert await graphs.recover_job_graph(ONE) == Graph(ONE, "second")


async def test_updating_a_job_graph_that_was_neither_put_nor_recovered_is_refused(
    services: StandaloneHaServices, graphs: JobGraphStore[Graph]
) -> None:
    """SPEC HA-24."""
    await graphs.put_job_graph(Graph(ONE, "first"))
    other = services.get_job_graph_store(Graph)
    with pytest.raises(JobStoreStateError) as caught:
        await other.put_job_graph(Graph(ONE, "another's"))
    assert caught.value.job_id == ONE
    assert await graphs.recover_job_graph(ONE) == Graph(ONE, "first")
    await other.recover_job_graphs()
    await other.put_job_graph(Graph(ONE, "second"))


async def test_job_graph_may_be_removed_twice_and_its_id_may_be_used_again(
    services: StandaloneHaServices, graphs: JobGraphStore[Graph]
) -> None:
    """SPEC HA-24."""
    await graphs.put_job_graph(Graph(ONE))
    await graphs.remove_job_graph(ONE)
    await graphs.remove_job_graph(ONE)
    assert await graphs.get_job_ids() == ()
    await services.get_job_graph_store(Graph).put_job_graph(Graph(ONE, "anew"))


async def test_job_graph_put_by_another_store_after_a_removal_is_not_overwritten(
    services: StandaloneHaServices, graphs: JobGraphStore[Graph]
) -> None:
    """SPEC HA-24."""
    await graphs.put_job_graph(Graph(ONE, "first"))
    await graphs.remove_job_graph(ONE)
    others = services.get_job_graph_store(Graph)
    await others.put_job_graph(Graph(ONE, "another's"))
    with pytest.raises(JobStoreFencedError):
        await graphs.put_job_graph(Graph(ONE, "second"))
    assert await others.recover_job_graph(ONE) == Graph(ONE, "another's")


async def test_job_graphs_are_recovered_in_the_order_they_were_written(
    services: StandaloneHaServices, graphs: JobGraphStore[Graph]
) -> None:
    for job_id in (THREE, ONE, TWO):
        await graphs.put_job_graph(Graph(job_id))
    recovered = await services.get_job_graph_store(Graph).recover_job_graphs()
    assert [graph.job_id for graph in recovered.records] == [THREE, ONE, TWO]
    assert recovered.unreadable == ()
    assert await graphs.get_job_ids() == (ONE, TWO, THREE)


async def test_job_graph_that_cannot_be_encoded_leaves_the_stored_graph_unchanged(
    graphs: JobGraphStore[Graph],
) -> None:
    await graphs.put_job_graph(Graph(ONE, "first"))
    with pytest.raises(StoredFormatError):
        await graphs.put_job_graph(Graph(ONE, object()))  # type: ignore[arg-type]
    assert await graphs.recover_job_graph(ONE) == Graph(ONE, "first")


# --- entries that cannot be read

_GOOD = encode_entry(Graph(TWO, "good"))
_VERSION_AT = _GOOD.index(b"\n") + 1


def _newer(rest: bytes) -> bytes:
    """What follows the magic, as a flinkray would have written it that has another Graph."""
    types, body = msgpack.unpackb(rest[5:])
    types[0][1] += 1
    data: bytes = msgpack.packb((types, body))
    return rest[:1] + zlib.crc32(data).to_bytes(4, "big") + data


UNREADABLE = {
    "empty": (b"", "no flinkray entry"),
    "cut short": (_GOOD[:-1], "checksum"),
    "cut in the header": (_GOOD[:_VERSION_AT], "cut short"),
    "one bit flipped": (_GOOD[:-1] + bytes([_GOOD[-1] ^ 1]), "checksum"),
    "of a later version": (
        _GOOD[:_VERSION_AT] + bytes([VERSION + 1]) + _GOOD[_VERSION_AT + 1 :],
        f"format version {VERSION + 1}, and this flinkray reads versions up to {VERSION}",
    ),
    "of another type": (encode_entry(Result(TWO)), "a tests.Result, not a tests.Graph"),
    "of a later version of its type": (
        _GOOD[:_VERSION_AT] + _newer(_GOOD[_VERSION_AT:]),
        "tests.Graph version 2, and this flinkray reads versions up to 1",
    ),
    "about another job": (encode_entry(Graph(ONE)), f"about job {ONE}"),
}


def content_of(entries: Directory, entry: str) -> str:
    """The name of the file that an entry lies in."""
    (name,) = (name for name in entries.names() if name.startswith(f"{entry}-"))
    return name


@pytest.mark.parametrize("is_adopted", [False, True], ids=["", "of a version without epochs"])
@pytest.mark.parametrize("damage", UNREADABLE)
async def test_unreadable_job_graph_is_kept_and_reported_and_the_others_are_recovered(
    directory: Directory, services: StandaloneHaServices, damage: str, is_adopted: bool
) -> None:
    data, why = UNREADABLE[damage]
    graphs = services.get_job_graph_store(Graph)
    entries = directory.subdirectory("job-graphs")
    name = f"{TWO.hex()}.graph"
    if is_adopted:
        entries.write(name, data)
    else:
        await graphs.put_job_graph(Graph(TWO))
        name = content_of(entries, name)
        entries.write(name, data)
    await graphs.put_job_graph(Graph(ONE))
    if not is_adopted:
        graphs = services.get_job_graph_store(Graph)

    for _ in range(2):
        recovered = await graphs.recover_job_graphs()
        assert recovered.records == (Graph(ONE),)
        (error,) = recovered.unreadable
        assert (error.job_id, error.location) == (TWO, entries.location(name))
        assert why in error.reason
        for part in (TWO.hex(), error.location, error.reason):
            assert part in str(error)
    with pytest.raises(UnreadableRecordError, match=TWO.hex()):
        await graphs.recover_job_graph(TWO)
    with pytest.raises(JobStoreStateError, match="stored already"):
        await graphs.put_job_graph(Graph(TWO, "another"))
    assert entries.read(name) == data
    assert {name, content_of(entries, f"{ONE.hex()}.graph")} <= set(entries.names())
    assert await graphs.get_job_ids() == (ONE, TWO)


async def test_files_in_the_store_that_are_no_job_graphs_are_ignored_and_kept(
    directory: Directory, graphs: JobGraphStore[Graph]
) -> None:
    entries = directory.subdirectory("job-graphs")
    entries.write("notes.txt", b"mine")
    entries.write("short.graph", b"mine")
    assert await graphs.get_job_ids() == ()
    assert (await graphs.recover_job_graphs()).unreadable == ()
    assert entries.read("notes.txt") == b"mine"


# --- job results


async def test_second_result_of_a_job_is_refused_while_the_first_is_dirty_or_clean(
    results: JobResultStore[Result],
) -> None:
    """SPEC HA-23."""
    await results.create_dirty_result(Result(ONE, "first"))
    with pytest.raises(JobStoreStateError, match="dirty"):
        await results.create_dirty_result(Result(ONE, "second"))
    await results.mark_result_as_clean(ONE)
    with pytest.raises(JobStoreStateError, match="clean"):
        await results.create_dirty_result(Result(ONE, "second"))
    assert await results.get_result(ONE) == Result(ONE, "first")


async def test_result_may_be_marked_clean_twice_and_marking_an_unknown_job_raises_an_error(
    results: JobResultStore[Result],
) -> None:
    """SPEC HA-23."""
    await results.create_dirty_result(Result(ONE))
    await results.mark_result_as_clean(ONE)
    await results.mark_result_as_clean(ONE)
    with pytest.raises(JobStoreStateError) as caught:
        await results.mark_result_as_clean(TWO)
    assert caught.value.job_id == TWO


async def test_clean_result_is_not_listed_as_dirty_and_both_kinds_count_as_results(
    services: StandaloneHaServices, results: JobResultStore[Result]
) -> None:
    """SPEC HA-23."""
    for job_id in (ONE, TWO):
        await results.create_dirty_result(Result(job_id))
    await results.mark_result_as_clean(ONE)
    again = services.get_job_result_store(Result)
    assert (await again.get_dirty_results()).records == (Result(TWO),)
    assert (await again.get_clean_results()).records == (Result(ONE),)
    states = [
        (
            await again.has_dirty_result(job_id),
            await again.has_clean_result(job_id),
            await again.has_result(job_id),
        )
        for job_id in (ONE, TWO, THREE)
    ]
    assert states == [(False, True, True), (True, False, True), (False, False, False)]
    assert await again.get_result(THREE) is None


async def test_removed_job_result_is_gone_whether_dirty_clean_or_missing(
    directory: Directory, results: JobResultStore[Result]
) -> None:
    await results.create_dirty_result(Result(ONE))
    await results.create_dirty_result(Result(TWO))
    await results.mark_result_as_clean(TWO)
    for job_id in (ONE, TWO, THREE):
        await results.remove_result(job_id)
        assert not await results.has_result(job_id)
    left = directory.subdirectory("job-results").names()
    assert not [name for name in left for job_id in (ONE, TWO) if job_id.hex() in name]


async def test_job_result_stored_as_dirty_and_clean_counts_as_clean(
    directory: Directory, results: JobResultStore[Result]
) -> None:
    """The crash came after the clean entry was written and before the dirty entry was deleted."""
    for state in ("dirty", "clean"):
        name = f"{ONE.hex()}.{state}"
        directory.subdirectory("job-results").write(name, encode_entry(Result(ONE)))
    assert not await results.has_dirty_result(ONE)
    assert (await results.get_dirty_results()).records == ()
    assert (await results.get_clean_results()).records == (Result(ONE),)


async def test_unreadable_dirty_and_clean_results_are_kept_and_reported(
    directory: Directory, results: JobResultStore[Result]
) -> None:
    entries = directory.subdirectory("job-results")
    entries.write(f"{TWO.hex()}.dirty", b"nonsense")
    entries.write(f"{THREE.hex()}.clean", b"nonsense")
    await results.create_dirty_result(Result(ONE))
    for _ in range(2):
        dirty, clean = await results.get_dirty_results(), await results.get_clean_results()
        assert (dirty.records, clean.records) == ((Result(ONE),), ())
        assert [error.job_id for error in (*dirty.unreadable, *clean.unreadable)] == [TWO, THREE]
    with pytest.raises(JobStoreStateError, match="dirty"):
        await results.create_dirty_result(Result(TWO))
    with pytest.raises(UnreadableRecordError, match="no flinkray entry"):
        await results.get_result(TWO)
    await results.mark_result_as_clean(TWO)
    assert (await results.has_dirty_result(TWO), await results.has_clean_result(TWO)) == (
        False,
        True,
    )
    assert entries.read(content_of(entries, f"{TWO.hex()}.clean")) == b"nonsense"


async def test_dirty_result_is_kept_while_the_clean_result_of_the_job_is_unreadable(
    directory: Directory, results: JobResultStore[Result]
) -> None:
    """A crash has left both."""
    entries = directory.subdirectory("job-results")
    entries.write(f"{ONE.hex()}.dirty", encode_entry(Result(ONE)))
    entries.write(f"{ONE.hex()}.clean", b"nonsense")
    assert (await results.get_dirty_results()).records == ()
    assert len((await results.get_clean_results()).unreadable) == 1
    assert len(entries.names()) == 2


# --- owners


async def test_job_stores_of_a_dispatcher_with_a_successor_refuse_changes(
    services: StandaloneHaServices,
) -> None:
    """Otherwise an ended job comes back, an accepted job is unknown, or a cancelled
    job continues."""
    graphs, results = services.get_job_graph_store(Graph), services.get_job_result_store(Result)
    await graphs.put_job_graph(Graph(ONE))
    await results.create_dirty_result(Result(TWO))
    next_graphs = services.get_job_graph_store(Graph)
    next_results = services.get_job_result_store(Result)
    await next_results.take_over()
    await next_graphs.take_over()
    await next_graphs.recover_job_graphs()
    await next_graphs.put_job_graph(Graph(ONE, "is to be cancelled"))

    changes: tuple[Callable[[], Awaitable[None]], ...] = (
        lambda: graphs.put_job_graph(Graph(ONE, "goes on")),
        lambda: graphs.put_job_graph(Graph(THREE)),
        lambda: graphs.remove_job_graph(ONE),
        lambda: results.create_dirty_result(Result(ONE)),
        lambda: results.mark_result_as_clean(TWO),
        lambda: results.remove_result(TWO),
    )
    for change in changes:
        with pytest.raises(JobStoreFencedError, match="later owner"):
            await change()

    recovered = await services.get_job_graph_store(Graph).recover_job_graphs()
    assert recovered.records == (Graph(ONE, "is to be cancelled"),)
    assert (await services.get_job_result_store(Result).get_dirty_results()).records == (
        Result(TWO),
    )


async def test_job_graphs_and_results_of_a_version_without_epochs_are_recovered(
    directory: Directory, services: StandaloneHaServices
) -> None:
    graphs = directory.subdirectory("job-graphs")
    results = directory.subdirectory("job-results")
    for job_id in (ONE, TWO):
        graphs.write(f"{job_id}.graph", encode_entry(Graph(job_id)))
        results.write(f"{job_id}.dirty", encode_entry(Result(job_id)))
    store, ended = services.get_job_graph_store(Graph), services.get_job_result_store(Result)
    await store.take_over()
    await ended.take_over()
    assert (await store.recover_job_graphs()).records == (Graph(ONE), Graph(TWO))
    await store.put_job_graph(Graph(ONE, "second"))
    await store.remove_job_graph(TWO)
    await ended.mark_result_as_clean(ONE)

    store, ended = services.get_job_graph_store(Graph), services.get_job_result_store(Result)
    assert (await store.recover_job_graphs()).records == (Graph(ONE, "second"),)
    assert (await ended.get_dirty_results()).records == (Result(TWO),)
    assert (await ended.get_clean_results()).records == (Result(ONE),)
    assert not any(name.endswith(".graph") for name in graphs.names())
    assert [name for name in results.names() if name.endswith(".dirty")] == [f"{TWO}.dirty"]


async def test_next_owner_deletes_content_files_of_earlier_owners_that_no_entry_refers_to(
    directory: Directory, services: StandaloneHaServices
) -> None:
    """Their writer died before it changed the entry, or was too late."""
    graphs = directory.subdirectory("job-graphs")
    await services.get_job_graph_store(Graph).put_job_graph(Graph(ONE))
    used = content_of(graphs, f"{ONE}.graph")
    graphs.write(f"{TWO}.graph-{used[-30:]}", b"of one that died")
    later = f"{TWO}.graph-9999999999-00000000-0000000001"
    graphs.write(later, b"of a later owner, which is about to say so")
    await services.get_job_graph_store(Graph).take_over()
    contents = [name for name in graphs.names() if ".graph-" in name]
    assert sorted(contents) == sorted([used, later])


async def test_dispatcher_whose_store_refuses_a_change_loses_its_leadership(
    directory: Directory, executor: Executor
) -> None:
    """Without ZooKeeper no election tells a Dispatcher that is alive but that Ray believes dead."""

    class Contender(LeaderContender):
        def __init__(self) -> None:
            self.is_leading = asyncio.Event()

        def grant_leadership(self, session_id: LeaderSessionID) -> None:
            self.is_leading.set()

        def revoke_leadership(self) -> None:
            self.is_leading.clear()

        def handle_error(self, error: Exception) -> None:
            raise error

    services = StandaloneHaServices(directory, executor)
    contender = Contender()
    election = services.get_dispatcher_leader_election()
    await election.start_leader_election(contender)
    await contender.is_leading.wait()
    results = services.get_job_result_store(Result)
    await results.take_over()
    await StandaloneHaServices(directory, executor).get_job_result_store(Result).take_over()
    assert contender.is_leading.is_set()
    with pytest.raises(JobStoreFencedError):
        await results.create_dirty_result(Result(ONE))
    assert not contender.is_leading.is_set()
    assert not await election.has_leadership(LeaderSessionID.standalone())


# --- the services' data as a whole


async def test_closing_keeps_the_stored_data_and_cleanup_removes_only_the_clusters_data(
    directory: Directory, executor: Executor
) -> None:
    services = StandaloneHaServices(directory, executor)
    await services.get_job_graph_store(Graph).put_job_graph(Graph(ONE))
    await services.get_job_result_store(Result).create_dirty_result(Result(TWO))
    directory.subdirectory("data").write("somebody-elses", b"data")
    await services.close()

    services = StandaloneHaServices(directory, executor)
    assert await services.get_job_graph_store(Graph).get_job_ids() == (ONE,)
    await services.close_and_cleanup_all_data()
    services = StandaloneHaServices(directory, executor)
    assert await services.get_job_graph_store(Graph).get_job_ids() == ()
    assert not await services.get_job_result_store(Result).has_result(TWO)
    assert directory.subdirectory("data").read("somebody-elses") == b"data"


async def test_unwritable_storage_raises_a_store_error_that_names_the_entry(
    tmp_path: Path, executor: Executor
) -> None:
    (tmp_path / "job-graphs").write_text("a file where a directory should be")
    services = StandaloneHaServices(open_directory(str(tmp_path)), executor)
    graphs = services.get_job_graph_store(Graph)
    with pytest.raises(StoreError, match=f"job-graphs/{ONE.hex()}"):
        await graphs.put_job_graph(Graph(ONE))
    with pytest.raises(StoreError, match="job-graphs"):
        await graphs.get_job_ids()


async def test_unfinished_file_of_an_interrupted_write_is_not_recovered(
    tmp_path: Path, executor: Executor
) -> None:
    services = StandaloneHaServices(open_directory(str(tmp_path)), executor)
    graphs = services.get_job_graph_store(Graph)
    await graphs.put_job_graph(Graph(ONE))
    torn = tmp_path / "job-graphs" / f"{TWO.hex()}.graph.1.unfinished"
    torn.write_bytes(b"half of")
    assert await graphs.get_job_ids() == (ONE,)
    assert (await graphs.recover_job_graphs()).unreadable == ()


def test_tilde_is_expanded_in_a_storage_path_and_not_in_a_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_directory("~/flinkray").location("a") == str(tmp_path / "flinkray" / "a")
    assert absolute_location("~/flinkray") == str(tmp_path / "flinkray")
    assert absolute_location("s3://bucket/~/flinkray") == "s3://bucket/~/flinkray"


@pytest.mark.parametrize("uri", ["file://{}/a b", "file://{}/a%20b"])
def test_file_uri_with_a_blank_or_a_percent_sign_names_the_same_path_everywhere(
    uri: str, tmp_path: Path
) -> None:
    """Checkpoints, results and stores agree. Otherwise no job is cleaned up where the path has a
    blank, and the Dispatcher ends because it cannot look for results."""
    location = absolute_location(uri.format(tmp_path))
    assert location == locations.normal(uri.format(tmp_path)) == str(tmp_path / "a b")
    open_directory(uri.format(tmp_path)).write("entry", b"1")
    assert (tmp_path / "a b" / "entry").exists()
    assert ResultDirectory(f"{location}/data").path == f"{location}/data"
    assert open_directory(tmp_path.as_uri()).location() == str(tmp_path)
    with pytest.raises(ValueError, match="gopher"):
        open_directory("gopher://hole/flinkray")


# --- the end of a cluster


class Unremovable(MemoryDirectory):
    """Cannot be removed."""

    def delete_all(self) -> None:
        raise OSError("read-only")


class GraphsStay(MemoryDirectory):
    """A cluster's directory whose job graphs cannot be removed."""

    def subdirectory(self, name: str) -> MemoryDirectory:
        if name == "job-graphs":
            return Unremovable()
        return super().subdirectory(name)


async def test_blobs_are_kept_if_the_job_graphs_that_refer_to_them_cannot_be_removed(
    executor: Executor,
) -> None:
    """HA-21"""
    services = StandaloneHaServices(GraphsStay(), executor)
    blobs = services.get_blob_directory()
    blobs.write("blob", b"x")
    with pytest.raises(OSError, match="read-only"):
        await services.close_and_cleanup_all_data()
    assert blobs.names() == ["blob"]


async def test_cleanup_of_the_cluster_deletes_its_blobs(
    directory: Directory, services: StandaloneHaServices
) -> None:
    """HA-21"""
    blobs = services.get_blob_directory()
    blobs.write("blob", b"x")
    directory.write("something else", b"y")
    await services.close_and_cleanup_all_data()
    assert blobs.names() == []
    assert directory.names() == ["something else"]
