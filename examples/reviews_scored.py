"""Reviews from Kafka, scored by a small ONNX model, and an alert for each that is far too bad.

    python examples/reviews_scored.py --brokers HOST:PORT [--reviews TOPIC] [--alerts TOPIC]
        [--replicas 1..2] [--bounded]

A review is a message ``{"id": 1, "user": "ada", "text": "..."}``. For each review the program
counts good and bad words, and looks up in its state how the user's earlier reviews were. Replicas
of the model make a score from 0 to 1 of these features, in batches. A review with a score below
0.2 becomes an alert, ``{"id": ..., "user": ..., "score": ...}``. Alerts are in the topic exactly
once, whatever dies. With ``--bounded`` the program ends at the present end of the topic.

Needs ``flinkray[kafka]`` and ``onnxruntime``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flinkray.datastream import (
    DataStream,
    KeyedProcessFunction,
    ModelContext,
    ModelFunction,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.common import SimpleStringSchema
from flinkray.datastream.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from flinkray.datastream.state import ValueStateDescriptor

MODEL = Path(__file__).parent / "sentiment.onnx"
GOOD = frozenset(["good", "great", "fine", "love", "excellent", "best", "wonderful"])
BAD = frozenset(["bad", "awful", "boring", "hate", "poor", "worst", "terrible"])
FEATURES = ["good", "bad", "length", "before"]
ALERT = 0.2


def words_of(text: str) -> tuple[int, int, int]:
    """Return the numbers of good, bad and all words."""
    words = re.findall(r"\w+", text.lower())
    return sum(w in GOOD for w in words), sum(w in BAD for w in words), len(words)


class Features(KeyedProcessFunction[str, Any, Row]):
    """Review -> its features. The last one is the mean of good minus bad words in the user's
    earlier reviews."""

    def open(self, runtime_context: RuntimeContext) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._earlier = runtime_context.get_state(ValueStateDescriptor("earlier", kind))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        good, bad, words = words_of(value["text"])
        reviews, total = self._earlier.value() or (0, 0)
        self._earlier.update((reviews + 1, total + good - bad))
        before = total / reviews if reviews else 0.0
        yield Row(value["id"], value["user"], float(good), float(bad), math.log1p(words), before)


FEATURES_TYPE = Types.ROW_NAMED(
    ["id", "user", *FEATURES],
    [Types.LONG(), Types.STRING(), *[Types.DOUBLE()] * len(FEATURES)],
)


class Sentiment(ModelFunction):
    """The model. Each replica loads it once."""

    def __init__(self, model: bytes) -> None:
        self._model = model

    def open(self, context: ModelContext) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            self._model, options, providers=["CPUExecutionProvider"]
        )

    def infer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch[name].to_numpy(zero_copy_only=False) for name in FEATURES]
        features = np.stack(columns, 1).astype(np.float32)
        (scores,) = self._session.run(None, {"features": features})
        return pa.record_batch({"score": scores[:, 0].astype(np.float64)})


def scored(
    reviews: DataStream[str],
    model: ModelFunction,
    replicas: tuple[int, int],
    *,
    cpu: float = 1,
    memory: str = "500m",
) -> DataStream[Row]:
    """Return the reviews' features with their scores."""
    features = (
        reviews.map(json.loads)
        .key_by(lambda review: review["user"], Types.STRING())
        .process(Features(), FEATURES_TYPE)
    )
    return features.infer(model, batch_size=32, replicas=replicas, cpu=cpu, memory=memory)


def alert_of(row: Row) -> str:
    return json.dumps({"id": row.id, "user": row.user, "score": round(row.score, 4)})


def build(
    env: StreamExecutionEnvironment,
    brokers: str,
    reviews: str,
    alerts: str,
    *,
    is_bounded: bool = False,
    model: ModelFunction | None = None,
    replicas: tuple[int, int] = (1, 2),
    cpu: float = 1,
    memory: str = "500m",
) -> None:
    """Add the program to *env*. *model* None: that of :data:`MODEL`."""
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(brokers)
        .set_topics(reviews)
        .set_group_id("reviews-scored")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
    )
    if is_bounded:
        source.set_bounded(KafkaOffsetsInitializer.latest())
    texts = env.from_source(
        source.build(), WatermarkStrategy.no_watermarks(), "reviews", Types.STRING()
    )
    sink = (
        KafkaSink.builder()
        .set_bootstrap_servers(brokers)
        .set_record_serializer(
            KafkaRecordSerializationSchema.builder()
            .set_topic(alerts)
            .set_value_serialization_schema(SimpleStringSchema())
            .build()
        )
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("reviews-scored")
        .build()
    )
    rows = scored(texts, model or Sentiment(MODEL.read_bytes()), replicas, cpu=cpu, memory=memory)
    rows.filter(lambda row: row.score < ALERT).map(alert_of, Types.STRING()).sink_to(sink)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--brokers", required=True, metavar="HOST:PORT")
    parser.add_argument("--reviews", default="reviews", metavar="TOPIC", help="(reviews)")
    parser.add_argument("--alerts", default="alerts", metavar="TOPIC", help="(alerts)")
    parser.add_argument("--replicas", default="1..2", metavar="LEAST..MOST", help="(1..2)")
    parser.add_argument("--bounded", action="store_true", help="end at the present end")
    chosen = parser.parse_args(arguments)
    least, _, most = chosen.replicas.partition("..")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    build(
        env,
        chosen.brokers,
        chosen.reviews,
        chosen.alerts,
        is_bounded=chosen.bounded,
        replicas=(int(least), int(most or least)),
    )
    env.execute("reviews scored")


if __name__ == "__main__":
    main()
