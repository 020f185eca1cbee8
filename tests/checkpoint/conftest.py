"""Storage of every kind."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs
import pytest

from tests.checkpoint.arrow_storage import ObjectStore, mount


@pytest.fixture(params=["local", "arrow", "object store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The location of a directory that is not there yet; its files lie in ``tmp_path / "root"``."""
    folder = tmp_path / "root"
    if request.param == "local":
        return str(folder)
    if request.param == "arrow":
        return mount(monkeypatch, "other", pyarrow.fs.LocalFileSystem(), folder)
    return mount(monkeypatch, "object", ObjectStore(), folder)
