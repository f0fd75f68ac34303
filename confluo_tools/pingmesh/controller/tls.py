"""TLS of the controller: server certificate, client CA, reload, check of the validity dates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    from ssl import SSLContext


def server_context(cert: str, key: str | None, client_ca: str | None) -> SSLContext:
    """The TLS context of a controller; ``client_ca``: clients must have a certificate of this CA.

    Raises ConfluoError naming the file.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, cert, key)
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as e:
            raise ConfluoError(f"cannot load the CA: {_reason(e)}", where=client_ca, hint="give a PEM file") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(context: SSLContext, cert: str, key: str | None) -> None:
    """Use this certificate for new connections.  Raises ConfluoError; the previous certificate then stays in use."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)  # try first: half a new pair must not load
        context.load_cert_chain(cert, key)
    except OSError as e:
        raise ConfluoError(
            f"cannot load the certificate and its key: {_reason(e)}", where=cert, hint="give PEM files"
        ) from None


def validity_problem(cert: str) -> str:
    """Why clients reject the first certificate in a PEM file today: expired or not valid yet; '' if neither."""
    from datetime import UTC, datetime

    from cryptography import x509

    try:
        with open(cert, "rb") as file:
            found = x509.load_pem_x509_certificate(file.read())
        begins, ends = found.not_valid_before_utc, found.not_valid_after_utc
    except (OSError, ValueError):  # OpenSSL has loaded it: its dates are then the agents' to judge
        return ""
    now = datetime.now(UTC)
    if now > ends:
        return f"expired on {ends:%Y-%m-%dT%H:%M:%SZ}: agents reject it"
    return f"not valid before {begins:%Y-%m-%dT%H:%M:%SZ}: agents reject it" if now < begins else ""


def _reason(e: OSError) -> str:
    return str(getattr(e, "reason", None) or e.strerror or e)
