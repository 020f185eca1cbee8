"""Errors, and the texts of errors for other processes."""

from __future__ import annotations

import pickle

import pytest

from flinkray.core import errors
from flinkray.core.error_text import MOST_BYTES, message_of, sendable, summary_of, traceback_of
from flinkray.core.errors import RemoteError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc.wire import codec


class Text(str):
    """Not a plain str."""

    __slots__ = ()


def test_summary_of_an_error_has_its_type_and_message() -> None:
    assert summary_of(ValueError("seven")) == "ValueError: seven"
    assert summary_of(ValueError()) == "ValueError"
    assert summary_of(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_str_subclass_in_an_error_message_becomes_a_plain_str() -> None:
    assert type(message_of(ValueError(Text("x")))) is str
    assert type(sendable(Text("x"))) is str


@pytest.mark.parametrize("letter", ["x", "ü", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\ud800"])
@pytest.mark.parametrize("limit", [*range(90, 100), MOST_BYTES])
def test_text_is_shortened_to_a_number_of_bytes_with_a_note_about_its_length(
    letter: str, limit: int
) -> None:
    text = sendable(letter * 100_000, limit)
    assert limit - 20 < len(text.encode()) <= limit
    assert "(shortened: it has 100000 characters)" in text
    assert text.startswith(letter.encode(errors="backslashreplace").decode())


def test_text_within_the_limit_is_unchanged() -> None:
    assert sendable("ü" * 32, 64) == "ü" * 32
    assert sendable("", 64) == ""


class Shouting(str):
    __slots__ = ()

    def __getitem__(self, item: object) -> str:
        raise RuntimeError("do not touch")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class OddTextError(Exception):
    def __str__(self) -> str:
        return Shouting("loud")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise KeyError("no name")


class OfOddClassError(Exception, metaclass=Nameless):
    pass


class NoNumberError(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise GeneratorExit


HOSTILE: dict[str, tuple[BaseException, str]] = {
    "half a surrogate pair": (ValueError("\udc80 wrong"), r"ValueError: \udc80 wrong"),
    "__str__ raises": (UnprintableError(), "UnprintableError: (its __str__ raised SystemExit)"),
    "a subclass of str": (OddTextError(), "OddTextError: loud"),
    "a class without a name": (OfOddClassError("x"), "OfOddClassError: x"),
    "notes that raise": (NoNumberError("x"), "NoNumberError: x"),
    "no text": (GeneratorExit(), "GeneratorExit"),
}


@pytest.mark.parametrize(("error", "summary"), HOSTILE.values(), ids=HOSTILE)
def test_summary_and_traceback_of_any_exception_can_be_encoded_as_utf8(
    error: BaseException, summary: str
) -> None:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 - of any kind
        traceback = traceback_of(raised, raised.__traceback__)
    assert summary_of(error) == summary
    assert "test_error_text.py" in traceback
    for text in (summary_of(error), message_of(error), traceback):
        assert type(text) is str
        text.encode()


@pytest.mark.parametrize(("error", "summary"), HOSTILE.values(), ids=HOSTILE)
def test_message_of_any_exception_arrives_when_the_exception_is_sent(
    error: BaseException, summary: str
) -> None:
    """An exception that cannot be sent arrives as a RemoteError; the answer is not lost."""
    arrived = codec.decode(codec.encode_error(error))
    text = f"{arrived.args[0]}: {arrived}" if isinstance(arrived, RemoteError) else str(arrived)
    assert summary.partition(": ")[2] in text


@pytest.mark.parametrize("letter", ["a", "ä", "\U0001f600"])
def test_text_above_the_limit_is_shortened_in_its_middle(letter: str) -> None:
    text = sendable("begin" + letter * 5 * MOST_BYTES + "end")
    assert text.startswith("begin")
    assert text.endswith("end")


def test_summary_of_a_shortened_message_has_the_length_of_the_message() -> None:
    summary = summary_of(ValueError("x" * 100_000))
    assert "(shortened: it has 100000 characters)" in summary
    assert len(summary.encode()) <= MOST_BYTES


JOB = JobID(b"j" * 16)
SAMPLES: list[errors.FlinkRayError] = [
    errors.FencingTokenError("address", "Gateway.method", JobMasterId(bytes(16)), None),
    errors.RemoteError("KeyError", "'x'"),
    errors.ProcessExistsError("JobMaster-1"),
    errors.JobNotFoundError(JOB),
    errors.JobExecutionError(JOB, "the cause"),
    errors.RpcTimeoutError("Gateway.method"),
    errors.ConfigurationError("key"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_flinkray_error_is_equal_after_pickling_and_after_encoding_and_decoding(
    error: errors.FlinkRayError,
) -> None:
    for copy in (pickle.loads(pickle.dumps(error)), codec.decode(codec.encode(error))):
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert copy.args == error.args
        assert vars(copy).keys() - {"remote_traceback"} == vars(error).keys()


def test_errors_subclass_built_in_errors_and_say_if_they_are_retryable() -> None:
    assert issubclass(errors.RpcTimeoutError, TimeoutError)
    assert issubclass(errors.ConfigurationError, ValueError)
    assert errors.RecipientUnreachableError.retryable
    assert not errors.HandshakeError.retryable
