"""Source files as trees: most tests of the repository look at all of them."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parsed(source: str) -> ast.Module:
    """The tree of a module, which nobody changes; each text is parsed once."""
    return ast.parse(source)
