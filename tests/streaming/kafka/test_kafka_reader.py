"""One subtask that reads partitions: what it has given, what it says in snapshots, faults."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from flinkray.datastream.connectors.kafka import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka import partition_fetcher
from flinkray.streaming.kafka.records import KafkaPartitionSplit
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sources.source import END_OF_INPUT, OfSplit, ReaderContext
from flinkray.testing import ManualClock, wait_until
from tests.streaming.kafka.brokers import Broker
from tests.streaming.sources.test_kafka_source import builder

_TIMEOUT = 20.0


class Reading:
    """A reader, and what it has given."""

    def __init__(self, source: Any, *splits: KafkaPartitionSplit) -> None:
        self.context = ReaderContext(0, 1, ManualClock())
        self.reader = source.create_reader(self.context)
        self.given: dict[str, list[str]] = {}
        self.has_ended = False
        if splits:
            self.reader.add_splits(splits)

    def poll(self, most: int = 100) -> Any:
        polled = self.reader.poll(most)
        if isinstance(polled, OfSplit):
            assert isinstance(polled.batch, Block)
            self.given.setdefault(polled.split_id, []).extend(polled.batch.values)
        self.has_ended = polled is END_OF_INPUT
        return polled

    def until(self, condition: Any, what: str = "records", most: int = 100) -> Reading:
        def look() -> Any:
            self.poll(most)
            return condition()

        wait_until(look, _TIMEOUT, what)
        return self

    def until_it_has(self, count: int, most: int = 100) -> Reading:
        return self.until(lambda: sum(map(len, self.given.values())) >= count, most=most)

    @property
    def splits(self) -> list[KafkaPartitionSplit]:
        return sorted(self.reader.snapshot_state(1))


def whole(topic: str, partition: int = 0, offset: int = 0) -> KafkaPartitionSplit:
    return KafkaPartitionSplit(topic, partition, offset, None)


def test_snapshot_has_the_offsets_after_the_emitted_records(each_broker: Broker) -> None:
    topic = each_broker.topic(2)
    each_broker.produce(topic, "abcdefgh", 0)
    each_broker.produce(topic, "xy", 1)
    source = builder(each_broker, topic).build()
    reading = Reading(source, whole(topic), whole(topic, 1)).until_it_has(5, most=3)
    splits = reading.splits
    reading.reader.close()
    for split in splits:
        values = "xy" if split.partition else "abcdefgh"
        assert reading.given.get(f"{topic}-{split.partition}", []) == list(values[: split.offset])
    rest = Reading(source, *splits).until_it_has(10 - sum(split.offset for split in splits))
    rest.reader.close()
    both = [
        reading.given.get(f"{topic}-{n}", []) + rest.given.get(f"{topic}-{n}", []) for n in (0, 1)
    ]
    assert both == [list("abcdefgh"), list("xy")]


def test_split_ends_exactly_at_its_stopping_offset(each_broker: Broker) -> None:
    topic = each_broker.topic()
    each_broker.produce(topic, "abcdefgh")
    reading = Reading(builder(each_broker, topic).build(), KafkaPartitionSplit(topic, 0, 2, 5))
    reading.reader.notify_no_more_splits()
    reading.until(lambda: reading.has_ended, "the end")
    assert reading.given == {f"{topic}-0": ["c", "d", "e"]}
    assert reading.splits == []
    assert reading.context.finished_splits == [f"{topic}-0"]
    reading.reader.close()


def test_split_is_finished_at_the_poll_after_its_last_batch(broker: Broker) -> None:
    """Until then, the watermark of the split does not cover its last batch."""
    topic = broker.topic()
    broker.produce(topic, "ab")
    reading = Reading(builder(broker, topic).build(), KafkaPartitionSplit(topic, 0, 0, 2))
    reading.until_it_has(2)
    assert reading.context.finished_splits == []
    reading.poll()
    assert reading.context.finished_splits == [f"{topic}-0"]
    reading.reader.close()


def test_empty_split_ends_at_once(broker: Broker) -> None:
    topic = broker.topic()
    reading = Reading(builder(broker, topic).build(), KafkaPartitionSplit(topic, 0, 0, 0))
    assert reading.splits == []
    reading.reader.notify_no_more_splits()
    assert reading.poll() is END_OF_INPUT
    reading.reader.close()


def test_kafka_split_added_while_another_is_read_is_read_too(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.produce(topic, "a", 0)
    broker.produce(topic, "b", 1)
    reading = Reading(builder(broker, topic).build(), whole(topic)).until_it_has(1)
    reading.reader.add_splits([whole(topic, 1)])
    reading.until_it_has(2)
    assert reading.given == {f"{topic}-0": ["a"], f"{topic}-1": ["b"]}
    broker.produce(topic, "c", 0)
    reading.until_it_has(3)
    reading.reader.close()


def test_offset_of_the_reader_passes_control_records_at_the_end(broker: Broker) -> None:
    """The committed offset of the group then equals the end of the partition."""
    topic = broker.topic()
    with broker.transaction(f"control-{topic}") as transaction:
        transaction.produce(topic, b"a")
        transaction.commit_transaction()
    reading = Reading(builder(broker, topic).build(), whole(topic))
    reading.until(lambda: reading.splits[0].offset == 2, "the end of the partition")
    assert reading.given == {f"{topic}-0": ["a"]}
    reading.reader.close()


def test_offsets_are_committed_when_their_checkpoint_is_complete(each_broker: Broker) -> None:
    topic = each_broker.topic()
    each_broker.produce(topic, "abcd")
    group = f"group-{topic}"
    source = builder(each_broker, topic).set_group_id(group).build()
    reading = Reading(source, whole(topic)).until_it_has(2, most=2)
    reading.reader.snapshot_state(1)
    reading.until_it_has(4)
    reading.reader.snapshot_state(2)
    assert each_broker.committed(group, topic) is None
    reading.reader.notify_checkpoint_complete(1)
    reading.until(lambda: each_broker.committed(group, topic) == 2, "the first commit")
    reading.reader.notify_checkpoint_complete(2)
    reading.until(lambda: each_broker.committed(group, topic) == 4, "the second commit")
    reading.reader.close()


def test_offset_of_a_finished_kafka_split_is_committed(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, "abcd")
    group = f"group-{topic}"
    source = builder(broker, topic).set_group_id(group).build()
    reading = Reading(source, KafkaPartitionSplit(topic, 0, 0, 3)).until_it_has(3)
    assert reading.splits == []
    reading.reader.notify_checkpoint_complete(1)
    reading.until(lambda: broker.committed(group, topic) == 3, "the commit")
    reading.reader.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b,
        lambda b: b.set_group_id("g").set_property("commit.offsets.on.checkpoint", "false"),
    ],
)
def test_reader_that_never_commits_to_kafka_keeps_no_offsets_of_checkpoints(
    broker: Broker, change: Any
) -> None:
    topic = broker.topic()
    broker.produce(topic, "a")
    reading = Reading(change(builder(broker, topic)).build(), whole(topic)).until_it_has(1)
    reading.reader.snapshot_state(1)
    assert reading.reader._of_checkpoints == {}
    reading.reader.close()


def test_missing_offset_raises_or_reads_from_earliest_by_the_offset_reset_strategy(
    broker: Broker,
) -> None:
    topic = broker.topic()
    broker.produce(topic, "ab")
    strategy = KafkaOffsetResetStrategy
    none = KafkaOffsetsInitializer.committed_offsets(strategy.NONE)
    source = builder(broker, topic).set_group_id("g").set_starting_offsets(none).build()
    reading = Reading(source, whole(topic, offset=99))
    with pytest.raises(StreamError, match=f"no record of {topic}-0 at offset 99"):
        reading.until(lambda: False)
    reading.reader.close()
    earliest = builder(broker, topic).build()
    again = Reading(earliest, whole(topic, offset=99)).until_it_has(2)
    assert again.given == {f"{topic}-0": ["a", "b"]}
    (split,) = again.reader.snapshot_state(1)
    assert split.offset == 2, "what was read is not read again"
    again.reader.close()


NEVER_BEFORE_ITS_OFFSET = [
    KafkaOffsetsInitializer.earliest(),
    KafkaOffsetsInitializer.latest(),
    KafkaOffsetsInitializer.timestamp(1),
]


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("starting", NEVER_BEFORE_ITS_OFFSET, ids=["earliest", "latest", "time"])
def test_reading_continues_at_the_first_existing_record_after_an_expired_offset(
    broker: Broker, caplog: pytest.LogCaptureFixture, starting: Any, is_read: bool
) -> None:
    """With ``latest``, records that still existed were skipped."""
    topic, other = broker.topic(), broker.topic()
    broker.produce(topic, "abcdefgh")
    broker.produce(other, "xy")
    broker.expire(topic, before=5)
    source = builder(broker, topic, other).set_starting_offsets(starting).build()
    split = whole(topic, offset=2)._replace(is_read=is_read)
    with caplog.at_level(logging.WARNING, "flinkray.kafka"):
        reading = Reading(source, split, whole(other)).until_it_has(5)
    assert reading.given == {f"{topic}-0": ["f", "g", "h"], f"{other}-0": ["x", "y"]}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"partition 0 of topic {topic} has no record at offset 2" in warning
    assert "its first offset is 5, 3 records have gone" in warning
    assert reading.splits[0].offset == 8 or reading.splits[1].offset == 8
    broker.produce(topic, "i")
    reading.until_it_has(6)
    assert reading.given[f"{topic}-0"] == ["f", "g", "h", "i"]
    reading.reader.close()


@pytest.mark.parametrize(
    "starting",
    [
        KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.LATEST),
        KafkaOffsetsInitializer.offsets({}, KafkaOffsetResetStrategy.LATEST),
    ],
)
def test_warning_counts_records_skipped_after_an_expired_offset_with_latest(
    broker: Broker, caplog: pytest.LogCaptureFixture, starting: Any
) -> None:
    topic = broker.topic()
    broker.produce(topic, "abcdefgh")
    broker.expire(topic, before=5)
    source = builder(broker, topic).set_group_id("g").set_starting_offsets(starting).build()
    reading = Reading(source, whole(topic, offset=2)._replace(is_read=True))
    reading.until(lambda: reading.splits[0].offset == 8, "the end")
    assert "skips 3 records that are there" in caplog.text
    broker.produce(topic, "i")
    assert reading.until_it_has(1).given == {f"{topic}-0": ["i"]}
    reading.reader.close()


def test_bounded_split_ends_if_all_its_records_have_expired(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, "abcdefgh")
    broker.expire(topic, before=5)
    split = KafkaPartitionSplit(topic, 0, 2, 4, is_read=True)
    reading = Reading(builder(broker, topic).build(), split)
    reading.reader.notify_no_more_splits()
    reading.until(lambda: reading.has_ended, "the end")
    assert reading.given == {}
    reading.reader.close()


def test_records_that_expire_before_they_are_read_are_counted_in_a_warning(
    mock_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader is too slow: Kafka deletes records before the reader fetches them."""
    topic = mock_broker.topic()
    mock_broker.produce(topic, "a")
    source = builder(mock_broker, topic).set_starting_offsets(KafkaOffsetsInitializer.latest())
    before = Reading(source.build(), whole(topic)).until_it_has(1)
    (split,) = before.splits
    before.reader.close()
    mock_broker.produce(topic, ["x" * 200_000] * 60)  # it keeps 5 MB of each partition
    reading = Reading(source.build(), split)
    reading.until(lambda: reading.splits[0].offset == 61, "the end")
    gone = 60 - len(reading.given[f"{topic}-0"])
    assert gone > 0
    assert f"{gone} records have gone" in caplog.text
    reading.reader.close()


@pytest.mark.parametrize("left", ["", "x", "xy"])
@pytest.mark.parametrize(
    "starting",
    [
        KafkaOffsetsInitializer.earliest(),
        KafkaOffsetsInitializer.latest(),
        KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.NONE),
    ],
    ids=["earliest", "latest", "none"],
)
def test_reading_a_topic_that_was_deleted_and_recreated_raises_an_error(
    broker: Broker, left: str, starting: KafkaOffsetsInitializer
) -> None:
    topic = broker.topic()
    broker.produce(topic, "abc")
    before = Reading(builder(broker, topic).build(), whole(topic)).until_it_has(3)
    (split,) = before.reader.snapshot_state(1)
    before.reader.close()
    broker.delete(topic)
    broker.create(topic)
    broker.produce(topic, left)
    source = builder(broker, topic).set_group_id("g").set_starting_offsets(starting).build()
    reading = Reading(source, split)
    with pytest.raises(StreamError, match=rf"{topic}-0 .*made (again|anew)"):
        reading.until(lambda: False)
    reading.reader.close()


def test_split_stored_by_an_earlier_version_is_read_from_its_offset(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, "ab")
    stored: Any = tuple(whole(topic, offset=1))[:4]
    reading = Reading(builder(broker, topic).build(), stored)
    assert reading.until_it_has(1).given == {f"{topic}-0": ["b"]}
    reading.reader.close()


def test_vanished_partition_is_logged_and_others_are_read(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = broker.topic(), broker.topic()
    broker.produce(gone, "a")
    broker.produce(stays, "b")
    source = builder(broker, gone, stays).set_property("topic.metadata.refresh.interval.ms", "100")
    source.set_property("topic.metadata.propagation.max.ms", "100")
    reading = Reading(source.build(), whole(gone), whole(stays)).until_it_has(2)
    with caplog.at_level(logging.WARNING, "flinkray.kafka"):
        broker.delete(gone)
        reading.until(lambda: "a partition is not there" in caplog.text, "the warning")
        assert gone in caplog.text
    broker.produce(stays, "c")
    reading.until_it_has(3)
    assert reading.given[f"{stays}-0"] == ["b", "c"]
    reading.reader.close()


def test_kafka_records_beyond_the_read_ahead_limit_are_read_later(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_fetcher, "AHEAD", 10)
    monkeypatch.setattr(partition_fetcher, "_TAKEN_AT_ONCE", 4)
    topic = broker.topic()
    values = [str(n) for n in range(200)]
    broker.produce(topic, values)
    reading = Reading(builder(broker, topic).build(), whole(topic))
    wait_until(lambda: reading.reader._fetcher._ready >= 10, _TIMEOUT, "records that lie ready")
    assert reading.reader._fetcher._ready < 20
    reading.until_it_has(200, most=7)
    assert reading.given == {f"{topic}-0": values}
    reading.reader.close()
