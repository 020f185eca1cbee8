"""``flinkray query``: the state of single keys of a job that runs."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import click

from flinkray.client.cli_options import JOB_ID, JSON, common, connected, job_of
from flinkray.client.queryable_state import QueryableStateClient
from flinkray.core.kv_states import UnknownKeyOrNamespaceError
from flinkray.state.interfaces import MapState, ValueState


def _key(text: str) -> Any:
    try:
        return _hashable(json.loads(text, parse_constant=_no_constant))
    except ValueError:
        return text
    except RecursionError as error:
        raise click.BadParameter("it is nested too deeply for a key") from error


def _no_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's JSON parser accepts although JSON does
    not have them."""
    raise ValueError(f"{text} is none of JSON")


def _hashable(key: Any) -> Any:
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    if isinstance(key, dict):
        raise click.BadParameter("an object of JSON cannot be a key; quote it if it is a text")
    return key


@click.command()
@JOB_ID
@click.argument("name", metavar="NAME")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=_key)
@JSON
@common
def query(
    job: str,
    name: str,
    keys: tuple[Any, ...],
    as_json: bool,
    address: str | None,
    cluster_id: str,
) -> None:
    """Show what is stored for keys in a queryable state, one line per key.

    A key is a number, true, false, null, a list (for a tuple) or a quoted text, as in JSON;
    anything else is taken as a text.  If a key begins with a minus, put -- before the keys.
    """
    with connected(address, cluster_id) as client:
        states = QueryableStateClient(client).get_kv_states(job_of(client, job), name, keys)
    if not any(state is not None for state in states):
        raise UnknownKeyOrNamespaceError(name)
    if as_json:
        contents = [None if state is None else _contents(state) for state in states]
        entries = [{"key": key, "value": value} for key, value in zip(keys, contents, strict=True)]
        click.echo(json.dumps(_plain(entries), indent=2))
        return
    for key, state in zip(keys, states, strict=True):
        click.echo(f"{key!r}: {'-' if state is None else repr(_contents(state))}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _plain(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(it) for it in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else repr(value)


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, bool) else repr(key)


def _contents(state: Any) -> Any:
    if isinstance(state, MapState):
        return dict(state.items())
    return state.value() if isinstance(state, ValueState) else state.get()
