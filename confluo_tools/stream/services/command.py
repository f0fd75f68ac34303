"""confluo-stream service: find floods, losses and slow flows in a stream.  Manual: confluo-stream-service(1)."""

from __future__ import annotations

import sys

from confluo_tools.verbs import Verb, run_verb

VERBS = (
    Verb("synflood", "synflood_command", "report SYN floods as alerts"),
    Verb("loss", "loss_command", "measure loss, delay and reordering between two points"),
    Verb("tcp-rate", "tcp_rate_command", "report throughput, retransmissions and round trips of TCP flows"),
    Verb("top", "top_command", "report the largest senders, ports or flows"),
    Verb("histogram", "histogram_command", "report how the values of a field are distributed"),
)

EXAMPLES = (
    "confluo-stream service synflood kafka://broker:9092/telemetry --follow --to kafka://broker:9092/alerts",
    "confluo-stream service loss client.pcap server.pcap -o table",
)


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    status = run_verb(VERBS, "confluo_tools.stream.services", words)
    if status is not None:
        return status
    from confluo_tools.cli.verbs import without_verb

    purpose = "Services on a stream of packets: alerts, losses, rates."
    manual = "'confluo help stream-service-NAME' opens the manual of a service."
    return without_verb(words, "confluo-stream service", purpose, VERBS, EXAMPLES, manual)
