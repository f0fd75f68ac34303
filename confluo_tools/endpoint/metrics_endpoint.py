"""The endpoint of Prometheus: GET /metrics on a socket that listens.

The server is http.server: prometheus_client's own binds its socket itself, too late for a program that has given up its
privileges, and has no time-out for silent clients.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError

if TYPE_CHECKING:
    import socket

READ_TIME = 5.0  # s for each read from a client, and each write
LOOPBACK = "127.0.0.1"  # where metrics are without an address


def metrics_socket(text: str) -> socket.socket:
    """The listening socket of --metrics [ADDRESS]:PORT.  Raises UsageError, ConfluoError."""
    from confluo_tools.endpoint import listen_address

    host, port = listen_address.parse(text, "--metrics", host=LOOPBACK)
    return listen_address.listen(host, port, backlog=16)


class Numbers(NamedTuple):
    """What a command counts: totals that only grow, and values that go up and down, each {name: (help, value)}."""

    totals: Mapping[str, tuple[str, float]]
    values: Mapping[str, tuple[str, float]]


class NumbersCollector:
    """Collector of prometheus_client for the numbers of a command: ``confluo_COMMAND_NAME``, with ``labels``."""

    def __init__(self, command: str, labels: Mapping[str, str], look: Callable[[], Numbers]) -> None:
        self._prefix, self._labels, self._look = f"confluo_{command}_", dict(labels), look

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._look()
        for make, numbers in ((CounterMetricFamily, found.totals), (GaugeMetricFamily, found.values)):
            for name, (text, value) in numbers.items():
                family = make(f"{self._prefix}{name}", text, labels=list(self._labels))
                family.add_metric(list(self._labels.values()), value)
                yield family


class MetricsEndpoint:
    """Thread that serves ``GET /metrics`` on a listening socket, one request after the other.

    ``collector``: as prometheus_client takes it; the numbers of the process itself are added.
    Raises ConfluoError without the package prometheus_client; ``install``: how to install it.
    """

    def __init__(self, sock: Any, collector: Any, install: str = "pip install 'confluo-tools[metrics]'") -> None:
        from http.server import HTTPServer

        try:
            from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector
        except ModuleNotFoundError:
            raise ConfluoError("--metrics needs the package prometheus_client", hint=install) from None
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)

        class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
            timeout = READ_TIME

            def log_message(self, *args: object) -> None:
                pass

        class QuietServer(HTTPServer):
            def handle_error(self, *args: object) -> None:
                pass

        self._server = QuietServer(sock.getsockname()[:2], Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = sock
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # A client that hangs up must not end a program that leaves SIGPIPE as it is.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        self._server.serve_forever()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
