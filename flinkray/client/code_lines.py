"""The lines of the user's code in tracebacks that come from a cluster.

Python shows the code of a frame if it finds the file, which is on the client's machine and often on
no other; and a script's name is relative to the folder that its client runs in.
"""

from __future__ import annotations

import linecache
import re

_FRAME = re.compile(r'^(?P<indent> *)File "(?P<file>[^"]+)", line (?P<line>\d+)(, in .*)?$')


def with_code_lines(text: str) -> str:
    """The same traceback, with the code of each frame that has none and whose file is here."""
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
