"""The counters of a live capture for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from socket import socket

    from confluo_tools.endpoint.metrics_endpoint import Numbers

# Name of the metric: name of the figure, as `PacketSelection.figures` has it, and what it is.
TOTALS = {
    "packets_received": ("packets received", "Packets that the rings of the kernel gave"),
    "packets_kept": ("kept", "Packets that became records"),
    "packets_filtered": ("filtered", "Packets that the expression left out"),
    "packets_sampled_out": ("sampled out", "Packets that a sample left out"),
    "packets_truncated": ("truncated", "Packets with headers that were cut off"),
    "packets_malformed": ("malformed", "Packets with headers that are wrong"),
    "packets_dropped_by_kernel": ("dropped by the kernel", "Packets for which a ring had no room"),
    "packets_dropped_by_nic": ("dropped by the NIC", "Packets that the interface dropped"),
    "packets_not_stored": ("not stored", "Packets that the disk had no room for"),
    "bytes": ("bytes", "Bytes of the packets on the wire"),
}
# The same of --netflow and --sflow, as `RecordSelection.figures` has them.
EXPORT_TOTALS = {
    "records_received": ("records", "Records in the datagrams of exporters"),
    "records_kept": ("kept", "Records that were stored or written"),
    "records_filtered": ("filtered", "Records that the expression left out"),
    "datagrams": ("datagrams", "Datagrams received"),
    "bytes": ("bytes", "Bytes of the datagrams"),
    "datagrams_dropped_by_kernel": ("dropped by the kernel", "Datagrams for which a socket had no room"),
    "datagrams_malformed": ("malformed", "Datagrams that are cut or contradict themselves"),
    "datagrams_unknown": ("of other protocols", "Datagrams of another protocol or version"),
    "exports_lost": ("lost", "Records or datagrams that are missing in the sequences of exporters"),
    "exporter_restarts": ("restarts of exporters", "Restarts of exporters"),
    "sets_without_template": ("sets without a template", "Sets of records that had no template"),
}


def numbers(figures: Mapping[str, int], totals: Mapping[str, tuple[str, str]] = TOTALS) -> Numbers:
    """The figures of a capture as metrics; those that it does not have are 0."""
    from confluo_tools.endpoint.metrics_endpoint import Numbers as Make

    return Make({name: (text, figures.get(figure, 0)) for name, (figure, text) in totals.items()}, {})


def metrics_socket(text: str | None, stack: ExitStack) -> socket | None:
    """The socket of --metrics; opened while the process has its privileges."""
    if text is None:
        return None
    from confluo_tools.endpoint.metrics_endpoint import metrics_socket as listening

    return stack.enter_context(listening(text))


def serve_metrics(
    sock: socket | None, labels: Mapping[str, str], figures: Callable[[], Numbers], stack: ExitStack
) -> None:
    """Serve ``figures`` until the stack is closed; without a socket, do nothing."""
    if sock is None:
        return
    from confluo_tools.endpoint.metrics_endpoint import MetricsEndpoint, NumbersCollector

    stack.callback(MetricsEndpoint(sock, NumbersCollector("capture", labels, figures)).close)
