"""What elements are on their way, and that they are the same afterwards."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.streaming.errors import UnpicklableRecordsError, UnreadableRecordsError
from flinkray.streaming.network import BatchTooLargeError, WireFormatError, element_codec
from flinkray.streaming.network.buffers import in_halves, in_pieces
from flinkray.streaming.network.element_codec import SCATTER_FROM, ElementDecoder, ElementEncoder
from flinkray.streaming.operator_errors import operator_error
from flinkray.streaming.records.elements import Block, Columns, Element, Origin, Watermark, together
from flinkray.streaming.records.row import Row, RowKind


def there_and_back(*elements: Element) -> list[Any]:
    encoder, known, decoder = ElementEncoder(), set[int](), ElementDecoder()
    came: list[Element] = []
    for element in elements:
        encoded = encoder.encode([element], known)
        data = b"".join(bytes(part) for part in encoded.parts)
        assert len(data) == encoded.size
        assert len(data) % 8 == 0
        came += decoder.decode(encoded.descriptions, pa.py_buffer(data))
    return came


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner), max_leaves=8
)


@given(st.lists(values), st.booleans())
def test_python_values_are_equal_after_encoding_and_decoding(
    content: list[Any], has_times: bool
) -> None:
    times = list(range(len(content))) if has_times else None
    (block,) = there_and_back(Block(content, times, content))
    assert (block.values, block.timestamps, block.keys) == (content, times, content)
    assert [type(value) for value in block.values] == [type(value) for value in content]


def test_rows_keep_field_names_and_row_kinds_after_encoding_and_decoding() -> None:
    rows = [Row(a=1, b="x"), Row(a=2, b=None)]
    rows[1].set_row_kind(RowKind.DELETE)
    for content in (rows, [Row(1, 2)], [Row(a=1), Row(b=1)], [Row(a=1), 5]):
        (block,) = there_and_back(Block(content))
        assert block.values == content


def test_arrays_are_encoded_outside_of_the_pickle() -> None:
    array = np.arange(10_000.0)
    encoded = ElementEncoder().encode([Block([array])], set())
    assert len(encoded.parts[0]) < 1_000
    (block,) = there_and_back(Block([array]))
    assert (block.values[0] == array).all()


def test_received_arrays_are_writeable_if_they_were_before() -> None:
    """A function may change its array; other users of the same buffer, such as stored elements in
    flight, do not see the change."""
    fixed = np.arange(3)
    fixed.flags.writeable = False
    content = [np.arange(3), np.arange(100_000), fixed, pa.array([1, 2, 3])]
    encoded = ElementEncoder().encode([Block(content)], set())
    body = pa.py_buffer(b"".join(bytes(part) for part in encoded.parts))
    for _ in range(2):
        ((block,)) = ElementDecoder().decode(encoded.descriptions, body)
        assert isinstance(block, Block)
        small, large, still_fixed, of_arrow = block.values
        assert (small.tolist(), large[:2].tolist()) == ([0, 1, 2], [0, 1])
        small += 1
        large += 1
        assert not still_fixed.flags.writeable
        assert of_arrow == pa.array([1, 2, 3])


class _OfMain:
    """A class that other processes cannot import."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_values_of_classes_that_cannot_be_imported_are_sent_with_their_class() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_OfMain, "__module__", "__main__")
        with pytest.raises(pickle.PicklingError):
            pickle.dumps(_OfMain(1))
        first, second = there_and_back(Block([_OfMain(1)]), Block([_OfMain(2)]))
        assert [first.values[0].number, second.values[0].number] == [1, 2]


class Stubborn:
    """Not to be pickled, by the user's own code."""

    def __reduce__(self) -> str:
        raise LookupError("it stays here")

    def __repr__(self) -> str:
        return "Stubborn()"


class Nameless(Stubborn):
    """Raises for its text, too."""

    def __repr__(self) -> str:
        raise OSError("no text either")


@pytest.mark.parametrize(
    ("values", "reason", "record"),
    [
        ([1, ("x", (n for n in [1])), 2], "TypeError: cannot pickle 'generator'", "('x', <gene"),
        ([Stubborn()], "LookupError: it stays here", "Stubborn()"),
        ([Nameless()], "LookupError: it stays here", "<Nameless, whose __repr__ raised OSError>"),
        ([Row(1), Row(Stubborn())], "LookupError: it stays here", "<Row(Stubborn())>"),
    ],
)
def test_error_about_an_unpicklable_record_names_record_reason_and_origin(
    values: list[Any], reason: str, record: str
) -> None:
    encoder = ElementEncoder()
    encoder.writer = "lock up", "1/2"
    with pytest.raises(UnpicklableRecordsError, match="cannot be sent") as refused:
        encoder.encode([Block(values, origin=Origin("numbers (1/2)", 7))], set())
    error = refused.value
    assert reason in str(error)
    assert error.record.startswith(record)
    assert (error.operator, error.subtask) == ("lock up", "1/2")
    lines = str(operator_error(error, "the task")).splitlines()
    assert lines[-3] == "in operator 'lock up', subtask 1/2"
    assert lines[-2].startswith(f"on record {record}")
    assert lines[-1] == "which came from numbers (1/2), in the batch from record 7 on"
    frames = [line for line in lines if line.startswith("  File ")]
    assert [("__reduce__" in line) for line in frames] == ([True] if "stays" in reason else [])


TABLES = {
    "numbers": pa.record_batch({"n": np.arange(10)}),
    "many numbers": pa.record_batch({"n": np.arange(SCATTER_FROM)}),
    "slice": pa.record_batch({"n": np.arange(100_000)}).slice(50_001, 7),
    "large slice": pa.record_batch({"n": np.arange(100_000)}).slice(3, 90_000),
    "nulls and texts": pa.record_batch({"s": ["x", None, "y" * 100], "b": [True, None, False]}),
    "nested": pa.record_batch({"l": [[1, 2], None, []], "s": [{"a": 1}, {"a": None}, None]}),
    "dictionary": pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode()}),
    "nested dictionary": pa.record_batch(
        {"d": pa.StructArray.from_arrays([pa.array(["a", "b"]).dictionary_encode()], ["x"])}
    ),
    "no rows": pa.record_batch({"n": pa.array([], pa.int64())}),
    "no columns": pa.RecordBatch.from_pylist([{}, {}], schema=pa.schema([])),
    "with metadata": pa.record_batch({"n": [1]}).replace_schema_metadata({"k": "v"}),
}


@pytest.mark.parametrize("batch", TABLES.values(), ids=TABLES)
def test_every_arrow_batch_is_equal_after_encoding_and_decoding(batch: pa.RecordBatch) -> None:
    times = np.arange(batch.num_rows)
    first, second = there_and_back(Columns(batch, times), Columns(batch, None, None, True))
    assert first.batch.equals(batch, check_metadata=True)
    assert first.timestamps.tolist() == times.tolist()
    assert second.batch.equals(batch, check_metadata=True)
    assert second.scalar
    first.batch.validate(full=True)


def test_schema_is_sent_once_to_each_receiver() -> None:
    encoder = ElementEncoder()
    batches = [Columns(pa.record_batch({name: [1]})) for name in "aabab"]
    known = set[int]()
    counts = [len(encoder.encode([batch], known).descriptions) for batch in batches]
    assert counts == [2, 1, 2, 1, 1]
    assert len(encoder.encode([batches[0]], set()).descriptions) == 2


def test_large_arrow_batch_is_encoded_without_copying_its_memory() -> None:
    batch = pa.record_batch({"n": np.arange(100_000)})
    encoded = ElementEncoder().encode([Columns(batch)], set())
    address = batch.column(0).buffers()[1].address
    assert address in [pa.py_buffer(part).address for part in encoded.parts]


def test_damaged_bytes_of_elements_are_refused() -> None:
    encoded = ElementEncoder().encode([Columns(pa.record_batch({"n": [1]}))], set())
    data = b"".join(bytes(part) for part in encoded.parts)
    for descriptions, body in (
        (encoded.descriptions, data[:16]),
        (encoded.descriptions, bytes(len(data))),
        (encoded.descriptions[1:], data),
        (encoded.descriptions, None),
        ([(77,)], None),
        ([()], None),
        ([("x", 1)], data),
    ):
        with pytest.raises(WireFormatError):
            ElementDecoder().decode(descriptions, body and pa.py_buffer(body))


def refuse() -> None:
    raise LookupError("not to be unpickled")


class Unwilling:
    def __reduce__(self) -> Any:
        return refuse, ()


def test_record_that_cannot_be_unpickled_raises_another_error_than_damaged_bytes() -> None:
    encoded = ElementEncoder().encode([Block([Unwilling()])], set())
    body = pa.py_buffer(b"".join(bytes(part) for part in encoded.parts))
    told = "cannot be unpickled in the one that reads them: LookupError: not to be unpickled"
    with pytest.raises(UnreadableRecordsError, match=told) as caught:
        ElementDecoder().decode(encoded.descriptions, body)
    assert isinstance(caught.value.__cause__, LookupError)


def test_adjacent_batches_of_the_same_kind_are_merged() -> None:
    merged = together(
        [Block([1], [1]), Block([2], [2]), Watermark(2), Block([3]), Block([4], None, ["k"])]
    )
    assert [getattr(element, "values", element) for element in merged] == [
        [1, 2],
        Watermark(2),
        [3],
        [4],
    ]


def test_batch_above_the_size_limit_is_sent_in_several_batches() -> None:
    block = Block(list(range(10)), list(range(10)), list("abcdefghij"))
    pieces = in_pieces(block, 50 * 2**20)
    assert [piece.values for piece in pieces] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]  # type: ignore[union-attr]
    assert pieces[1].keys == ["d", "e", "f"]  # type: ignore[union-attr]
    assert in_pieces(block, 1000) == [block]
    columns = Columns(pa.record_batch({"n": np.arange(10)}), np.arange(10))
    assert [len(piece) for piece in in_halves(columns)] == [5, 5]  # type: ignore[arg-type]


def test_record_larger_than_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_codec, "MAX_BODY", 1000)
    with pytest.raises(BatchTooLargeError, match=r"1 records take .* at most 1000"):
        there_and_back(Block(["x" * 2000]))
