"""State on a disk: folders that go with their tasks, little memory, disks that fail."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.config import ReadableConfig
from flinkray.state import ListStateDescriptor, MapStateDescriptor, StateError, ValueStateDescriptor
from flinkray.state.backends import backend_factory
from flinkray.state.disk import DiskKeyedStateBackend, DiskSettings, StateStorageError
from flinkray.state.disk.changes import FairLock
from flinkray.state.disk.rocksdb import new_state_folder, sweep_state_folders

VALUES: Any = ValueStateDescriptor("values")
LISTS: Any = ListStateDescriptor("lists")
MAPS: Any = MapStateDescriptor("maps")


def on_disk(directory: Path, **settings: Any) -> DiskKeyedStateBackend:
    return DiskKeyedStateBackend(settings=DiskSettings((str(directory),), **settings))


def in_another_process(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_state_folder_is_removed_once_the_task_and_its_last_snapshot_have_ended(
    tmp_path: Path,
) -> None:
    backend = on_disk(tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing was kept yet"
    values = backend.value_table(VALUES)
    values.put("k", [1])
    capture, unused = backend.capture(), backend.capture()
    backend.close()
    unused.release()
    assert len(list(tmp_path.iterdir())) == 1
    snapshot = capture.write()
    assert list(tmp_path.iterdir()) == []
    restored = on_disk(tmp_path)
    restored.restore([snapshot])
    assert restored.value_table(VALUES).get("k") == [1]
    restored.close()
    assert list(tmp_path.iterdir()) == []


def test_state_folder_of_a_killed_process_is_removed_by_the_next_process(tmp_path: Path) -> None:
    killed = in_another_process(
        """
        import os, signal, sys
        from flinkray.state.disk.rocksdb import new_state_folder
        folder = new_state_folder(sys.argv[1])
        (folder.path / "something").write_text("large")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    mine = new_state_folder(str(tmp_path))
    assert not left.exists()
    assert sweep_state_folders(tmp_path) == 0, "somebody holds it"
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.remove()


def test_error_about_an_unwritable_directory_names_directory_and_option(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    values = on_disk(in_the_way / "below").value_table(VALUES)
    with pytest.raises(StateStorageError, match=r"file/below.*state\.backend\.rocksdb\.localdir"):
        values.get("k")


def test_full_disk_raises_one_error_that_names_the_folder(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the write of RocksDB fails."""
    failed = in_another_process(
        """
        import resource, signal, sys
        from flinkray.state import ValueStateDescriptor
        from flinkray.state.disk import DiskKeyedStateBackend, DiskSettings, StateStorageError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        settings = DiskSettings((sys.argv[1],), memory_bytes=1 << 20, cache_bytes=1 << 16)
        values = DiskKeyedStateBackend(settings=settings).value_table(ValueStateDescriptor("v"))
        values.get(0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            for number in range(200_000):
                values.put(number, str(number) * 20)
        except StateStorageError as error:
            print(error)
        """,
        tmp_path,
    )
    assert str(tmp_path) in failed.stdout, failed.stderr
    assert "give the disk room" in failed.stdout
    assert failed.stderr == ""


def test_error_without_rocksdict_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    make = backend_factory(ReadableConfig({"state.backend.type": "rocksdb"}))
    backend = make(128, None, lambda: 0, None, hash)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"flinkray\[rocksdb\]"):
        backend.value_table(VALUES).get("k")


def test_lock_that_one_thread_takes_repeatedly_does_not_starve_other_threads() -> None:
    lock = FairLock()
    order = []

    def read() -> None:
        with lock:
            order.append("reader")

    reader = threading.Thread(target=read)
    with lock, lock:
        reader.start()
        while not lock._waiting:
            pass
    with lock:
        order.append("task")
    reader.join()
    assert order == ["reader", "task"]


def test_subtasks_on_a_machine_are_spread_over_the_local_state_directories(tmp_path: Path) -> None:
    from flinkray.core.key_group_ranges import key_group_range

    names = [str(tmp_path / name) for name in "ab"]
    made = backend_factory(
        ReadableConfig(
            {
                "state.backend.type": "rocksdb",
                "state.backend.rocksdb.localdir": ", ".join(names),
            }
        )
    )
    backends = [
        made(128, key_group_range(128, 2, subtask), lambda: 0, None, hash)  # type: ignore[arg-type]
        for subtask in range(2)
    ]
    for backend in backends:
        backend.value_table(VALUES).get("k")
    assert [len(list((tmp_path / name).iterdir())) for name in "ab"] == [1, 1]
    for backend in backends:
        backend.close()


def test_state_larger_than_the_caches_is_kept_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    """50 MB of values, lists and timers in 8 MB of caches: once these are full, the process grows
    by less than half of the state while it is written, read, snapshotted and restored."""
    program = """
        import sys
        from flinkray.checkpoint.state_format import StoredSnapshot, write_keyed_state
        from flinkray.checkpoint.state_files import StateOutput, open_state
        from functools import partial
        from flinkray.core.key_group_ranges import KeyGroupRange
        from flinkray.state import ListStateDescriptor, ValueStateDescriptor
        from flinkray.state.disk import DiskKeyedStateBackend, DiskSettings

        def memory():
            for line in open("/proc/self/status"):
                if line.startswith("RssAnon"):
                    return int(line.split()[1]) // 1024

        def made():
            settings = DiskSettings(
                (sys.argv[1],), memory_bytes=4 << 20, cache_bytes=4 << 20, timers_in_memory=5_000
            )
            return DiskKeyedStateBackend(settings=settings)

        def tables_of(backend):
            values = backend.value_table(ValueStateDescriptor("v"))
            return values, backend.list_table(ListStateDescriptor("l")), backend.timer_queue("t")

        backend = made()
        values, lists, timers = tables_of(backend)
        most = 0
        text = "x" * 380
        for number in range(120_000):
            values.put(f"key-{number}", f"{number}{text}")
            if number % 10 == 0:
                lists.append(f"key-{number % 5_000}", text)
                timers.add(number % 977, f"key-{number}", None)
            if number == 20_000:  # caches are full, and all code is there
                before = memory()
            if number % 5_000 == 0 and number > 20_000:
                most = max(most, memory())
        for number in range(0, 120_000, 7):
            assert values.get(f"key-{number}") == f"{number}{text}"
        most = max(most, memory())
        with StateOutput(sys.argv[1] + "/snapshot", 0) as output:
            location = write_keyed_state(backend.capture(1).stream(), output)
        most = max(most, memory())
        backend.close()
        assert location.size > 45_000_000, location.size
        stored = StoredSnapshot(partial(open_state, location), KeyGroupRange(0, 127))
        backend = made()
        backend.restore([stored])
        values, lists, timers = tables_of(backend)
        most = max(most, memory())
        assert values.get("key-119999") == f"119999{text}"
        assert len(lists.get("key-0")) == 24
        assert len(timers) == 12_000
        fired = []
        while (due := timers.first()) is not None:
            for timer in timers.at(due, 100):
                assert timers.claim(due, timer)
                fired.append(due)
        assert len(fired) == 12_000 and fired == sorted(fired)
        print(most - before)
        """
    done = in_another_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 25


def test_timers_of_equal_time_in_memory_and_on_disk_fire_in_registration_order(
    tmp_path: Path,
) -> None:
    backend = on_disk(tmp_path, timers_in_memory=4)
    timers = backend.timer_queue("t")
    added = [(time, key, None) for key in range(40) for time in (5, 3, 9)]
    for timer in added:
        assert timers.add(*timer)
        assert not timers.add(*timer)
    for time, key, namespace in added[::5]:
        timers.discard(time, key, namespace)
    del added[::5]
    assert len(timers) == len(added)
    fired = []
    while (due := timers.first()) is not None:
        for key, namespace in timers.at(due, 7):
            assert timers.claim(due, (key, namespace))
            assert not timers.claim(due, (key, namespace))
            fired.append((due, key, namespace))
    assert fired == sorted(added, key=lambda timer: timer[0])
    backend.close()


def test_maps_on_disk_keep_the_order_of_insertion(tmp_path: Path) -> None:
    backend = on_disk(tmp_path, cache_bytes=2_000)
    maps, other = backend.map_table(MAPS), backend.value_table(VALUES)
    for key in ("b", "a", "d", "c"):
        maps.put("k", key, key)
    for number in range(100):  # what was in the cache is not any more
        other.put(number, "x" * 100)
    maps.put("k", "a", 1)
    maps.remove_entry("k", "b")
    maps.put("k", "b", 2)
    assert list(maps.items("k")) == [("a", 1), ("d", "d"), ("c", "c"), ("b", 2)]
    backend.close()


def test_equal_keys_on_disk_are_one_key_with_the_type_of_the_first(tmp_path: Path) -> None:
    backend = on_disk(tmp_path, cache_bytes=2_000)
    values, lists = backend.value_table(VALUES), backend.list_table(LISTS, namespaced=True)
    for key in (True, 0.5, ("a", False), b"x", None):
        values.put(key, "x" * 500)
    values.put(1, "one")
    assert values.get(True) == values.get(1.0) == "one"
    lists.append((True, ("w", 2.5)), 1)
    for number in range(2, 100):
        values.put(number, "x" * 500)
    assert [repr(place) for place in lists.places()] == ["(True, ('w', 2.5))"]
    special = [place for place in values.places() if not isinstance(place, int) or place == 1]
    assert sorted(map(repr, special)) == ["('a', False)", "0.5", "None", "True", "b'x'"]
    backend.close()


def test_key_that_is_another_key_plus_a_zero_byte_has_its_own_entries_on_disk(
    tmp_path: Path,
) -> None:
    settings = DiskSettings((str(tmp_path),), cache_bytes=2_000)
    backend = DiskKeyedStateBackend(1, settings=settings)
    lists, maps, other = (
        backend.list_table(LISTS),
        backend.map_table(MAPS),
        backend.value_table(VALUES),
    )

    def forget() -> None:
        for number in range(100):  # what was in the cache is not any more
            other.put(number, "x" * 100)

    backend.capture(1).release()
    for key in ("a", "a\0b", b"", b"\0"):
        lists.append(key, key)
        maps.put(key, 1, key)
    changes = backend.capture(2, 1).write()
    forget()
    for key in ("a", "a\0b", b"", b"\0"):
        assert list(lists.get(key)) == [key]
        assert list(maps.items(key)) == [(1, key)]
    forget()
    for key in ("a", b""):
        lists.remove(key)
        maps.remove(key)
    forget()
    assert "a" not in maps
    for key in ("a\0b", b"\0"):
        assert list(lists.get(key)) == [key]
        assert list(maps.items(key)) == [(1, key)]
    backend.close()
    assert changes is not None
