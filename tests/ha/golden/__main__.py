"""Golden files of what is stored.

    python -m tests.ha.golden            # exit 1 and say what a golden file is missing for
    python -m tests.ha.golden --write    # add it

What is there is kept, but for the texts: they show what today's reader makes of each file, and a
reviewer sees how that has changed.
"""

from __future__ import annotations

import argparse
import json
import sys

from flinkray.core.schema import schema_named
from tests.ha.golden import files


def main() -> int:
    """The number of things that are wrong, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.ha.golden", description=__doc__)
    parser.add_argument("--write", action="store_true", help="add what is missing")
    write = parser.parse_args().write
    wrong = files.changed_without_version()
    for text in wrong:
        print(text)
    if wrong:
        return 1
    missing = files.unrecorded_shapes()
    unwritten = files.unwritten_specimens()
    for name in [*missing, *unwritten]:
        print(f"{'adding' if write else 'no golden file of today is there for'} {name}")
    if not write:
        return 1 if missing or unwritten else 0
    shapes = files.recorded_shapes()
    for name in missing:
        schema = schema_named(name)
        assert schema is not None
        shapes.setdefault(name, {})[str(schema.version)] = files.shape_of(schema.type)
    files.SHAPES.write_text(json.dumps(shapes, indent=2, sort_keys=False) + "\n")
    for specimen, (number, data) in unwritten.items():
        (files.RECORDS / f"{specimen}.{number}.record").write_bytes(data)
    for golden in files.golden_files():
        golden.reading.write_text(golden.read())
    return 0


if __name__ == "__main__":
    sys.exit(main())
