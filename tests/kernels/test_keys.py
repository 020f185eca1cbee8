"""Numbers and key groups of keys: compiled kernels give what Arrow and Python code give."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels import keys as kernels
from flinkray.kernels.compiled import native
from flinkray.state.key_encoding import encode_key
from flinkray.state.key_group_assignment import key_group_of, stable_hash
from flinkray.state.key_numbers import DENSE_RANGE, KeyNumbers

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with Python code")

SMALL = st.integers(-3, 3)
LETTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(LETTERS, max_size=20) | st.text("ab\0é𐍈", max_size=9)
MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))


def integers(bits: int) -> st.SearchStrategy[int]:
    return SMALL | st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((pa.type_for_alias(f"int{bits}"), integers(bits)) for bits in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{bits}"), integers(bits).map(abs)) for bits in (8, 16, 32, 64)),
    (pa.uint64(), st.integers((1 << 64) - 3, (1 << 64) - 1)),
    (pa.float64(), st.floats() | SMALL.map(float) | st.just(-0.0)),
    (pa.float32(), st.floats(width=32) | SMALL.map(float)),
    (pa.float16(), SMALL.map(np.float16)),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), st.binary(max_size=20)),
    (pa.large_binary(), st.binary(max_size=9)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.binary(11), st.sampled_from([b"12345678901", b"12345678\0\0\0"])),
    (pa.decimal128(30, 2), st.decimals(-999, 999, places=2)),
    (pa.decimal256(50, 1), SMALL),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("ms", "UTC"), MOMENTS.map(lambda m: m.replace(microsecond=0))),
    (pa.duration("s"), SMALL.map(lambda days: datetime.timedelta(days))),
    (pa.time64("us"), st.times()),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "a-longer-text"])),
    (pa.null(), st.none()),
]


def chunk(data: st.DataObject, kind: pa.DataType, values: st.SearchStrategy[Any]) -> pa.Array:
    """Return a column, which may have nulls, and may be a part of a longer column."""
    drawn = data.draw(st.lists(values | st.none() if data.draw(st.booleans()) else values))
    begin = data.draw(st.integers(0, len(drawn)))
    return pa.array(drawn, kind).slice(begin, data.draw(st.integers(0, len(drawn))))


@given(st.data())
def test_slots_of_columns_of_any_types_equal_those_of_the_dictionary(data: st.DataObject) -> None:
    """Keys that are equal across types have one slot; keys of rows and columns mix."""
    compiled, plain = KeyNumbers(), KeyNumbers()
    first: dict[bytes, int] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        column = chunk(data, *data.draw(st.sampled_from(COLUMNS)))
        slots = compiled.slots_of(column)
        assert slots.dtype == np.int32
        values = column.to_pylist()
        encoded = [encode_key(value) for value in values]
        if not pa.types.is_dictionary(column.type):  # its order is that of the entries
            assert slots.tolist() == [first.setdefault(key, len(first)) for key in encoded]
            assert slots.tolist() == [plain.slot_of(value) for value in values]
        first |= dict(zip(encoded, slots.tolist(), strict=True))
        assert [first[key] for key in encoded] == slots.tolist()
        for key in compiled.keys[len(plain) :]:
            plain.slot_of(key)
    assert list(map(encode_key, compiled.keys)) == list(first)


@given(st.data())
def test_numbers_of_keys_equal_those_of_dictionary_encoding(data: st.DataObject) -> None:
    limit = data.draw(st.none() | st.integers(0, 3))
    kind, values = data.draw(st.sampled_from(COLUMNS[:-2]))
    compiled = kernels.NumberedKeys(limit)

    def numbers_of(keys: list[Any]) -> list[int]:
        return [stable_hash(key) for key in keys]

    for _ in range(3):
        column = chunk(data, kind, values)
        expected = kernels.encoded_numbers(column, numbers_of)
        assert compiled.of(column, numbers_of).tolist() == expected.tolist()


def test_many_keys_keep_their_slots_while_the_table_grows() -> None:
    spread = np.random.default_rng(1).permutation(50_000)
    for column in (
        pa.array(spread * DENSE_RANGE),
        pa.array([f"{key}" for key in spread]),
        pa.array([f"a key of more than eight letters {key}" for key in spread], pa.large_string()),
    ):
        numbers = KeyNumbers()
        again = numbers.slots_of(column.slice(0, 20_000)), numbers.slots_of(column)
        assert again[0].tolist() == list(range(20_000))
        assert again[1].tolist() == list(range(50_000))
        assert numbers.keys == column.to_pylist()


def test_key_that_python_refuses_leaves_no_number_behind() -> None:
    numbers, asked = kernels.NumberedKeys(), []

    def refuse(keys: list[Any]) -> list[int]:
        asked.append(keys)
        raise ValueError("no key")

    for _ in range(2):
        with pytest.raises(ValueError, match="no key"):
            numbers.of(pa.array(["a", "b", "a"]), refuse)
    assert asked == [["a", "b"]] * 2
    assert numbers.of(pa.array(["b"]), lambda keys: [7]).tolist() == [7]


@pytest.mark.parametrize("kind", [*dict(COLUMNS[:8]), pa.string(), pa.large_string()], ids=str)
def test_owners_of_key_groups_equal_those_of_the_python_code(kind: pa.DataType) -> None:
    values = next(values for other, values in COLUMNS if other == kind)

    @given(st.data(), st.integers(1, 1 << 15))
    def check(data: st.DataObject, number: int) -> None:
        column = chunk(data, kind, values)
        owners = np.arange(number, dtype=np.int32) * 3
        found = kernels.owners_of_keys(column, owners, lambda: key_group_of(None, number))
        if kind == pa.uint64():
            assert found is None
        else:
            assert found is not None
            assert found.tolist() == [3 * key_group_of(key, number) for key in column.to_pylist()]

    check()


@given(st.lists(st.binary(max_size=6), min_size=1))
def test_bytes_have_key_groups_only_if_they_are_utf_8(values: list[bytes]) -> None:
    column = pa.Array.from_buffers(pa.string(), len(values), pa.array(values).buffers())
    found = kernels.owners_of_keys(column, np.arange(128, dtype=np.int32), lambda: 0)
    try:
        expected = [key_group_of(value.decode(), 128) for value in values]
    except UnicodeDecodeError:
        assert found is None
    else:
        assert found is not None
        assert found.tolist() == expected


@given(st.data(), st.integers(-(1 << 64), 1 << 64) | st.integers(-9, 9))
def test_looked_up_numbers_equal_those_of_the_array(data: st.DataObject, base: int) -> None:
    table = np.array([4, 0, 7, 2], np.int32)
    kind, values = data.draw(st.sampled_from(COLUMNS[:8]))
    column = pa.array(data.draw(st.lists(values)), kind)
    found = kernels.looked_up(column.to_numpy(zero_copy_only=False), table, base)
    places = [key - base for key in column.to_pylist()]
    if all(0 <= place < len(table) for place in places) and kind != pa.uint64():
        assert found is None or found.tolist() == [table[place] for place in places]
        assert found is not None or not -(1 << 63) <= base < (1 << 63) - len(table)
    elif kind != pa.uint64():
        assert found is None
    assert kernels.looked_up(np.array([3]), np.array([0, -1], np.int32), 2) is None


def test_buffers_that_do_not_hold_all_rows_are_refused() -> None:
    assert native is not None
    table, out = native.KeyTable(-4, 0), np.empty(2, np.int32)
    wide, text = b"12345678" * 2, np.array([0, 1, 3], np.int32)
    for layout, offset, rows, validity, offsets, data in [
        (8, 0, 3, None, None, wide),
        (8, 1, 2, None, None, wide),
        (8, -1, 2, None, None, wide),
        (8, 0, -1, None, None, wide),
        (8, (1 << 63) - 1, 2, None, None, wide),
        (0, 127, 2, None, None, wide),
        (8, 0, 2, b"", None, wide),
        (-4, 1, 2, None, text, b"abc"),
        (-4, 0, 2, None, None, b"abc"),
        (-3, 0, 2, None, text, b"abc"),
    ]:
        with pytest.raises(ValueError, match=r"layout or size|too short"):
            table.add((layout, offset, rows, validity, offsets, data), out, out.copy())
    for wrong in ([0, 1, 4], [0, 2, 1], [-1, 0, 1]):
        column = (-4, 0, 2, None, np.array(wrong, np.int32), b"abc")
        with pytest.raises(ValueError, match="beyond the data"):
            table.add(column, out, out.copy())
        assert native.owners_of_texts(column, np.zeros(4, np.int32), 0, out) is False
    with pytest.raises(ValueError, match="a length"):
        table.add((-4, 0, 2, None, text, b"abc"), out, np.empty(1, np.int32))
    with pytest.raises(ValueError, match="no texts"):
        native.owners_of_texts((8, 0, 2, None, None, wide), np.zeros(4, np.int32), 0, out)
    for keys, owners in ((wide, b""), (wide + wide, b"1234")):
        with pytest.raises(ValueError, match="lengths differ"):
            native.owners_of_integers(keys, owners, 0, out)
    with pytest.raises(ValueError, match="out of range"):
        native.look_up(wide, out, (1 << 63) - 1, out.copy())
    with pytest.raises(TypeError, match="tuple"):
        table.add([], out, out)


def test_state_written_with_kernels_is_read_without_and_the_reverse() -> None:
    """Slots, key groups and channels are the same in a process without compiled kernels."""
    code = (
        "import pyarrow as pa, sys\n"
        "from flinkray.state.key_group_assignment import key_groups_of_array\n"
        "from flinkray.state.key_numbers import KeyNumbers\n"
        "numbers = KeyNumbers()\n"
        "for values in ([3, -7, 1 << 60, None], [3.0, 0.5, -0.0, float('nan')],\n"
        "               ['a', None, 'ü𐍈', 'b' * 30, ''], [True, False]):\n"
        "    column = pa.array(values)\n"
        "    print(numbers.slots_of(column).tolist())\n"
        "    print(key_groups_of_array(column, 1 << 15).tolist())\n"
        "print(numbers.keys)\n"
    )
    both = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "FLINKRAY_KERNELS": switch},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for switch in ("on", "off")
    ]
    assert both[0] == both[1]
