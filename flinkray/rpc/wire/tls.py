"""TLS between nodes, configured by the switch and the files of Ray's TLS.

Ray's settings are ``RAY_USE_TLS=1`` and the paths in ``RAY_TLS_SERVER_CERT``,
``RAY_TLS_SERVER_KEY`` and ``RAY_TLS_CA_CERT``. Both sides of a connection show certificates signed
by that CA. Names in certificates are not compared with addresses: the handshake that follows checks
the process's incarnation and the cluster's secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from flinkray.core.errors import ConfigurationError

SWITCH = "RAY_USE_TLS"
CERTIFICATE = "RAY_TLS_SERVER_CERT"
KEY = "RAY_TLS_SERVER_KEY"
AUTHORITY = "RAY_TLS_CA_CERT"


@dataclass(frozen=True, slots=True)
class Tls:
    """The TLS contexts of the two sides of a connection."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def tls_of(environment: Mapping[str, str]) -> Tls | None:
    """Return the TLS contexts for the variables of *environment*; None: Ray's TLS is off.

    Raises ConfigurationError: TLS is on, and a variable or its file is missing or not usable.
    """
    if environment.get(SWITCH, "0").lower() not in ("1", "true"):
        return None
    paths = {name: environment.get(name, "") for name in (CERTIFICATE, KEY, AUTHORITY)}
    for name, path in paths.items():
        if not path:
            raise ConfigurationError(f"{SWITCH} is on, and {name} is not set to a file's path")
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"{SWITCH} is on, and the file of {name} cannot be read: {error}"
            ) from error
    return Tls(_context(ssl.PROTOCOL_TLS_SERVER, paths), _context(ssl.PROTOCOL_TLS_CLIENT, paths))


def _context(protocol: ssl._SSLMethod, paths: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(paths[AUTHORITY])
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{AUTHORITY}: {paths[AUTHORITY]} holds no usable certificate: {error}"
        ) from error
    try:
        context.load_cert_chain(paths[CERTIFICATE], paths[KEY])
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{CERTIFICATE}: {paths[CERTIFICATE]} and {KEY}: {paths[KEY]} are no certificate with "
            f"its key: {error}"
        ) from error
    return context
