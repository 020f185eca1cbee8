"""Kafka, by way of librdkafka (``confluent-kafka``, the extra ``kafka``).

A partition is a split, and its offset the split's state.  The enumerator looks for partitions, and
decides once where each begins and ends; readers fetch in threads of their own.
"""

__all__ = ["offsets", "records", "source"]
