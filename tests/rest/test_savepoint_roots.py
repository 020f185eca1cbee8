"""Where savepoints may be written and deleted by REST."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.rest.savepoint_roots import is_within


@pytest.mark.parametrize(
    ("location", "root", "expected"),
    [
        ("/data/savepoints/a", "/data/savepoints", True),
        ("/data/savepoints", "/data/savepoints/", True),
        ("file:///data/savepoints/a", "/data/savepoints", True),
        ("/data/savepoints/a", "file:/data/savepoints", True),
        ("/data/savepoints%2Fa", "/data", True),
        ("/anything", "/", True),
        ("/data/savepoints/../other", "/data/savepoints", False),
        ("file:///data/savepoints/%2e%2e/other", "/data/savepoints", False),
        ("/data/savepoints-of-others", "/data/savepoints", False),
        ("/data", "/data/savepoints", False),
        ("s3://bucket/path/a", "s3://bucket/path", True),
        ("s3://key:secret@bucket/path/a?region=x", "s3://bucket/path", True),
        ("s3://bucket/path/a", "s3://bucket", True),
        ("s3://bucket/path/../a", "s3://bucket/path", False),
        ("s3://bucket/path/%2e%2e/a", "s3://bucket/path", False),
        ("s3://other/path/a", "s3://bucket/path", False),
        ("gs://bucket/path/a", "s3://bucket/path", False),
        ("s3://bucket/data/a", "/data", False),
        ("/data/a", "s3://bucket/data", False),
    ],
)
def test_savepoint_location_is_checked_against_the_roots_with_dots_and_uris_resolved(
    location: str, root: str, expected: bool
) -> None:
    assert is_within(location, ("/nowhere", root)) is expected


def test_symbolic_link_out_of_a_savepoint_root_does_not_count_as_within_it(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "out").symlink_to(elsewhere)
    (tmp_path / "in").symlink_to(root)
    assert not is_within(str(root / "out" / "a"), (str(root),))
    assert is_within(str(tmp_path / "in" / "a"), (str(root),))
    assert is_within(str(root / "a"), (str(tmp_path / "in"),))
