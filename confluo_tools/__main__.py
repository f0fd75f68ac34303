"""confluo: runs the commands below, and any confluo-* on PATH, as git does.

It imports little, and only from the standard library: `confluo --help` costs no more than starting Python.
"""

from __future__ import annotations

import os
import sys

from confluo_tools.plain_print import plain_print

# (name, group, purpose): README.md has the same table
COMMANDS = (
    ("capture", "records", "record packets from interfaces or capture files"),
    ("convert", "records", "convert records between formats, or into a MultiLog"),
    ("flows", "records", "turn packets into flow records, live or from files"),
    ("retx", "records", "record TCP retransmissions per socket, from the kernel"),
    ("trace", "records", "trace paths of flows that lose packets, with their five-tuples"),
    ("replay-record", "records", "record what TCP connections did, so that they can be replayed"),
    ("stream", "records", "send records to Kafka, and see what is in its topics"),
    ("query", "questions", "select, aggregate and print records"),
    ("top", "questions", "show the groups with the largest rates, every second"),
    ("sql", "questions", "ask logs, captures, streams and archives in SQL"),
    ("snapshot", "questions", "record one atomic snapshot of logs on many hosts"),
    ("vote", "questions", "find links that drop packets, from paths and losses of flows"),
    ("pingmesh", "questions", "measure latency and loss between all servers; locate faults"),
    ("replay", "questions", "replay TCP connections exactly, explain them; replay queues"),
    ("monitor", "questions", "evaluate triggers over sliding windows; write alerts"),
    ("index", "questions", "add, drop and update indexes, filters, aggregates and states"),
    ("topology", "housekeeping", "check and join topology files, convert older ones"),
    ("info", "housekeeping", "summarize a log, a stream or a capture; --verify checks it"),
    ("archive", "housekeeping", "move older rows of a MultiLog to Parquet; queries read both"),
    ("serve", "housekeeping", "serve logs to queries from other hosts; ssh starts it"),
    ("config", "housekeeping", "print the settings and their origins"),
)
GROUPS = (("records", "Records in and out"), ("questions", "Analysis"), ("housekeeping", "Administration"))
SYSTEMS = frozenset(
    {"capture", "retx", "trace", "vote", "pingmesh", "replay", "monitor", "stream", "sql", "top"}
)  # a package each
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main(argv: list[str] | None = None) -> int:
    """Run ``confluo ARGS``."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args:
        plain_print("confluo", usage(), sys.stderr)
        return 2
    first = args[0]
    if first in ("-h", "--help") or args == ["help"]:
        return plain_print("confluo", usage())
    if first == "--version":
        from confluo_tools import FORMAT_VERSION, __version__

        return plain_print("confluo", f"confluo {__version__} (format {FORMAT_VERSION})\n")
    if first == "help":
        return manual(args[1])
    if first.startswith("-"):
        plain_print("confluo", f"confluo: no such option: {first}; --help lists the commands\n", sys.stderr)
        return 2
    return dispatch(first, args[1:])


def launch() -> int:
    """Entry point of bin/confluo and its links: the name of the link is the command."""
    import _signal  # type: ignore[import-not-found]  # signal would load enum

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback while modules load; `cli.run` takes it back
    name = os.path.basename(sys.argv[0])
    if name in ("confluo", "__main__.py"):
        return main()
    return dispatch(name.removeprefix("confluo-"), sys.argv[1:])


def dispatch(name: str, args: list[str]) -> int:
    """Run the command ``name``: one of `COMMANDS`, or confluo-NAME on PATH."""
    if any(name == c[0] for c in COMMANDS):
        from importlib import import_module

        if name == "query" and any(":" in word or word.startswith("--at") for word in args):
            from confluo_tools.remote import ssh_process

            ssh_process.begin(args, _shell)  # connect to the hosts while the command loads

        status: int = import_module(module_of(name)).main(args)
        return status
    if "/" not in name:
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            path = os.path.join(folder or ".", "confluo-" + name)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                os.execv(path, [path, *args])
    from difflib import get_close_matches

    near = get_close_matches(name, [c[0] for c in COMMANDS], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "confluo --help lists the commands"
    plain_print("confluo", f"confluo: no command '{_plain(name)}'; {hint}\n", sys.stderr)
    return 2


def module_of(name: str) -> str:
    """The module of a command: in the package of its system, or in `commands`."""
    stem = name.replace("-", "_")
    if name == "replay-record":
        return "confluo_tools.replay.record.command"
    return f"confluo_tools.{stem}.command" if name in SYSTEMS else f"confluo_tools.commands.{stem}"


def _shell() -> tuple[str, str]:
    """The settings rsh and remote: the remote shell, and the command on the other host."""
    rsh, command = os.environ.get("CONFLUO_RSH", ""), os.environ.get("CONFLUO_REMOTE", "")
    if rsh and command:
        return rsh, command
    from confluo_tools import config

    return config.text("rsh"), config.text("remote")


def usage() -> str:
    lines = ["Usage: confluo COMMAND [ARGS...]", "", "Network records as a shared log, and Unix filters over it."]
    width = max(len(name) for name, _, _ in COMMANDS)
    for group, title in GROUPS:
        lines += ["", f"{title}:"]
        lines += [f"  {name:<{width}}  {line}" for name, its, line in COMMANDS if its == group]
    lines += [
        "",
        "Each command is also a program: confluo-query is confluo query.",
        "'confluo help COMMAND' opens its manual page; 'confluo help pipelines' shows examples.",
        "",
        "Examples:",
        "  confluo capture -r trace.pcap.gz -w trace.ml --index src_ip,dst_port",
        "  confluo query trace.ml 'dst_port == 443 && tcp_flags has syn' -f ts,src_ip,dst_ip",
        "  confluo info trace.ml",
        "",
    ]
    return "\n".join(lines)


def manual(topic: str) -> int:
    """Open the manual page of a command or a topic: that of this installation, or what man(1) finds."""
    names = [topic] if topic.startswith(("confluo", "multilog")) else [f"confluo-{topic}", topic]
    folders = (os.path.join(ROOT, "man"), os.path.join(sys.prefix, "share", "man"))
    for name in names:
        for folder in folders:
            for section in "1857":
                page = os.path.join(folder, f"man{section}", f"{name}.{section}")
                if os.path.exists(page):
                    return _exec(["man", "-l", page], ["mandoc", "-a", page], ["nroff", "-man", page], ["cat", page])
    for name in names:
        if _found(name):
            return _exec(["man", name])
    plain_print(
        "confluo", f"confluo: no manual page for '{_plain(topic)}'; confluo --help lists the commands\n", sys.stderr
    )
    return 2


def _found(name: str) -> bool:
    """Whether man(1) has a page of this name."""
    import subprocess

    try:
        return subprocess.run(["man", "-w", "--", name], capture_output=True).returncode == 0
    except OSError:
        return False


def _exec(*commands: list[str]) -> int:
    for command in commands:
        try:
            os.execvp(command[0], command)
        except OSError:
            continue
    plain_print("confluo", "confluo: man is not installed\n", sys.stderr)
    return 2


def _plain(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()


if __name__ == "__main__":
    sys.exit(main())
