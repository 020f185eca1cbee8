"""Whatever is stored has a schema: the few places that write to stores are known."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.sources import parsed

ROOT = Path(__file__).parents[2]

WRITERS = {
    "flinkray/ha/entries.py": "entries of job stores",
    "flinkray/ha/epoch_directory.py": "pointers to checkpoints, counts, job graphs, job results",
    "flinkray/ha/checkpoint_stores.py": "pointers to checkpoints, and counts",
    "flinkray/checkpoint/metadata_file.py": "metadata of checkpoints, which are entries",
    "flinkray/blob/store.py": "parts of blobs, and their markers, which are entries",
    "flinkray/rpc/ray/directory.py": "process records; a secret and names of prestarted processes",
}
"""Each with what it stores.  A record is written by ``encode_entry`` or ``encode_record``, and has
a golden file: see flinkray.core.schema."""


def writes(source: str) -> list[int]:
    """The lines in which *source* writes an entry of a Directory or of Ray's key-value store."""
    lines = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            receiver = ast.unparse(node.func.value)
            is_entry = node.func.attr == "write" and receiver.endswith("directory")
            if is_entry or node.func.attr == "_internal_kv_put":
                lines.append(node.lineno)
    return lines


def test_only_listed_modules_write_to_directories_and_the_kv_store() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("flinkray", "actors", "scheduler")
        for path in ROOT.glob(f"{folder}/**/*.py")
        if not path.is_relative_to(ROOT / "flinkray" / "testing") and writes(path.read_text())
    }
    assert found == set(WRITERS)


def test_check_of_store_writes_finds_directory_writes_and_puts_to_the_kv_store() -> None:
    source = "self._directory.write(name, data)\nfile.write(data)\nkv._internal_kv_put(b'', b'')"
    assert writes(source) == [1, 3]
