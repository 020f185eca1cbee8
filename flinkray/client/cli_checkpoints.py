"""``flinkray checkpoint list|show|trigger``. ``list`` and ``show`` need no cluster."""

from __future__ import annotations

from datetime import datetime

import click

from flinkray.checkpoint.contents import (
    CheckpointContents,
    OperatorContents,
    StateContents,
    describe_checkpoint,
)
from flinkray.checkpoint.layout import check_is_directory, find_checkpoints
from flinkray.client import cli_output
from flinkray.client.cli_options import JSON, VERBOSE
from flinkray.client.cli_savepoints import trigger_checkpoint
from flinkray.client.savepoint_locations import absolute_location
from flinkray.core.resources import format_memory_size


@click.group()
def checkpoint() -> None:
    """Look at checkpoints and savepoints, or take a checkpoint."""


checkpoint.add_command(trigger_checkpoint)


@checkpoint.command("list")
@click.argument("directory")
@JSON
@VERBOSE
def list_checkpoints(directory: str, as_json: bool) -> None:
    """List the complete checkpoints and savepoints in DIRECTORY, oldest first.

    DIRECTORY is that of a job, of several jobs, or of savepoints; a path or a URI.
    """
    directory = absolute_location(directory)
    found = find_checkpoints(directory)
    if not found:
        check_is_directory(directory)
    if as_json:
        click.echo(cli_output.to_json(found))
    else:
        click.echo("\n".join(found) or "no checkpoints")


@checkpoint.command()
@click.argument("path")
@JSON
@VERBOSE
def show(path: str, as_json: bool) -> None:
    """Show the operators of a checkpoint or savepoint, with states, types, sizes and key groups.

    PATH is its directory or its metadata file; a path or a URI.
    """
    contents = describe_checkpoint(absolute_location(path))
    click.echo(cli_output.to_json(contents) if as_json else _text(contents))


def _text(contents: CheckpointContents) -> str:
    taken = datetime.fromtimestamp(contents.timestamp / 1000).astimezone()
    lines = [
        f"{contents.kind:<11} {contents.checkpoint_id}",
        f"job         {contents.job_id}",
        f"taken       {taken.isoformat(timespec='seconds')}",
        f"written by  flinkray {contents.flinkray_version or '(unknown)'}",
        f"size        {format_memory_size(contents.size)}",
        f"metadata    {contents.location}",
    ]
    for operator in contents.operators:
        lines += ["", *_operator(operator)]
    return "\n".join(lines)


def _operator(operator: OperatorContents) -> list[str]:
    uid = "without a uid" if operator.uid is None else f"uid {operator.uid}"
    lines = [
        f"{operator.name} ({uid}, id {operator.operator_id})",
        f"  {operator.parallelism} of at most {operator.max_parallelism} subtasks, "
        f"{format_memory_size(operator.size)}",
    ]
    if operator.finished:
        lines.append(f"  finished: subtask {', '.join(map(str, operator.finished))}")
    if operator.coordinator_size is not None:
        lines.append(f"  coordinator: {format_memory_size(operator.coordinator_size)}")
    if operator.in_flight_size:
        lines.append(f"  in flight: {format_memory_size(operator.in_flight_size)}")
    if operator.key_groups:
        ranges = ", ".join(f"{first}-{last}" for first, last in operator.key_groups)
        lines.append(f"  key groups: {ranges}")
    lines += [f"  {_state(state)}" for state in operator.states]
    lines += [f"  timers {name!r}" for name in operator.timers]
    return lines


def _state(state: StateContents) -> str:
    parts = [f"{'keyed' if state.is_keyed else 'operator'} {state.kind} {state.name!r}"]
    if state.type is not None:
        parts.append(f"of {state.type}")
    if state.elements is not None:
        parts.append(f"({state.elements} elements)")
    if state.pickled:
        parts.append(f"(pickled: {', '.join(state.pickled)})")
    return " ".join(parts)
