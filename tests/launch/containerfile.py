"""launch/Containerfile, read as a builder of images reads it."""

from __future__ import annotations

import re
from pathlib import Path

FILE = Path(__file__).parents[2] / "launch" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Each with what it is of: lines that end with a backslash go on, comments are left out."""
    lines = [line for line in FILE.read_text("utf-8").splitlines() if not re.match(r"\s*#", line)]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (it.partition(" ") for it in text.split("\n") if it)]


def arguments() -> dict[str, str]:
    """What can be given to a build, with its defaults."""
    given = [rest.partition("=") for word, rest in instructions() if word == "ARG"]
    return {name: value for name, _, value in given}
