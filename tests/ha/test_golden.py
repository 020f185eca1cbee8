"""What is stored today is read tomorrow: golden files of each kind of stored record."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flinkray.core import schema
from flinkray.core.schema import stored
from tests.ha.golden import files
from tests.ha.golden.files import COMMAND, Golden, golden_files


@pytest.mark.parametrize("golden", golden_files(), ids=lambda golden: golden.record.stem)
def test_golden_file_of_every_version_is_read_with_the_content_recorded_for_it(
    golden: Golden,
) -> None:
    """A difference that a migration makes on purpose is accepted by running the command."""
    assert golden.read() == golden.reading.read_text(), COMMAND


def test_every_sample_record_has_a_golden_file_and_is_written_as_in_that_file() -> None:
    assert sorted(files.unwritten_specimens()) == [], COMMAND
    assert len(files.newest()) == len(list(files.specimens())) >= 10


def test_stored_type_whose_fields_were_changed_has_a_new_format_version() -> None:
    assert files.changed_without_version() == []
    assert files.unrecorded_shapes() == [], COMMAND


def test_every_stored_type_occurs_in_the_newest_golden_files() -> None:
    """A new stored type must be added to ``kinds.py``."""
    found = {name for golden in files.newest().values() for name in files.types_in(golden)}
    assert {it.name for it in files.our_schemas()} - found == set(), "see tests/ha/golden/kinds.py"
    assert len(found) > 30


def test_golden_files_of_the_first_format_are_read_like_those_of_the_second() -> None:
    by_name = {golden.record.stem: golden for golden in golden_files()}
    first = [golden for golden in by_name.values() if files.canonical_of(golden) is None]
    assert len(first) == 7
    for golden in first:
        assert golden.read() == by_name[f"{golden.specimen}.2"].read()


# --- the checks themselves


@pytest.fixture
def another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is declared in a test is forgotten after it."""
    monkeypatch.setattr(schema, "_by_name", dict(schema._by_name))
    monkeypatch.setattr(schema, "_by_type", dict(schema._by_type))


def _declare(name: str, cls: type, version: int = 1) -> None:
    """As if *cls* were the type of that name, in the package."""
    schema._by_name.pop(name, None)
    cls.__module__ = "flinkray.somewhere"
    migrations = dict.fromkeys(range(1, version), lambda values: values)
    stored(name, version=version, migrations=migrations)(cls)


@pytest.mark.usefixtures("another_version")
def test_field_added_to_a_stored_type_without_a_new_version_is_reported() -> None:
    @dataclass
    class Wider:
        value: str
        added: int = 0

    _declare("WorkerGroupId", Wider)
    (text,) = files.changed_without_version()
    assert "WorkerGroupId version 1" in text
    assert "make it version 2" in text


@pytest.mark.usefixtures("another_version")
def test_new_version_of_a_stored_type_without_a_golden_file_is_reported() -> None:
    @dataclass
    class Wider:
        value: str
        added: int = 0

    _declare("WorkerGroupId", Wider, version=2)
    assert files.changed_without_version() == []
    assert files.unrecorded_shapes() == ["WorkerGroupId"]


def test_writer_that_writes_other_bytes_than_the_golden_file_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flinkray.core.records._payload", lambda value: str(value))
    assert {"job-graph.stream", "job-result.failed"} <= files.unwritten_specimens().keys()
