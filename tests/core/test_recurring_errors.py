"""Which errors would come again, and how they are known again."""

from __future__ import annotations

import pytest

from flinkray.core.errors import (
    ConfigurationError,
    FencingTokenError,
    FlinkRayError,
    JobNotFinishedError,
    RpcSerializationError,
    RpcTimeoutError,
    SuppressRestartsError,
)
from flinkray.core.ids import JobID
from flinkray.core.recurring_errors import ProgramError, outlook_of, program_error_of, will_recur
from flinkray.state.disk import StateStorageError
from flinkray.streaming.errors import FileNotReadyError, StreamError, UnavailableError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.sinks.sink import SinkError, SinkUnavailableError


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


Error = type("Error", (Exception,), {})
"""Base class of a database driver, as in PEP 249."""
DatabaseError = type("DatabaseError", (Error,), {})


def of_driver(name: str, base: type = Error, *bases: type) -> Exception:
    made: Exception = type(name, (base, *bases), {})("server closed the connection")
    return made


IN_OPERATOR = OperatorError("map", "1/2", "", "", "story")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StreamError("no topic"), True),
        (SinkError("no table"), True),
        (ConfigurationError("no such key"), True),
        (RpcSerializationError("cannot travel"), True),
        (SuppressRestartsError("mine"), True),
        (UnavailableError("no answer"), False),
        (SinkUnavailableError("no answer"), False),
        (FileNotReadyError("no footer"), False),
        (StateStorageError("disk full"), False),
        (RpcTimeoutError("no answer"), False),
        (FencingTokenError("a", "b", None, None), False),
        (JobNotFinishedError(JobID.generate(), "suspended"), False),
        (ValueError("who knows"), False),
        (IN_OPERATOR, False),
        (caused(OperatorError("map", "1/2", "", "", ""), StreamError("no topic")), True),
        (caused(RuntimeError("wrapped"), StreamError("no topic")), True),
        (caused(UnavailableError("no answer"), StreamError("inner")), False),
        (caused(UnavailableError("no answer"), SuppressRestartsError("inner")), True),
    ],
)
def test_first_classified_cause_of_an_error_decides_if_the_error_will_recur(
    error: BaseException, expected: bool
) -> None:
    assert will_recur(error) is expected


def raised(error: Exception) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        TypeError("a"),
        ZeroDivisionError("a"),
        FileNotFoundError("a"),
        PermissionError("a"),
        UnicodeDecodeError("utf-8", b"a", 0, 1, "a"),
        type("ProgrammingError", (Exception,), {})("no such table"),
        of_driver("NotSupportedError", DatabaseError),
        of_driver("UndefinedTable", type(of_driver("ProgrammingError", DatabaseError))),
        caused(KeyError("a"), of_driver("ProgrammingError", DatabaseError)),
        of_driver("DataError", type(of_driver("InterfaceError")), ValueError),
        caused(ValueError("a"), type("OperationalError", (Exception,), {})("of no driver")),
    ],
)
def test_errors_made_by_programs_are_recognized_as_program_errors(error: Exception) -> None:
    assert program_error_of(raised(error)) is not None


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("a"),
        TimeoutError("a"),
        OSError(28, "No space left on device"),
        MemoryError("a"),
        RuntimeError("a"),
        type("ServiceError", (Exception,), {})("busy"),
        FlinkRayError("a"),
        caused(UnavailableError("no answer"), KeyError("a")),
        caused(ValueError("no price"), ConnectionResetError("a")),
        caused(LookupError("no price"), caused(ValueError("no answer"), TimeoutError("a"))),
        of_driver("OperationalError", DatabaseError),
        of_driver("AdminShutdown", type(of_driver("OperationalError", DatabaseError))),
        of_driver("InterfaceError", Error, ValueError),
        caused(LookupError("no price"), of_driver("OperationalError", DatabaseError)),
        caused(OperatorError("map", "1/2", "", "", ""), of_driver("InterfaceError", Error)),
        caused(ValueError("no price"), of_driver("InterfaceError", Error)),
    ],
)
def test_temporary_errors_do_not_count_as_program_errors(error: Exception) -> None:
    assert program_error_of(raised(error)) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("a"), True),
        (PermissionError("a"), True),
        (NotADirectoryError("a"), True),
        (FileNotReadyError("a.json has no end"), True),
        (caused(OperatorError("map", "1/2", "", "", ""), FileNotReadyError("no end")), True),
        (KeyError("a"), False),
    ],
)
def test_program_errors_about_files_but_no_others_may_disappear_at_a_retry(
    error: Exception, expected: bool
) -> None:
    told = outlook_of(raised(error))
    assert not told.will_recur
    assert told.program_error is not None
    assert told.program_error.may_pass is expected


def test_same_error_at_another_line_of_an_input_file_is_another_error() -> None:
    """Checkpoints that complete between two attempts are no progress if the line is the same."""

    def of(line: int) -> ProgramError:
        error = program_error_of(raised(FileNotReadyError(f"a.json, line {line}, is no JSON")))
        assert error is not None
        return error

    assert of(3) == of(3)
    assert of(3).kind == of(4).kind
    assert of(3).record != of(4).record


def test_errors_equal_except_for_numbers_in_their_message_are_the_same_error() -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    def of(text: str) -> object:
        with pytest.raises(ValueError, match=text) as caught:
            fail(text)
        return program_error_of(caught.value)

    assert of("record 17 at 0x7f00") == of("record 4 at 0x1234")
    assert of("record 17") != of("row 17")
    assert of("record 17") != program_error_of(raised(ValueError("record 17")))


def test_operator_error_that_stores_whether_it_will_recur_is_not_classified_again() -> None:
    told = OperatorError("source", "source", "", "", "story")
    told.outlook = outlook_of(raised(KeyError("a")))
    assert outlook_of(told) == told.outlook
