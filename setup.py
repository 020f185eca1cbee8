"""Builds the compiled kernels (flinkray/kernels); all else about the package is in pyproject.toml.

From Python 3.11 on, one build serves all versions (the stable ABI). Without a C compiler the
package is installed without compiled kernels, and works.
"""

import sys
import zlib
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("flinkray/kernels")
IS_STABLE = sys.version_info >= (3, 11)
SOURCES = zlib.crc32(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]"))))
"""By which the package knows a module that was built from other sources."""

setup(
    ext_modules=[
        Extension(
            "flinkray.kernels._native",
            sources=sorted(map(str, FOLDER.glob("*.c"))),
            depends=sorted(map(str, FOLDER.glob("*.h"))),
            define_macros=[
                ("SOURCES", f"{SOURCES}u"),
                *([("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else []),
            ],
            py_limited_api=IS_STABLE,
            extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra", "-Wno-unused-parameter"],
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)
