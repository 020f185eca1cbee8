"""Decides, once in each process, whether the compiled kernels are used."""

from __future__ import annotations

import importlib
import logging
import os
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
        return importlib.import_module("flinkray.kernels._native"), None
    except ImportError as error:
        reason = f"the installation has none that fit this Python ({error})"
        logging.getLogger(__name__).warning(
            "flinkray works without compiled kernels, and more slowly: %s", reason
        )
        return None, reason


native, why_missing = _load()
"""The compiled module, or None; and why there is none."""
