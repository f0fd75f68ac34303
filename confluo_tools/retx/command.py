"""confluo-retx: packets sent and lost by each TCP socket, from the kernel.  Manual: confluo-retx(1)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from signal import SIGPIPE
from typing import TYPE_CHECKING, Annotated

from confluo_tools import cli
from confluo_tools.cli.log_output import LogOutput
from confluo_tools.cli.options import option
from confluo_tools.errors import UsageError

if TYPE_CHECKING:
    from confluo_tools.core.block.block import Block, Picks
    from confluo_tools.core.query.predicate import Program
    from confluo_tools.multilog.capture_statistics import CaptureRecord
    from confluo_tools.retx.sock_diag import SockDiagWatch

app = cli.command_app(
    """
# which connections are losing packets right now?
confluo-retx -o table

# the monitoring agent of a host: record each loss as it happens
sudo confluo-retx --follow -w retx.ml --keep 1d -Z nobody

# losses of the last ten seconds by destination
confluo-retx --follow --duration 10s -o stream | confluo-query - --agg 'sum(lost), sum(sent)' --by dst_ip

# all sockets of a network namespace, also without losses, as confluo-vote --model mle needs them
sudo confluo-retx --netns web --follow --all -w web.ml
"""
)

RECORD = 1.0  # s between updates of the counters in the log
MEMORY = 45  # MB: upper bound with the default --flows

MIN_TIME = 10_000_000  # ns of --interval and --duration


Follow = Annotated[bool, option("--follow", help="Record losses as they happen, until a signal.")]
All = Annotated[bool, option("--all", help="Include sockets without losses.")]
Interval = Annotated[
    str | None, option("--interval", metavar="TIME", help="Poll all sockets every TIME (1s; 10s when traced).")
]
Trace = Annotated[
    str | None, option("--trace", metavar="WHEN", help="Trace single retransmissions: auto, always or never.")
]
Netns = Annotated[str | None, option("--netns", metavar="NAME", help="Use this network namespace: a name or a path.")]
Flows = Annotated[
    int | None, option("--flows", metavar="N", min=16, max=1 << 24, help="Keep at most N sockets (65536).")
]
Cpu = Annotated[str | None, option("--cpu", metavar="SHARE", help="Use at most SHARE of one core (3%).")]


@app.command(
    panels={"Options": "--follow --interval -w --all --netns --duration", "Input": "--trace", "Limits": "--flows --cpu"}
)
def retx(
    expr: cli.Expr = None,
    follow: Follow = False,
    all: All = False,
    interval: Interval = None,
    trace: Trace = None,
    netns: Netns = None,
    flows: Flows = None,
    cpu: Cpu = None,
    duration: cli.Duration = None,
    limit: cli.Limit = None,
    user: cli.User = None,
    *,
    out: cli.RecordingOptions,
    common: cli.CommonOptions,
) -> int:
    """Print what TCP sockets have lost, or follow what they lose."""
    from confluo_tools.schema import builtin

    only_following = {
        "--interval": interval,
        "--trace": trace,
        "--duration": duration,
        "-Z": user,
        "--keep": out.keep,
        "--cpu": cpu,
        "--flows": flows,
    }
    for name, given in only_following.items():
        if given is not None and not follow:
            raise UsageError(f"{name} requires --follow")
    schema = builtin("retx")
    if out.listed(schema):
        return cli.OK
    kind, names = out.kind(), out.names(schema)
    program = None
    if expr:
        from confluo_tools import config
        from confluo_tools.expr import compile, read_list

        compiled = compile(" ".join(expr), schema, local=config.truth("local", out.local), lists=read_list)
        for line in compiled.notes:
            cli.tell(line)
        program = compiled.program
    log = out.log(schema, names, views=follow, small=True) if kind == "multilog" else None
    from confluo_tools.cli.privileges import account, hand_over
    from confluo_tools.retx.sock_diag import CPU, FLOWS, open_watch

    owner = account(user) if user is not None else None
    watch = open_watch(
        follow=follow,
        all=all,
        netns=netns,
        trace=cli.one_of("--trace", "auto" if trace is None else trace, ("auto", "always", "never")),
        flows=flows or FLOWS,
        cpu=CPU if cpu is None else cli.core_share("--cpu", cpu),
        interval=cli.seconds("--interval", interval, MIN_TIME),
        seconds=cli.seconds("--duration", duration, MIN_TIME),
        tell=cli.tell,
    )

    run = RetxRun(watch, program, limit)
    with watch, cli.signals(run.stop, counts=run.counts):
        # The writer to stdout is made before privileges go: later the modules may not be readable.
        into: LogOutput | cli.RecordOutput | None = log
        if log is None and out.output in (None, "-"):
            into = out.records(schema, kind, names)
        hand_over(log, owner)
        into = into if into is not None else out.records(schema, kind, names)
        try:
            with into:
                run.into(into, follow=follow)
        except BrokenPipeError:
            if not follow:
                raise
            run.stopped = run.stopped or SIGPIPE
        finally:
            if common.stats or (run.stopped not in (0, SIGPIPE) and not cli.state.quiet):
                cli.note(run.counts())
    if run.stopped:
        return 128 + run.stopped
    return cli.OK if run.rows or follow else cli.NOTHING


class RetxRun:
    """Writes the rows of a watch: those for which ``program`` holds, at most ``limit`` of them."""

    def __init__(self, watch: SockDiagWatch, program: Program | None, limit: int | None) -> None:
        self.watch, self.program, self.limit = watch, program, limit
        self.rows = self.stopped = 0
        self.over = False
        self._start = time.monotonic()

    def stop(self, number: int) -> None:
        self.stopped = number
        self.watch.stop()

    def chosen(self, block: Block) -> tuple[int, Picks | None]:
        """The number of rows to keep, and which (None: all)."""
        from confluo_tools.core.block.block import Picks

        picks = self.program.select(block) if self.program is not None else None
        kept = block.rows if picks is None else len(picks)
        if self.limit is not None and self.rows + kept >= self.limit:
            kept = self.limit - self.rows
            picks = Picks.of(block.rows, range(kept) if picks is None else picks.tolist()[:kept])
        return kept, picks

    def into(self, out: LogOutput | cli.RecordOutput, *, follow: bool) -> None:
        record = None
        if isinstance(out, LogOutput) and follow:
            from confluo_tools.multilog.capture_statistics import CaptureRecord

            record = CaptureRecord(out.path, {"interfaces": {"retx": 0}, "sources": ", ".join(self.watch.sources)})
        if follow:
            self.watch.begin()
            if not cli.state.quiet:
                cli.note(f"following {', '.join(self.watch.sources)}; pid {os.getpid()}")
        next_record = 0.0
        ended = "trouble"
        try:
            for block in self.watch if self.limit != 0 else ():
                kept, picks = self.chosen(block)
                if kept:
                    out.write(block, picks)
                    self.rows += kept
                    out.flush()
                if record is not None and time.monotonic() >= next_record:
                    next_record = time.monotonic() + RECORD
                    self.note(record)
                if self.limit is not None and self.rows >= self.limit:
                    break
            self.over = follow and (self.limit is None or self.rows < self.limit)
            ended = "signal" if self.stopped else "done"
        finally:
            if record is not None:
                self.note(record, ended)

    def note(self, record: CaptureRecord, ended: str = "") -> None:
        """Update the counters in the folder of the log; the keys are those of all captures."""
        figures = self.figures()
        lost = figures["ends not heard"] + figures["not traced"]
        record.update({"packets received": figures["retransmissions"], "dropped by the kernel": lost} | figures, ended)

    def figures(self) -> dict[str, int]:
        """Counts so far."""
        seen = self.watch.counts
        figures = {
            "kept": self.rows,
            "retransmissions": seen["retrans"],
            "lost": seen["lost"],
            "traced": seen["traced"],
            "sockets ended": seen["ended"],
            "looks": seen["looked"],
            "ends not heard": seen["lost_ends"],
            "not traced": seen["untraced"],
        }
        missed = seen["kernel_retrans"] - seen["retrans"] if self.over else 0  # before, some are still pending
        more = {
            "retransmissions not recorded": missed,
            "of flows not followed": seen["excess"],
            "sockets not followed": seen["unfollowed"],
            "DSACKs too late": seen["late_dsack"],
            "malformed": seen["malformed"],
        }
        return figures | {name: n for name, n in more.items() if n > 0}

    def counts(self) -> str:
        """Counts so far, on one line."""
        figures = self.figures()
        parts = [f"{figures.pop('kept')} records", *(f"{n} {what}" for what, n in figures.items())]
        return ", ".join([*parts, f"{time.monotonic() - self._start:.2f} s"])


def main(argv: Sequence[str] | None = None) -> int:
    return cli.run(app, "confluo-retx", argv, owns_state=True)
