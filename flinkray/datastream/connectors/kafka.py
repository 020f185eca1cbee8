"""Kafka sources and sinks: a module of PyFlink's. Needs ``pip install 'flinkray[kafka]'``.

>>> from flinkray.datastream.common import SimpleStringSchema
>>> source = (
...     KafkaSource.builder()
...     .set_bootstrap_servers("localhost:9092")
...     .set_topics("clicks")
...     .set_group_id("shop")
...     .set_starting_offsets(KafkaOffsetsInitializer.earliest())
...     .set_value_only_deserializer(SimpleStringSchema())
...     .build()
... )
>>> source.get_boundedness().name
'CONTINUOUS_UNBOUNDED'

>>> serializer = (
...     KafkaRecordSerializationSchema.builder()
...     .set_topic("totals")
...     .set_value_serialization_schema(SimpleStringSchema())
...     .build()
... )
>>> sink = (
...     KafkaSink.builder()
...     .set_bootstrap_servers("localhost:9092")
...     .set_record_serializer(serializer)
...     .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
...     .set_transactional_id_prefix("shop-totals")
...     .build()
... )
>>> sink.has_committer
True
"""

from flinkray.streaming.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from flinkray.streaming.kafka.records import (
    KafkaConsumerRecord,
    KafkaProducerRecord,
    KafkaTopicPartition,
)
from flinkray.streaming.kafka.sink import (
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
    KafkaSink,
    KafkaSinkBuilder,
    KafkaTopicSelector,
    _SerializesByParts,  # noqa: F401 - stored programs refer to it here
)
from flinkray.streaming.kafka.source import (
    KafkaRecordDeserializationSchema,
    KafkaSource,
    KafkaSourceBuilder,
)
from flinkray.streaming.sinks.sink import DeliveryGuarantee

__all__ = [
    "DeliveryGuarantee",
    "KafkaConsumerRecord",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaProducerRecord",
    "KafkaRecordDeserializationSchema",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
]
