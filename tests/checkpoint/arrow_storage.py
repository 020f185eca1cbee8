"""File systems behind pyarrow, on the local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from flinkray.checkpoint import state_files
from flinkray.checkpoint.arrow_files import ArrowStateFiles


class ObjectStore:
    """Has no directories that somebody would have to make, and nothing can be renamed in it."""

    type_name = "s3"

    def __init__(self) -> None:
        self._files = pyarrow.fs.LocalFileSystem()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._files, name)

    def open_output_stream(self, path: str) -> Any:
        self._files.create_dir(str(Path(path).parent), recursive=True)
        self.calls.append("open_output_stream")
        return self._files.open_output_stream(path)

    def create_dir(self, path: str, recursive: bool = True) -> None:
        raise AssertionError("nobody has to make directories there")

    def move(self, path: str, new_path: str) -> None:
        raise AssertionError("it copies everything")


def mount(monkeypatch: pytest.MonkeyPatch, scheme: str, file_system: Any, folder: Path) -> str:
    """Let *folder* be ``<scheme>://bucket/dir``."""
    location = f"{scheme}://bucket/dir"
    storage = (scheme, "bucket", "")
    monkeypatch.setitem(
        state_files._known, storage, ArrowStateFiles(file_system, str(folder), location)
    )
    return location
