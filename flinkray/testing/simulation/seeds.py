"""Creates the random streams of a run: independent of each other, and the same in every process."""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def stream(seed: int, *names: object) -> Random:
    """Return a random number generator for these names. It gives the same numbers for the same seed
    and names, whatever other generators give."""
    text = "/".join(map(str, (seed, *names)))
    digest = blake2b(text.encode(), digest_size=16, person=b"flinkray-seeds").digest()
    return Random(int.from_bytes(digest, "big"))
