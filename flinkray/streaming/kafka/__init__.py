"""Kafka sources and sinks, based on librdkafka (``confluent-kafka``, the extra ``kafka``).

Source: a partition is a split, and its offset is the split's state. Readers fetch in their own
threads.
Sink: writers keep the records between checkpoints; committers write each part in a transaction.
"""

__all__ = ["offsets", "records", "sink", "source"]
