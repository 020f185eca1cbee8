"""Arguments, options and helpers that the commands of the command line share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

import click

from flinkray.client.cli_settings import UNKNOWN_JOB, Settings
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import JobID
from flinkray.core.options import CLUSTER_ID, OPTIONS, set_for
from flinkray.core.resources import MOST_CORES

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient

F = TypeVar("F", bound=Callable[..., object])


def _set_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_object(Settings).verbose = True  # type: ignore[union-attr]


VERBOSE = click.option(
    "--verbose", is_flag=True, expose_value=False, callback=_set_verbose, help="Show tracebacks."
)


def common(command: F) -> F:
    """Decorator of each command that talks to a cluster: adds the options ``--address``,
    ``--cluster-id`` and ``--verbose``."""
    options = (
        click.option(
            "--address",
            help="Where Ray is: auto, host:port or ray://host:port; for run also local.  "
            "Default: $RAY_ADDRESS, or the Ray of this machine.",
        ),
        click.option(
            "--cluster-id",
            default=CLUSTER_ID.default,
            show_default=True,
            help="Name of the cluster, of several that share a Ray.",
        ),
        VERBOSE,
    )
    for option in reversed(options):
        command = option(command)
    return command


_JOB_ID = re.compile(rf"[0-9a-f]{{1,{2 * JobID.SIZE}}}")


_MOST_NAMED = 10
"""Most jobs that an error names."""


class UnknownJob(click.ClickException):
    """Raised when no job has an id that begins with the given text."""

    exit_code = UNKNOWN_JOB


def job_reference(text: str) -> str:
    """Return *text* in lower case, if it can be a job id or the beginning of one. Raises
    click.BadParameter: it cannot."""
    if _JOB_ID.fullmatch(text.lower()) is None:
        raise click.BadParameter(
            f"{text!r} is neither a job id ({2 * JobID.SIZE} hexadecimal digits) nor its beginning"
        )
    return text.lower()


JOB_ID = click.argument("job", type=job_reference, metavar="JOB_ID")
"""Job argument: a job id, or a beginning that no other job id has."""


JOB_ID_OR_ALL = click.argument("job", type=job_reference, metavar="[JOB_ID]", required=False)
"""Job argument of a command that acts on all jobs if no job is named."""


def job_of(client: ClusterClient, reference: str) -> JobID:
    """Return the id of the job that *reference* means: a whole id, or the beginning of one. A whole
    id is returned even if there is no such job. Raises UnknownJob: no job id begins with
    *reference*; click.UsageError: several do."""
    if len(reference) == 2 * JobID.SIZE:
        return JobID.from_hex(reference)
    found = [job for job in client.list_jobs() if job.job_id.hex().startswith(reference)]
    if not found:
        raise UnknownJob(f"no job's id begins with {reference} (see: flinkray list)")
    if len(found) > 1:
        jobs = ", ".join(f"{job.job_id} ({job.name!r})" for job in found[:_MOST_NAMED])
        if len(found) > _MOST_NAMED:
            jobs += f" and {len(found) - _MOST_NAMED} more"
        raise click.UsageError(f"the ids of {len(found)} jobs begin with {reference}: {jobs}")
    return found[0].job_id


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def say(as_json: bool, text: str, result: dict[str, object]) -> None:
    """Print the result of a command: with *as_json* the JSON object *result*, otherwise the line
    *text*."""
    if as_json:
        from flinkray.client.cli_output import to_json

        text = to_json(result)
    click.echo(text)


def cores(text: str | float) -> float:
    """Return the number of cores that *text* gives. Raises click.BadParameter: no number, not above
    0, or more than a slot can have."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= MOST_CORES:
        raise click.BadParameter(
            f"{text!r} is no number of CPU cores: write for example 1 or 0.5, at most {MOST_CORES}"
        )
    return number


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise click.BadParameter(f"{text!r} is not of the form key=value")
    return key, value


def _setting(text: str) -> tuple[str, str]:
    key, value = _pair(text)
    if key == CLUSTER_ID.key:
        raise click.BadParameter(f"the cluster is named by --cluster-id, not by {key}")
    return key, value


def pairs(
    *names: str, help: str, kind: Callable[[str], tuple[str, str]] = _pair
) -> Callable[[F], F]:
    """Return a decorator that adds an option to a command. The option may be given several times,
    each time with a key and a value."""
    return click.option(*names, multiple=True, type=kind, metavar="KEY=VALUE", help=help)


def settings(help: str) -> Callable[[F], F]:
    """Return a decorator that adds the option ``-D`` for values of the configuration to a command,
    as the parameter ``values``."""
    return pairs("-D", "values", help=help, kind=_setting)


_SET_BY = {
    "cluster": "flinkray cluster up -D",
    "job": "flinkray run -D",
    "client": "flinkray run -D",
    "REST endpoint": "flinkray rest -D",
}


def check_set_for(configuration: ReadableConfig, *kinds: str) -> None:
    """Check that each option of *configuration* has an effect in the present command. *kinds*: what
    the command configures; each is "cluster", "job", "client" or "REST endpoint". Raises
    ConfigurationError for an option of another kind; the text says which command sets it."""
    for key in configuration.to_dict():
        kind = set_for(OPTIONS[key])
        if kind not in kinds:
            raise ConfigurationError(
                f"{key} is an option of the {kind} and does nothing here: it is set by "
                f"{_SET_BY[kind]}"
            )


def connect(
    address: str, cluster_id: str, configuration: ReadableConfig | None = None
) -> AbstractContextManager[ClusterClient]:
    """Connect to a cluster: by the function that the caller of the command line gave
    (:func:`~flinkray.client.cli.execute`), otherwise by :func:`flinkray.connect`."""
    configuration = configuration or ReadableConfig()
    settings = settings_of_command()
    if settings.connect is not None:
        return settings.connect(address, cluster_id, configuration)
    from flinkray.client.connect import connect  # loads Ray

    with settings.connecting():
        return connect(address, cluster_id=cluster_id, configuration=configuration)


def connected(address: str | None, cluster_id: str) -> AbstractContextManager[ClusterClient]:
    """Connect to a cluster that runs already, for a command that runs no user program."""
    address = running(address)
    settings = settings_of_command()
    if settings.connect is not None or not settings.process_ends:
        return connect(address, cluster_id)
    from flinkray.client.connect import connect_until_the_end

    settings.ray_is_left_at_the_end = True
    with settings.connecting():
        return connect_until_the_end(address, cluster_id, ReadableConfig())


def settings_of_command() -> Settings:
    return click.get_current_context().find_object(Settings) or Settings()


def running(address: str | None) -> str:
    """Return the address of a Ray that must run already: *address*, or ``RAY_ADDRESS``, or
    ``auto``. Raises click.UsageError for ``local``, which would start a Ray."""
    from flinkray.client import ray_runtime

    address = address or ray_runtime.address_from_environment() or "auto"
    if address == "local":
        raise click.UsageError("'local' is an address for `flinkray run` only")
    return address
