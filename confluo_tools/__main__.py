"""confluo: the front door.  Dispatches to the commands below and to any confluo-* on PATH, as git does.

Standard library only, and little of it: `confluo --help` should cost no more than starting Python.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing costs more than all else here
if TYPE_CHECKING:
    from typing import TextIO

# name, group, one line
COMMANDS = (
    ("capture", "records", "packets, live or from captures, into records, or into a MultiLog"),
    ("convert", "records", "any input to any output: Parquet, Arrow, TSV, NDJSON, a MultiLog"),
    ("retx", "records", "what TCP sent and lost, socket by socket, as the kernel tells it"),
    ("trace", "records", "paths of flows that lose packets, by traceroutes with their own five-tuple"),
    ("query", "questions", "select, aggregate and print records"),
    ("snapshot", "questions", "one atomic cut through logs on many hosts, for query --at"),
    ("vote", "questions", "which links dropped packets, from the paths of flows and what they lost"),
    ("pingmesh", "questions", "is it the network? latency and loss between all servers"),
    ("monitor", "questions", "conditions over sliding windows, judged every millisecond; alerts are records"),
    ("index", "questions", "indexes, filters, aggregates and states of a MultiLog: add, drop, keep up to date"),
    ("info", "housekeeping", "what is in a MultiLog or a stream; --verify checks it"),
    ("archive", "housekeeping", "older rows of a MultiLog to Parquet; queries go on reading both"),
    ("serve", "housekeeping", "answer questions from another host; ssh runs it"),
    ("config", "housekeeping", "settings and where they come from"),
)
GROUPS = (("records", "Records in and out"), ("questions", "Questions"), ("housekeeping", "Housekeeping"))
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main(argv: list[str] | None = None) -> int:
    """Run ``confluo ARGS``."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        _print(usage(), sys.stderr)
        return 2
    first = args[0]
    if first in ("-h", "--help") or args == ["help"]:
        return _print(usage())
    if first == "--version":
        from confluo_tools import FORMAT_VERSION, __version__

        return _print(f"confluo {__version__} (format {FORMAT_VERSION})\n")
    if first == "help":
        return manual(args[1])
    if first.startswith("-"):
        _print(f"confluo: no such option: {first}; --help lists the commands\n", sys.stderr)
        return 2
    return dispatch(first, args[1:])


def launch() -> int:
    """What bin/confluo and its links call: the command is the name of the link."""
    import _signal  # type: ignore[import-not-found]  # signal would load enum

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback while modules load; `cli.run` takes it back
    name = os.path.basename(sys.argv[0])
    if name in ("confluo", "__main__.py"):
        return main()
    return dispatch(name.removeprefix("confluo-"), sys.argv[1:])


def dispatch(name: str, args: list[str]) -> int:
    """Run the command ``name``, ours or somebody's confluo-NAME on PATH."""
    if any(name == c[0] for c in COMMANDS):
        from importlib import import_module

        if name == "query" and any(":" in word or word.startswith("--at") for word in args):
            from confluo_tools.remote import spawn

            spawn.begin(args, _shell)  # hosts that it asks start to answer while it loads

        status: int = import_module("confluo_tools.commands." + name.replace("-", "_")).main(args)
        return status
    if "/" not in name:
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            path = os.path.join(folder or ".", "confluo-" + name)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                os.execv(path, [path, *args])
    from difflib import get_close_matches

    near = get_close_matches(name, [c[0] for c in COMMANDS], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "confluo --help lists the commands"
    _print(f"confluo: no command '{_plain(name)}'; {hint}\n", sys.stderr)
    return 2


def _shell() -> tuple[str, str]:
    """How other hosts are reached: the settings rsh and remote."""
    rsh, command = os.environ.get("CONFLUO_RSH", ""), os.environ.get("CONFLUO_REMOTE", "")
    if rsh and command:
        return rsh, command
    from confluo_tools import config

    return config.text("rsh"), config.text("remote")


def usage() -> str:
    lines = ["Usage: confluo COMMAND [ARGS...]", "", "Network records as a shared log, and Unix filters over it."]
    for group, title in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {name:<10} {line}" for name, its, line in COMMANDS if its == group]
    lines += [
        "",
        "Each command is also a program of its own: confluo-query is confluo query.",
        "'confluo help COMMAND' opens its manual; 'confluo help pipelines' shows worked examples.",
        "",
        "Examples:",
        "  confluo capture -r trace.pcap.gz -w trace.ml --index src_ip,dst_port",
        "  confluo query trace.ml 'dst_port == 443 && tcp_flags has syn' -f ts,src_ip,dst_ip",
        "  confluo info trace.ml",
        "",
    ]
    return "\n".join(lines)


def manual(topic: str) -> int:
    """Open the manual page of a command or a topic: ours if we find it, else what man(1) finds."""
    names = [topic] if topic.startswith(("confluo", "multilog")) else [f"confluo-{topic}", topic]
    folders = (os.path.join(ROOT, "man"), os.path.join(sys.prefix, "share", "man"))
    for name in names:
        for folder in folders:
            for section in "1857":
                page = os.path.join(folder, f"man{section}", f"{name}.{section}")
                if os.path.exists(page):
                    return _exec(["man", "-l", page], ["mandoc", "-a", page], ["nroff", "-man", page], ["cat", page])
    return _exec(["man", names[0]])


def _exec(*commands: list[str]) -> int:
    for command in commands:
        try:
            os.execvp(command[0], command)
        except OSError:
            continue
    _print("confluo: man is not installed\n", sys.stderr)
    return 2


def _print(text: str, to: TextIO | None = None) -> int:
    try:
        out = to or sys.stdout
        out.write(text)
        out.flush()
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (OSError, AttributeError, ValueError) as e:
        if to is None:
            _print(f"confluo: standard output: {getattr(e, 'strerror', None) or 'closed'}\n", sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 2


def _plain(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()


if __name__ == "__main__":
    sys.exit(main())
