"""The text of an error for other processes: whatever the error is, the text can be sent."""

from __future__ import annotations

import pytest

from flinkray.core.error_text import (
    MOST_BYTES,
    message_of,
    sendable,
    summary_of,
    traceback_of,
)


class SilentError(Exception):
    """Cannot say what has happened."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class Text(str):
    """Not a plain str."""

    __slots__ = ()


def test_type_and_message_are_in_the_summary() -> None:
    assert summary_of(ValueError("seven")) == "ValueError: seven"
    assert summary_of(ValueError()) == "ValueError"
    assert summary_of(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_what_a_message_that_cannot_be_had_has_raised_is_said() -> None:
    assert summary_of(SilentError()) == "SilentError: (its __str__ raised KeyboardInterrupt)"
    assert "SilentError" in traceback_of(SilentError(), None)


def test_lone_surrogates_are_written_out() -> None:
    assert message_of(ValueError("a\ud800b")) == r"a\ud800b"
    assert r"ValueError: a\ud800b" in traceback_of(ValueError("a\ud800b"), None)


def test_every_text_is_a_plain_one() -> None:
    assert type(message_of(ValueError(Text("x")))) is str
    assert type(sendable(Text("x"))) is str


@pytest.mark.parametrize("letter", ["x", "ü", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\ud800"])
@pytest.mark.parametrize("limit", [*range(90, 100), MOST_BYTES])
def test_the_limit_counts_bytes_and_what_is_cut_is_said(letter: str, limit: int) -> None:
    text = sendable(letter * 100_000, limit)
    assert limit - 20 < len(text.encode()) <= limit
    assert "(shortened: it has 100000 characters)" in text
    assert text.startswith(letter.encode(errors="backslashreplace").decode())


def test_what_fits_is_left_as_it_is() -> None:
    assert sendable("ü" * 32, 64) == "ü" * 32
    assert sendable("", 64) == ""
