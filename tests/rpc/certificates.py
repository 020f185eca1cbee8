"""Certificates for one test: an authority, and a certificate that it has signed."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flinkray.rpc.wire.tls import AUTHORITY, CERTIFICATE, KEY, SWITCH


def ray_tls_environment(folder: Path, *addresses: str) -> dict[str, str]:
    """Make the files in *folder* and return what tells Ray of them.

    *addresses*: those that the certificate is good for, as Ray's own gRPC wants to know.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("flinkray test authority", authority_key, None, authority_key, ())
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate("flinkray test", key, authority, authority_key, addresses)
    files = {
        AUTHORITY: folder / "authority.pem",
        CERTIFICATE: folder / "certificate.pem",
        KEY: folder / "key.pem",
    }
    files[AUTHORITY].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files[CERTIFICATE].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[KEY].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return {SWITCH: "1", **{name: str(path) for name, path in files.items()}}


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    addresses: tuple[str, ...],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    alternatives: list[x509.GeneralName] = [x509.DNSName("localhost")]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
