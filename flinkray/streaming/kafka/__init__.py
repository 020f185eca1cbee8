"""Kafka, by way of librdkafka (``confluent-kafka``, the extra ``kafka``).

The source: a partition is a split, and its offset the split's state.  The enumerator looks for
partitions, and decides once where each begins and ends; readers fetch in threads of their own.

The sink: writers keep what comes between two checkpoints, and committers write it, each part in one
transaction.
"""

__all__ = ["offsets", "records", "sink", "source"]
