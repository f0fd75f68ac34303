"""Why no broker answers: what librdkafka says about it, and what only a look at the port shows."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

LOOK = 3.0  # s for a look at a port
CLOSED, AT_ONCE, SETTLED = 3, 0.3, 2.0  # tries, each within (s), for (s): more than a restart
WANTS_TLS = "the broker wants TLS"
WANTS_LOGIN = "the broker closes the connection at the first request: it may want a login"
_WHERE = re.compile(r"^(?:[a-z_]+://)?\S+/\w+: ")
_STATE = re.compile(r" \(after \d+ms in state \w+[^()]*\)$")


def plain_text(text: str) -> str:
    """What librdkafka says of a broker, without its address and timing: the same for the same fault."""
    return _STATE.sub("", _WHERE.sub("", text))


class ConnectionFaults:
    """The errors of a client that connects.  `note` is for its ``error_cb``."""

    def __init__(self) -> None:
        self._refused = ""  # by either end: trying again does not help
        self._last = ""
        self._closed = 0  # tries that a broker ended
        self._began = time.monotonic()

    def tried(self, seconds: float) -> None:
        """A try failed after ``seconds``: those that fail at once are connections that a broker closed."""
        self._closed += seconds < AT_ONCE

    def note(self, error: Any) -> None:
        """``error``: of confluent_kafka."""
        from confluent_kafka import KafkaError

        text = plain_text(error.str())
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "SSL" in text:
            self._refused = self._refused or text
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = text

    def final(self, brokers: str, settings: Mapping[str, str]) -> bool:
        """Whether another try would fail alike: this client does not fit these brokers."""
        if not self._refused and not _with_tls(settings) and _speaks_tls(brokers):
            self._refused = WANTS_TLS
        elif self._closed >= CLOSED and time.monotonic() - self._began > SETTLED:
            self._refused = self._refused or WANTS_LOGIN
        return bool(self._refused)

    def explain(self, brokers: str, settings: Mapping[str, str]) -> tuple[str, str]:
        """(what is wrong, what to do) after no broker of ``brokers`` answered."""
        text = self._refused
        if text == WANTS_TLS:
            return text, "set -X security.protocol=ssl or sasl_ssl"
        if text == WANTS_LOGIN:
            return text, "set -X security.protocol=sasl_plaintext or sasl_ssl"
        if not text:
            return (
                f"no broker answers: {self._last or 'no reason is known'}",
                "check the address and -X security.protocol",
            )
        if "PLAINTEXT" in text or ("closed by peer" in text and _ends_tls(brokers)):
            return "the broker does not speak TLS", "check the address and -X security.protocol"
        if "SASL" in text:
            said = text.removeprefix("SASL authentication error: ")
            return f"the broker refuses the login: {said}", "check -X sasl.mechanism, sasl.username and sasl.password"
        if "certificate verify failed" in text:
            why = _certificate_fault(brokers, settings) or "certificate verify failed"
            return f"the certificate of the broker is wrong: {why}", "check the address and -X ssl.ca.location"
        if "certificate" in text:
            return "the broker refuses the certificate of this client, or wants one", "set -X ssl.certificate.location"
        return f"no broker answers: {text}", "check the address and -X"


def _with_tls(settings: Mapping[str, str]) -> bool:
    return "ssl" in settings.get("security.protocol", "").lower()


def _speaks_tls(brokers: str) -> bool:
    """Whether the first broker that takes a connection answers a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError):
        _shake_hands(brokers, context)
        return True
    return False


def _ends_tls(brokers: str) -> bool:
    """Whether the first broker that takes a connection closes it when TLS begins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(brokers, context)
    except (ConnectionResetError, ssl.SSLError):
        return True
    except OSError:
        return False
    return False


def _certificate_fault(brokers: str, settings: Mapping[str, str]) -> str:
    """What is wrong with the certificate of the first broker that takes a connection; librdkafka does not say it."""
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"), cadata=settings.get("ssl.ca.pem"))
        _shake_hands(brokers, context)
    except ssl.SSLCertVerificationError as e:
        return e.verify_message.rstrip(".")
    except (OSError, ValueError):
        pass
    return ""


def _shake_hands(brokers: str, context: ssl.SSLContext) -> None:
    """Begin TLS with the first broker that takes a connection.  Raises OSError."""
    # Not ssl's own sockets: what they write to a closed connection is a SIGPIPE, which ends a filter.
    taken, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    with _connected(brokers) as (host, link):
        tls = context.wrap_bio(taken, to_send, server_hostname=host)
        end = time.monotonic() + LOOK
        while True:
            try:
                tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                link.sendall(to_send.read(), socket.MSG_NOSIGNAL)
                link.settimeout(max(0.01, end - time.monotonic()))
                data = link.recv(1 << 14)
                if not data:
                    raise ConnectionResetError from None
                taken.write(data)


@contextmanager
def _connected(brokers: str) -> Iterator[tuple[str, socket.socket]]:
    """A connection to the first broker that takes one: (host, socket).  Raises OSError."""
    why: OSError = ConnectionRefusedError()
    for broker in brokers.split(","):
        host, _, port = broker.rpartition(":")
        try:
            link = socket.create_connection((host.strip("[]"), int(port)), LOOK)
        except OSError as e:
            why = e
            continue
        with link:
            yield host.strip("[]"), link
        return
    raise why
