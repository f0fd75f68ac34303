"""confluo-capture --netflow and --sflow: records of exporters, from sockets or captures, to the output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from confluo_tools import cli
from confluo_tools.capture.export_address import ExportAddress, shown
from confluo_tools.capture.selection import PacketSelection, PacketSource
from confluo_tools.errors import SchemaError

if TYPE_CHECKING:
    from confluo_tools.capture.export_listener import ExportListener
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.cli.privileges import Account
    from confluo_tools.core.capture.flow_exports import FlowExports
    from confluo_tools.formats.pcap import Captures
    from confluo_tools.schema import Schema

SAY_LOSSES = 10.0  # minimum s between two messages about lost datagrams
RECORD = 1.0  # s between two records of the counters in the log
MAX_LINES = 5  # exporters that are named at the end
ALWAYS = ("exporters", "templates", "options records", "malformed")
NAMES = {  # of the counters of FlowExports
    "datagrams": "datagrams",
    "bytes": "bytes",
    "exporters": "exporters",
    "templates": "templates",
    "options": "options records",
    "counters": "counter samples",
    "malformed": "malformed",
    "dropped": "dropped by the kernel",
    "lost": "lost on the way",
    "late": "late",
    "restarts": "restarts of exporters",
    "partial": "fragments or cut",
    "unknown": "of other protocols",
    "bad_templates": "impossible templates",
    "evicted_templates": "templates given up",
    "evicted_exporters": "exporters given up",
    "waited": "sets that came before their template",
    "without_template": "sets without a template",
    "other_records": "records that are not of flows",
    "other_samples": "samples that are not of packets",
    "no_memory": "not stored for lack of memory",
}


def decoder_of(schema: Schema, scale: bool) -> FlowExports:
    """Raises SchemaError for a field with another type."""
    from confluo_tools.core.capture.flow_exports import FlowExports

    try:
        return FlowExports(schema.layout, scale=scale)
    except ValueError as e:
        raise SchemaError(str(e), where=f"schema '{schema.kind}'") from None


class RecordSelection(PacketSelection):
    """Selects records, and counts what came with them."""

    def __init__(self, compile: Callable[[], object] | None, schema: Schema, limit: int | None, decoder: FlowExports):
        super().__init__(compile, schema, 1, 1, limit)  # type: ignore[arg-type]
        self.decoder = decoder

    def figures(self, captures: PacketSource) -> dict[str, int]:
        seen = captures.counts
        if "dropped" not in seen:  # captures have counters of files
            seen = self.decoder.counts | {"unreadable": seen["bad"]}
        lost, late, restarts = self.decoder.losses()
        seen = seen | {"lost": lost, "late": late, "restarts": restarts}
        seen["without_template"] += seen.pop("waiting")
        received, matched, kept, _ = self.sums()
        figures = {"records": received, "kept": kept, "filtered": received - matched}
        for key, name in NAMES.items():
            if seen.get(key) or name in ALWAYS or key in ("datagrams", "bytes"):
                figures[name] = seen.get(key, 0)
        if seen.get("unreadable"):
            figures["unreadable"] = seen["unreadable"]
        return figures

    def remarks(self) -> None:
        """Report what is missing from the records."""
        counts = self.decoder.counts
        gaps = sorted((r for r in self.decoder.exporters() if r[6]), key=lambda r: -r[6])
        for address, _, protocol, source, _, _, lost, _, _ in gaps[:MAX_LINES]:
            what = "records" if protocol in ("NetFlow v5", "IPFIX") else "datagrams"
            cli.note(
                f"{lost} {what} of {protocol} (source {source}) were lost before they came here", where=shown(address)
            )
        if len(gaps) > MAX_LINES:
            cli.note(
                f"records of {len(gaps) - MAX_LINES} other exporters were lost as well", hint="--stats has the sum"
            )
        for n, what, hint in (
            (counts["waiting"] + counts["without_template"], "sets of records had no template and were left out", ""),
            (counts["bad_templates"], "templates contradict themselves and were left out", ""),
            (counts["malformed"], "datagrams are cut or contradict themselves; what is readable was read", ""),
            (counts["partial"], "datagrams are fragments, or cut by the capture, and were left out", ""),
            (counts["unknown"], "datagrams have another protocol or version and were left out", ""),
            (
                counts["evicted_exporters"],
                "exporters were given up for new ones, with their templates",
                "a firewall can keep strangers out",
            ),
            (counts["evicted_templates"], "templates were given up for new ones", ""),
            (counts["no_memory"], "records were left out for lack of memory", ""),
        ):
            if n:
                cli.note(f"{n} {what}", hint=hint)


class LossWatch:
    """Reports losses at the first one, then every `SAY_LOSSES` seconds while they continue; counts into the log."""

    def __init__(self, listener: ExportListener, selection: RecordSelection) -> None:
        self._listener, self._selection = listener, selection
        self._said = (0, 0)
        self._next = 0.0
        self.record: Callable[[], None] | None = None
        self._next_record = 0.0
        self.latest: dict[str, int] = {}

    def look(self) -> None:
        now = time.monotonic()
        if now >= self._next_record:
            self._next_record = now + RECORD
            self.latest = self._selection.figures(self._listener)
            if self.record is not None:
                self.record()
        if cli.state.quiet or now < self._next:
            return
        dropped, lost = self._listener.dropped, self._selection.decoder.losses()[0]
        if dropped > self._said[0]:
            what = f"{dropped - self._said[0]} datagrams were dropped: the buffer of their socket was full"
            cli.note(what, hint="--ring helps")
        if lost > self._said[1]:
            cli.note(f"{lost - self._said[1]} records or datagrams of exporters were lost before they came here")
        if (dropped, lost) > self._said:
            self._next, self._said = now + SAY_LOSSES, (dropped, lost)


def from_sockets(
    listener: ExportListener,
    selection: RecordSelection,
    out: LogOutput | None,
    records: Callable[[], cli.RecordOutput],
    owner: Account | None,
    metrics: str | None = None,
    *,
    stats: bool,
) -> int:
    """Receive until a signal, the limit or the end of --duration."""
    from confluo_tools.capture.metrics import EXPORT_TOTALS, metrics_socket, numbers, serve_metrics
    from confluo_tools.cli.privileges import hand_over
    from confluo_tools.multilog.capture_statistics import CaptureRecord

    with listener, selection.signals(listener), ExitStack() as stack:
        listening = metrics_socket(metrics, stack)
        hand_over(out, owner)
        into: LogOutput | cli.RecordOutput = out if out is not None else records()
        watch = LossWatch(listener, selection)
        labels = {"addresses": ",".join(listener.names), "log": "" if out is None else out.path}
        serve_metrics(listening, labels, lambda: numbers(watch.latest, EXPORT_TOTALS), stack)
        record = None
        try:
            with into:
                if out is not None:
                    record = CaptureRecord(out.path, {"interfaces": dict.fromkeys(listener.names, 0)})
                    record.update(selection.figures(listener))
                    watch.record = lambda: record.update(watch.latest)
                elif isinstance(into, cli.RecordOutput):
                    listener.watch_output(into.fileno())
                listener.idle = watch.look
                if not cli.state.quiet:
                    cli.note(f"listening on {', '.join(listener.names)}; pid {os.getpid()}")
                for block, picks in selection.rows(listener):
                    into.write(block, picks)
                    into.flush()
                    if out is not None:  # the log has a copy of the rows
                        selection.decoder.reuse(block)
        finally:
            if record is not None:
                record.update(selection.figures(listener), "signal" if selection.stopped else "done")
            selection.remarks()
            if stats or selection.stopped:
                cli.note(selection.counts(listener))
    return 128 + selection.stopped if selection.stopped else cli.OK


def open_export_captures(
    paths: Sequence[str], addresses: Sequence[ExportAddress], decoder: FlowExports, schema: Schema, *, follow: bool
) -> Captures:
    """Captures with the datagrams that were sent to ``addresses``; port 0: to any port."""
    from confluo_tools.formats.pcap import open_captures

    decoder.select([(a.packed, a.port, a.sflow) for a in addresses])
    return open_captures(paths, schema, follow=follow, parser=decoder)
