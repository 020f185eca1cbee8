"""Finds lines of the user's code in tracebacks, and adds missing code lines.

Python shows the code of a frame only if it finds the file. For a traceback from a cluster, the file
is on the client's machine and often on no other. A script's name is relative to the folder that its
client runs in.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from types import CodeType

_FRAME = re.compile(r'^(?P<indent> *)File "(?P<file>[^"]+)", line (?P<line>\d+)(, in .*)?$')


_LIBRARIES = ("<frozen", *(f"{path}/" for path in set(sysconfig.get_paths().values())))


def line_of_user(error: BaseException) -> tuple[str, int] | None:
    """Return (file, line number) of the user's code nearest to the place where *error* was raised.
    If the traceback has no line of the user, return a line of another library. None: the traceback
    has only lines of flinkray."""
    lines = [
        (step.f_code, number)
        for step, number in traceback.walk_tb(error.__traceback__)
        if str(step.f_globals.get("__name__", "")).partition(".")[0] != "flinkray"
    ]
    own = [line for line in lines if not _is_of_library(line[0])]
    if not lines:
        return None
    code, number = (own or lines)[-1]
    return code.co_filename, number


def _is_of_library(code: CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARIES)


def with_code_lines(text: str) -> str:
    """Return a traceback's text with the missing code lines of the frames whose files exist on this
    machine."""
    shown = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        shown.append(line)
        frame = _FRAME.match(line)
        if frame is None:
            continue
        following = lines[number + 1] if number + 1 < len(lines) else ""
        code_indent = frame["indent"] + "  "
        if following.startswith(code_indent):
            continue
        code = linecache.getline(frame["file"], int(frame["line"])).strip()
        if code:
            shown.append(code_indent + code)
    return "\n".join(shown)
