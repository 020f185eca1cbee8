"""Archives are unpacked as they were packed."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from flinkray.actors.shared.job_files import ArchiveError, is_archive, unpack


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inner/plain.txt", "plain")
        tool = zipfile.ZipInfo("tool")
        tool.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(tool, "#!/bin/sh")
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "inner/plain.txt")
    return packed.getvalue()


def tarred(mode: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, text, permissions in (
            ("inner/plain.txt", b"plain", 0o644),
            ("tool", b"#!/bin/sh", 0o755),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), permissions
            archive.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "inner/plain.txt"
        archive.addfile(link)
    return packed.getvalue()


@pytest.mark.parametrize(
    "content",
    [zipped(), tarred("w"), tarred("w:gz"), tarred("w:xz")],
    ids=["zip", "tar", "tar.gz", "tar.xz"],
)
def test_unpacked_files_keep_their_permissions_and_symbolic_links_stay_links(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "archive").write_bytes(content)
    assert is_archive(str(tmp_path / "archive"))
    folder = tmp_path / "not" / "there"
    unpack(content, folder)
    assert (folder / "inner" / "plain.txt").read_text() == "plain"
    assert not os.access(folder / "inner" / "plain.txt", os.X_OK)
    assert os.access(folder / "tool", os.X_OK)
    assert (folder / "link").is_symlink()
    assert (folder / "link").read_text() == "plain"


@pytest.mark.parametrize("content", [b"", b"no archive", zipped()[:-30], tarred("w:gz")[:-30]])
def test_broken_archive_raises_archive_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no zip or tar archive, or a broken one"):
        unpack(content, tmp_path)
