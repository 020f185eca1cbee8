"""Extracts exceptions of Spark's Python workers from the texts of Spark's errors.

Spark reports them to the driver in the message of a Java exception, with the stacks of both
languages around them: ``Py4JJavaError`` for a write, ``PythonException`` for a ``collect``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BEGINNING = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
_JAVA = re.compile(r"^\s*(at [\w.$/]+[(<]|\.\.\. \d+ more$|Caused by: |Driver stacktrace:$)")
_CAUSED_BY = "Caused by: "
_NOT_THE_USERS = ("/pyspark/", "/site-packages/", "/dist-packages/", "/pyspark.zip/")


@dataclass(frozen=True)
class PythonCause:
    """An exception in a Python worker, as extracted from a text of Spark."""

    error_type: str
    message: str
    """Type and text, as in the last lines of the traceback."""
    traceback: str
    """Traceback from the first frame of the user's code on."""
    place: str | None
    """Innermost frame of the user's code: ``name.py, line 3, in f``. None: no frame is the
    user's."""


def python_cause(text: str) -> PythonCause | None:
    """Return the innermost Python exception in a text. None: no Python code has failed."""
    at = text.rfind(_BEGINNING)
    if at < 0:
        return None
    lines = []
    for line in text[at:].splitlines()[1:]:
        if _JAVA.match(line):
            break
        lines.append(line)
    last_frame = next((i for i in reversed(range(len(lines))) if _FRAME.match(lines[i])), None)
    if last_frame is None:
        return None
    said = last_frame + 1
    while said < len(lines) and lines[said].startswith("    "):  # code, and marks below it
        said += 1
    message = "\n".join(lines[said:]).strip()
    if not message:
        return None
    frames = [(i, match) for i, line in enumerate(lines) if (match := _FRAME.match(line))]
    users = [(i, m) for i, m in frames if not any(part in m["file"] for part in _NOT_THE_USERS)]
    first = users[0][0] if users else frames[0][0]
    place = None
    if users:
        match = users[-1][1]
        name = match["file"].rpartition("/")[2]
        place = f"{name}, line {match['line']}, in {match['function']}"
    shown = [_BEGINNING, *lines[first:said], message]
    error_type = re.split(r"[:\s]", message, maxsplit=1)[0].rpartition(".")[2]
    return PythonCause(error_type, message, "\n".join(shown) + "\n", place)


def java_cause(text: str) -> str | None:
    """Return the line of the innermost Java exception in a text. None: the text has none."""
    causes = [line.strip() for line in text.splitlines() if line.startswith(_CAUSED_BY)]
    if causes:
        return causes[-1].removeprefix(_CAUSED_BY)
    lines = text.splitlines()
    told = next((line for line in lines if line.startswith(": ")), None)  # Py4J's second line
    return None if told is None else told.removeprefix(": ").strip()
