"""Random streams of a run: independent of each other, the same in every process."""

from __future__ import annotations

from hashlib import blake2b
from random import Random


def stream(seed: int, *names: object) -> Random:
    """The stream of that name; what one stream draws does not change what another yields."""
    text = "/".join(map(str, (seed, *names)))
    digest = blake2b(text.encode(), digest_size=16, person=b"flinkray-seeds").digest()
    return Random(int.from_bytes(digest, "big"))
