"""The error tree, as a whole."""

from __future__ import annotations

import pickle

import pytest

from flinkray.core import errors
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc.wire import codec

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
def test_error_is_equal_after_pickling_and_after_the_codec(error: errors.FlinkRayError) -> None:
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
