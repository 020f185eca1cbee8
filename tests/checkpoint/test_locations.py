"""Locations as texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flinkray.checkpoint.locations import join, name_of, normal, parent_of, relative, resolved

S3 = "s3://bucket/a/b?endpoint_override=localhost:1"


def test_different_spellings_of_a_location_are_normalized_to_one_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert normal("~/x/../y/") == f"{tmp_path}/y"
    assert normal((tmp_path / "with space").as_uri()) == f"{tmp_path}/with space"
    assert normal("s3://bucket/a//b/") == "s3://bucket/a/b"
    assert normal("s3://bucket") == "s3://bucket/"


@pytest.mark.parametrize("text", ["/a\0b", "file:///a%00b", "file:", "file:here", "s3://["])
def test_text_that_is_no_location_is_refused(text: str) -> None:
    """``file:here`` once meant a directory below the working directory of the process."""
    with pytest.raises(ValueError, match=r"NUL|slash|IPv6"):
        normal(text)


def test_location_below_a_directory_keeps_the_query_options_of_its_uri() -> None:
    below = join(S3, "c", "d")
    assert below == "s3://bucket/a/b/c/d?endpoint_override=localhost:1"
    assert (parent_of(parent_of(below)), name_of(below)) == (S3, "d")
    assert join("s3://bucket", "c") == "s3://bucket/c"
    assert join("/a?b#c:d", "e") == "/a?b#c:d/e"
    assert parent_of("/a?b#c:d/e") == "/a?b#c:d"


@pytest.mark.parametrize(
    ("location", "directory", "text"),
    [
        ("/j/chk-1/x", "/j/chk-1", "x"),
        ("/j/shared/x", "/j/chk-1", "../shared/x"),
        ("/a?b/shared/x", "/a?b/chk-1", "../shared/x"),
        (join(S3, "shared", "x"), join(S3, "chk-1"), "../shared/x"),
        ("s3://other/x", "s3://bucket/chk-1", "s3://other/x"),
        ("/x", "s3://bucket/chk-1", "/x"),
        ("s3://bucket/x", "/chk-1", "s3://bucket/x"),
    ],
)
def test_relative_location_resolves_to_the_original_location(
    location: str, directory: str, text: str
) -> None:
    assert relative(location, directory) == text
    assert resolved(text, directory) == location
