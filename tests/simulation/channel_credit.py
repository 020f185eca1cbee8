"""What must hold of the credit of each channel between tasks, whatever passes it and goes wrong.

See :mod:`flinkray.streaming.network.credit`.
"""

from __future__ import annotations

from collections.abc import Iterator

from flinkray.streaming.network.input_channels import RemoteInputChannel
from flinkray.streaming.network.views import RemoteView
from flinkray.testing.simulation import Simulation
from flinkray.testing.simulation.data_links import SteppedConnection


def check_credit(simulation: Simulation) -> None:
    """
    Raises:
        AssertionError: A buffer has come that was not paid, or more is granted than is owed.
    """
    for channel, view in _channels(simulation):
        credit = channel.credit
        assert view.credit + credit.received <= credit.granted, (
            f"{credit.granted} bytes were granted, {credit.received} have come, and "
            f"{view.credit} are left"
        )
        assert credit.granted <= credit.taken + credit.window, (
            f"{credit.granted} bytes were granted for {credit.taken} and {credit.window}"
        )


def _channels(simulation: Simulation) -> Iterator[tuple[RemoteInputChannel, RemoteView]]:
    """Both ends of each that is open."""
    for connection in simulation.network.connections():
        for end in (connection.near, connection.far):
            consumer, producer = end.receiver, end.peer.receiver
            if isinstance(consumer, SteppedConnection) and isinstance(producer, SteppedConnection):
                for channel, view in consumer.channels_from(producer):
                    if isinstance(channel, RemoteInputChannel):
                        yield channel, view
