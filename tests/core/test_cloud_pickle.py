"""Functions travel with the names of their files, whichever cloudpickle is installed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flinkray.core import cloud_pickle


def written(value: object) -> bytes:
    file = io.BytesIO()
    cloud_pickle.dump(value, file)
    return file.getvalue()


@pytest.mark.parametrize("dumps", [cloud_pickle.dumps, written])
def test_code_keeps_the_name_of_its_file(dumps: Callable[[object], bytes]) -> None:
    """cloudpickle 3.1.3 writes \"<dynamic-code>\" in its place."""

    class Local:
        def method(self) -> Any:
            return lambda: 1

    function = pickle.loads(dumps(lambda: (n for n in (1, 2))))
    method = pickle.loads(dumps(Local())).method

    inner = [function(), method()]
    codes = [function.__code__, inner[0].gi_code, method.__code__, inner[1].__code__]
    assert {code.co_filename for code in codes} == {__file__}
    assert [code.co_name for code in codes] == ["<lambda>", "<genexpr>", "method", "<lambda>"]
    assert list(inner[0]) == [1, 2]


def test_text_that_a_function_holds_stays_as_it_is() -> None:
    function = pickle.loads(cloud_pickle.dumps(lambda: "<dynamic-code>"))
    assert function() == "<dynamic-code>"


def test_buffers_are_handed_out() -> None:
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.PickleBuffer(b"x" * 100)
    data = cloud_pickle.dumps([content, lambda: 1], 5, buffers.append)
    loaded, function = pickle.loads(data, buffers=buffers)
    assert (bytes(loaded), function()) == (b"x" * 100, 1)
