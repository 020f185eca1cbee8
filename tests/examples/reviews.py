"""Reviews for examples/reviews_scored.py, and the alerts that must come of them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
from reviews_scored import ALERT, BAD, GOOD, MODEL, words_of

USERS = [f"user {number}" for number in range(20)]
PARTITIONS = 2
_WORDS = [*sorted(GOOD), *sorted(BAD), *(f"word{number}" for number in range(20))]


def reviews(number: int, seed: int = 1) -> list[dict[str, Any]]:
    random = Random(seed)
    return [
        {
            "id": n,
            "user": random.choice(USERS),
            "text": " ".join(random.choices(_WORDS, k=random.randint(1, 12))),
        }
        for n in range(number)
    ]


def by_partition(all_reviews: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Messages of each partition. All those of a user are in one."""
    for partition in range(PARTITIONS):
        mine = (r for r in all_reviews if USERS.index(r["user"]) % PARTITIONS == partition)
        yield [json.dumps(review) for review in mine]


def expected_alerts(all_reviews: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By id, one review after the other."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    earlier: dict[str, list[int]] = defaultdict(list)
    alerts = []
    for review in all_reviews:
        good, bad, words = words_of(review["text"])
        before = earlier[review["user"]]
        mean = sum(before) / len(before) if before else 0.0
        features = np.array([[good, bad, math.log1p(words), mean]], np.float32)
        before.append(good - bad)
        score = float(session.run(None, {"features": features})[0][0, 0])
        if score < ALERT:
            alerts.append({"id": review["id"], "user": review["user"], "score": round(score, 4)})
    return alerts


def differences(found: list[str], expected: list[dict[str, Any]]) -> str:
    """What is wrong with the messages of alerts; empty if nothing is. Scores may differ in their
    last digit, because a batch may be computed otherwise than a single review."""
    alerts = sorted(map(json.loads, found), key=lambda alert: alert["id"])
    ids, wanted = [a["id"] for a in alerts], [a["id"] for a in expected]
    if ids != wanted:
        return f"{len(ids)} alerts, {len(set(ids))} of them different, not {len(wanted)}"
    for one, other in zip(alerts, expected, strict=True):
        if one["user"] != other["user"] or abs(one["score"] - other["score"]) > 2e-4:
            return f"{one}, not {other}"
    return ""
