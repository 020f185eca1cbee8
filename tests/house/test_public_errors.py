"""flinkray.errors has every exception that a user may catch, in one tree."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flinkray import errors, testing
from flinkray.core.errors import FlinkRayError
from flinkray.testing import simulation
from tests.house.import_arrows import read_package

ROOT = Path(__file__).parents[2]

BUILT_IN = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}

INTERNAL = frozenset(
    # raised and handled between processes of a cluster
    {"AttemptDisposedError", "BlobCorruptError", "BlobNotFoundError", "CannotTakeOverError"}
    | {"CheckpointsLostError", "CoordinatorReplacedError", "IllegalTransitionError"}
    | {"JobMasterAwayError", "LeadershipLostError", "PartitionProducerDisposedError"}
    | {"RegistrationTimeoutError", "ResourceManagerError", "ResultPartitionNotFoundError"}
    | {"SlotAllocationError", "TaskError", "TaskExecutorStartError", "TasksMissingError"}
    | {"UnknownTaskExecutorError", "WorkerGroupLostError", "WorkerGroupStartError"}
    # raised and handled between tasks, or inside a task
    | {"ArchiveError", "ChannelError", "CodeFailedError", "ConsumerLostError"}
    | {"MailboxClosedError", "NoMoreWantedError", "OtherColumnsError", "PartitionReleasedError"}
    | {"PartitionUnavailableError", "ProducerLostError", "StageEndedError", "StateNotReadError"}
    | {"TaskCancelledError", "WireFormatError"}
    # handled by the folder, the client or the server that raises them
    | {"FencedError", "LeftRunning", "LostEntryError", "ProcessEndsError", "RemoteTraceback"}
    | {"RestError", "TakenOverError"}
)
"""Exceptions that reach no user. A user sees the text of some of them in the failure of a job."""

INTERNAL_OF_TESTING = frozenset({"PostgresServerError", "ProcessDied"})


def exceptions_of(trees: Mapping[str, ast.Module]) -> dict[str, str]:
    """Return public exception classes with their modules. *trees* are parsed modules by name."""
    bases: dict[str, tuple[str, set[str]]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = module, set(_names(node.bases))
    known = set(BUILT_IN)
    while found := {name for name, (_, above) in bases.items() if above & known} - known:
        known |= found
    return {n: module for n, (module, _) in bases.items() if n in known and not n.startswith("_")}


def _names(bases: list[ast.expr]) -> Iterator[str]:
    for base in bases:
        if isinstance(base, ast.Name):
            yield base.id
        elif isinstance(base, ast.Attribute):
            yield base.attr


def shipped_exceptions() -> dict[str, str]:
    return exceptions_of({name: source.tree for name, source in read_package(ROOT).items()})


def test_every_exception_that_a_user_may_catch_is_in_flinkray_errors() -> None:
    shipped = {
        name
        for name, module in shipped_exceptions().items()
        if not module.startswith("flinkray.testing.")
    }
    assert shipped - INTERNAL == set(errors.__all__)
    assert shipped >= INTERNAL, "an exception that is gone needs no exemption"


def test_every_exception_of_flinkray_testing_is_exported_there() -> None:
    found = {
        name
        for name, module in shipped_exceptions().items()
        if module.startswith("flinkray.testing.")
    }
    assert found - INTERNAL_OF_TESTING <= {*testing.__all__, *simulation.__all__}


def test_all_error_classes_derive_from_flinkray_error_except_that_of_ctrl_c() -> None:
    outside = [name for name in errors.__all__ if not issubclass(_error(name), FlinkRayError)]
    assert outside == ["SubmissionInterrupted"]
    assert issubclass(errors.SubmissionInterrupted, KeyboardInterrupt)


def test_errors_copied_or_pickled_to_another_process_keep_their_class_and_text() -> None:
    """Errors made of texts and numbers are copied, and go through pickle."""
    values: dict[str, Any] = {"int": 7, "str": "text", "float": 0.5, "bool": True, "object": "key"}
    tried = set()
    for kind in map(_error, errors.__all__):
        initial: Any = kind.__init__
        if not inspect.isfunction(initial):
            continue  # a class without a constructor of its own
        _, *parameters = inspect.signature(initial).parameters.values()
        if any(str(parameter.annotation) not in values for parameter in parameters):
            continue
        error = kind(*(values[str(parameter.annotation)] for parameter in parameters))
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is kind
            assert str(again) == str(error)
            assert vars(again) == vars(error)
        tried.add(kind.__name__)
    assert {"FileResultLostError", "UnsupportedKeyError"} <= tried


def _error(name: str) -> type[BaseException]:
    found: type[BaseException] = getattr(errors, name)
    assert found.__name__ == name
    return found


def test_exceptions_are_found_below_other_exceptions_and_private_ones_are_not() -> None:
    source = "class A(ValueError): ...\nclass B(m.A): ...\nclass _C(A): ...\nclass D: ..."
    assert exceptions_of({"m": ast.parse(source)}) == {"A": "m", "B": "m"}
