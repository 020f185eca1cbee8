"""What a new process is to be, and the addresses of endpoints."""

from __future__ import annotations

import re

import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import WorkerGroupId
from flinkray.rpc import EndpointSpec, Placement, Renewal
from flinkray.rpc.spec import load_factory, split_address

FACTORY = "tests.rpc.endpoints:create_echo"


def test_address_is_split_at_its_last_slash() -> None:
    assert split_address("host/echo") == ("host", "echo")
    assert split_address("a/b/c") == ("a/b", "c")


@pytest.mark.parametrize("address", ["", "echo", "/echo", "host/", "/"])
def test_text_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"not an address: {address!r}")):
        split_address(address)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_process_name_that_cannot_be_in_an_address_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a process name"):
        EndpointSpec("Echo", name, FACTORY)


def test_process_kind_that_is_no_class_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"not a class name: 'an echo'.*worker"):
        EndpointSpec("an echo", "worker", FACTORY)


def test_spec_for_a_prestarted_process_refuses_placement_restarts_environment() -> None:
    EndpointSpec("Echo", "worker", FACTORY, may_take_over=True, detached=True)
    EndpointSpec("Echo", "worker", FACTORY, None, Placement(1), True, -1, False, {"A": "1"})
    for wanted in (
        EndpointSpec("Echo", "worker", FACTORY, placement=Placement(num_cpus=1)),
        EndpointSpec("Echo", "worker", FACTORY, placement=Placement(worker_group=GROUP)),
        EndpointSpec("Echo", "worker", FACTORY, max_restarts=-1),
        EndpointSpec("Echo", "worker", FACTORY, environment={"A": "1"}),
    ):
        with pytest.raises(ConfigurationError, match="a prestarted process cannot become worker"):
            EndpointSpec(
                wanted.kind,
                wanted.name,
                wanted.factory,
                placement=wanted.placement,
                max_restarts=wanted.max_restarts,
                environment=wanted.environment,
                may_take_over=True,
            )


def test_spec_of_a_role_that_may_return_is_of_a_detached_prestarted_process() -> None:
    EndpointSpec("Echo", "worker", FACTORY, may_take_over=True, detached=True, may_return=True)
    with pytest.raises(ConfigurationError, match="worker cannot take another role afterwards"):
        EndpointSpec("Echo", "worker", FACTORY, detached=True, may_return=True)
    with pytest.raises(ConfigurationError, match="worker cannot take another role afterwards"):
        EndpointSpec("Echo", "worker", FACTORY, may_take_over=True, may_return=True)


GROUP = WorkerGroupId("g")


def test_factory_is_loaded_by_its_module_and_name() -> None:
    from tests.rpc import endpoints

    assert load_factory(FACTORY) is endpoints.create_echo


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("tests.rpc.endpoints:no_such", "cannot load the factory"),
        ("tests.rpc.no_such:create_echo", "cannot load the factory"),
        (":create_echo", "cannot load the factory"),
        ("tests.rpc.broken_module:create_echo", "ZeroDivisionError: division by zero"),
        ("tests.rpc.endpoints:__name__", "is not a function"),
    ],
)
def test_factory_path_that_cannot_be_imported_is_refused(path: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(path))) as caught:
        load_factory(path)
    assert problem in str(caught.value)


def test_process_spec_with_renewal_is_refused_without_restarts_or_with_no_growth() -> None:
    EndpointSpec("Echo", "worker", FACTORY, max_restarts=-1, renewal=Renewal(1))
    with pytest.raises(ConfigurationError, match="worker would not be started again when it has"):
        EndpointSpec("Echo", "worker", FACTORY, renewal=Renewal(1))
    with pytest.raises(ConfigurationError, match="grows by more than 0 bytes at once"):
        Renewal(0)
