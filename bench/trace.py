"""Path discovery: how long many flows take, and what a storm of records costs.

usage: bench/trace.py [FLOWS]     (1000; needs root)

Bars: 1,000 flows are traced within 1 s when answers come (the paper's agent probes one flow after the other; a script
that waits 150 ms for each would take 150 s); a million records a second are taken by one core while the bucket lets a
few flows through.

`flows`: a network of namespaces, 2 ToRs and 4 switches between them, all on this machine, so that the kernel's
forwarding of all hops is in the wall clock; `known ToR`: with a topology, so that nothing is waited for.  Seconds of
wall clock from the first record to the last path, CPU of the command alone (without the kernel's forwarding, which
runs in the senders' time: system time holds it), probes, answers, paths that are whole and right.
`storm`: records of flows that lose packets, as blocks in memory (`book`: what the core does with them) and through a
pipe into the command, which traces one flow per second: millions of records a second, CPU seconds, peak memory.

Prints TSV.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import ROOT, header, row

sys.path.insert(0, str(ROOT / "tests" / "support"))

from confluo_tools.core.block.block import Block
from confluo_tools.core.trace.flow_table import FlowTable
from confluo_tools.schema import builtin
from netns import Lab, missing
from running import environment
from trace_lab import TRACE, Net, fabric, records, stream

STORM = 5_000_000  # records
NAMES = ("what", "flows", "wall_s", "cpu_s", "probes", "answers", "whole", "per_s", "peak_mb")


def traced(net: Net, data: bytes | Path, *words: object) -> tuple[float, float, str, int, int]:
    """Seconds of wall clock inside the command, of CPU, its last words, records and peak bytes."""
    with open(data, "rb") if isinstance(data, Path) else tempfile.TemporaryFile() as given:
        if isinstance(data, bytes):
            given.write(data)
            given.seek(0)
        cat = subprocess.Popen(["cat"], stdin=given, stdout=subprocess.PIPE)  # a pipe: a file would be mapped
        child = net.spaces["a"].popen(
            TRACE,
            *words,
            "--stats",
            "-T",
            "--no-header",
            "-f",
            "hops,notes",
            stdin=cat.stdout,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert child.stdout is not None
        assert child.stderr is not None
        out = child.stdout.read()
        said = child.stderr.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        cat.communicate()
    if child.returncode:
        raise RuntimeError(said)
    wall = float(said.rsplit(", ", 1)[1].split()[0])
    whole = sum(text == b"3\t-" for text in out.splitlines())
    return wall, usage.ru_utime + usage.ru_stime, said, whole, usage.ru_maxrss * 1024


def figure(said: str, what: str) -> int:
    words = said.replace(",", "").split()
    return int(words[words.index(what) - 1])


def flows(n: int) -> None:
    with Lab() as lab:
        net = fabric(lab, 4, six=True)
        topology = Path(tempfile.mkdtemp()) / "net.yaml"
        alias = {
            node: [a for (at, _), a in (*net.address.items(), *net.address6.items()) if at == node]
            for node in net.spaces
            if node not in "ab"
        }
        text = "".join(f"  {node}: {{addresses: {its}}}\n" for node, its in alias.items())
        links = [[tor, m] for m in ("m1", "m2", "m3", "m4") for tor in "xy"]
        topology.write_text(
            f"switches:\n{text}links: {links}\nhosts: {{a: x, b: y}}\n"
            f"aliases: {{'{net.host('a')}': a, '{net.host('b')}': b}}\n"
        )
        try:
            for six, what, words in (
                (False, "flows", ()),
                (True, "flows IPv6", ()),
                (False, "known ToR", ("--topology", str(topology))),
            ):
                a, b = net.host("a", six), net.host("b", six)
                data = stream(records([(a, b, 1024 + i % 60000, 443 + i // 60000) for i in range(n)]))
                wall, cpu, said, whole, peak = traced(net, data, "--rate", "100000", "--burst", str(n), *words)
                row(
                    what,
                    n,
                    f"{wall:.3f}",
                    f"{cpu:.2f}",
                    figure(said, "probes"),
                    figure(said, "answers"),
                    whole,
                    f"{n / max(wall, 0.001):.0f}",
                    peak >> 20,
                )
        finally:
            topology.unlink()
            topology.parent.rmdir()


def storm() -> None:
    schema = builtin("retx")
    ts = 1_700_000_010_000_000_000
    here, there = (int.from_bytes(socket.inet_aton(a), "big") for a in ("10.88.1.0", "10.88.4.1"))
    n = 65536
    columns = []
    for column in schema.columns:
        value = {
            "ts": ts,
            "ip_version": 4,
            "proto": 6,
            "src_ip": here,
            "dst_ip": there,
            "dst_port": 443,
            "sent": 10,
            "lost": 1,
            "retrans": 1,
        }.get(column.name, 0)
        size = column.size * column.count
        if column.name == "src_port":
            columns.append(b"".join((i * 7919 % 50000 + 1024).to_bytes(2, "little") for i in range(n)))
        else:
            columns.append(value.to_bytes(size, "little") * n)
    block = Block.wrap(schema.layout, n, columns)
    book = FlowTable(schema.layout)
    start, cpu = time.perf_counter(), time.process_time()
    turns = STORM // n
    for _ in range(turns):
        book.take(block)
    wall = time.perf_counter() - start
    row(
        "storm, book",
        len(book),
        f"{wall:.3f}",
        f"{time.process_time() - cpu:.2f}",
        "-",
        "-",
        "-",
        f"{turns * n / wall:.0f}",
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    )
    with Lab() as lab, tempfile.TemporaryDirectory() as folder:
        net = fabric(lab, 1)
        path = Path(folder) / "storm.arrows"
        from confluo_tools.formats.arrow import metadata_of
        from confluo_tools.formats.output_file import open_sink
        from confluo_tools.formats.writers import open_writer

        sink = open_sink(str(path))
        writer = open_writer("stream", schema, sink, metadata=metadata_of(schema, {}, "bench", "here", "UTC"))
        writer.start()
        for _ in range(turns):
            writer.write(block, None)
        writer.close()
        sink.close()
        wall, cpu, said, _, peak = traced(net, path, "--rate", "1", "--duration", "60s", "--epoch", "1s")
        row(
            "storm, command",
            figure(said, "written"),
            f"{wall:.3f}",
            f"{cpu:.2f}",
            figure(said, "probes"),
            figure(said, "answers"),
            "-",
            f"{turns * n / wall:.0f}",
            peak >> 20,
        )


def main() -> int:
    if missing():
        print(f"bench/trace.py: {missing()}", file=sys.stderr)
        return 2
    header(*NAMES)
    flows(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    storm()
    return 0


if __name__ == "__main__":
    sys.exit(main())
