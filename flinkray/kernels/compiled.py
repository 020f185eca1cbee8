"""Decides, once in each process, whether the compiled kernels are used."""

from __future__ import annotations

import importlib
import logging
import os
import zlib
from pathlib import Path
from types import ModuleType

SWITCH = "FLINKRAY_KERNELS"
"""Environment variable; ``off`` selects the Python and NumPy code even if there are compiled
kernels."""


def _load() -> tuple[ModuleType | None, str | None]:
    wanted = os.environ.get(SWITCH) or "on"
    if wanted == "off":
        return None, f"{SWITCH} is off"
    if wanted != "on":
        raise ValueError(f"{SWITCH} is {wanted!r}: set it to on or off, or unset it")
    try:
        module = importlib.import_module("flinkray.kernels._native")
        if _has_its_sources(module):
            return module, None
        reason = "they were built from other sources: run python setup.py build_ext --inplace"
    except ImportError as error:
        reason = f"the installation has none that fit this Python ({error})"
    logging.getLogger(__name__).warning(
        "flinkray works without compiled kernels, and more slowly: %s", reason
    )
    return None, reason


def _has_its_sources(module: ModuleType) -> bool:
    """Return whether the module was built from the sources beside this file, if these are here."""
    sources = sorted(Path(__file__).parent.glob("*.[ch]"))
    found = b"".join(source.read_bytes() for source in sources)
    return not sources or module.sources == zlib.crc32(found)


native, why_missing = _load()
"""The compiled module, or None; and why there is none."""
