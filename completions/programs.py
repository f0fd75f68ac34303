"""What there is to complete: the commands, their verbs and their options, and the values that an option takes.

Names, help and formats come from the commands.  What the values of an option are depends on its metavar (`KINDS`) or,
where a metavar does not say it, on the option (`OF_OPTION`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from confluo_tools import config, schema  # noqa: E402
from confluo_tools.__main__ import COMMANDS, module_of  # noqa: E402
from confluo_tools.expr.aggregate_functions import WRITTEN  # noqa: E402
from confluo_tools.formats.registry import INPUTS  # noqa: E402
from confluo_tools.verbs import Verb  # noqa: E402
from confluo_tools.vote.registry import NAMES as MODELS  # noqa: E402

# Commands that have verbs, and do something without one.
WITHOUT_VERB = {"replay": "confluo_tools.replay.engine.replay_command", "vote": "confluo_tools.vote.analyse_command"}


class Values(NamedTuple):
    """What may follow.  ``kind``: any, file, folder, interface, user, word, list (words with commas between them)."""

    kind: str
    words: tuple[str, ...] = ()
    files: bool = False  # a file as well as one of the words


class Option(NamedTuple):
    names: tuple[str, ...]
    values: Values | None  # None: a flag
    many: bool  # may be repeated
    help: str


class Program(NamedTuple):
    """A command, or a verb of one: ``path`` is 'query', 'pingmesh plan'."""

    path: str
    help: str
    options: tuple[Option, ...]
    operands: tuple[Values, ...]  # one after the other; the last one repeats
    verbs: tuple[tuple[str, str], ...]  # (name, help)


def words(*names: str, files: bool = False) -> Values:
    return Values("word", tuple(names), files)


FILE, FOLDER, ANY = Values("file"), Values("folder"), Values("any")
STATES = tuple(sorted(p.stem for p in (ROOT / "confluo_tools" / "multilog" / "query" / "states").glob("*.yaml")))

# {metavar: values}; what is not here takes numbers, times, addresses or expressions.
KINDS = {
    "FILE": FILE,
    "FILE.html": FILE,
    "LOG": FILE,
    "INPUT": FILE,
    "PATH": FILE,
    "KEY": FILE,
    "DIR": FOLDER,
    "USER": Values("user"),
    "MODEL": words(*MODELS, "help"),
    "STATE": words(*STATES, files=True),
}
# Options with one of these metavars have a row in OF_OPTION: they take one of some words.
CHOICES = {
    "CLOCK",
    "GRADE",
    "HOW",
    "KIND",
    "KINDS",
    "LEVEL",
    "MODEL",
    "OS",
    "SCOPE",
    "SIDE",
    "SOURCE",
    "UNIT",
    "WHAT",
    "WHEN",
    "WHICH",
}

# {option, or 'PATH option': values}
OF_OPTION = {
    "--adjust": words("flows", "ecmp", "none"),
    "--alerts": words("none", files=True),
    "--allow": words("loopback", "broadcast", "multicast", "foreign"),
    "pingmesh agent --allow": ANY,
    "--analyze": words("tcp", *STATES),
    "--as": words("source", "target"),
    "--bound": words("full", "paper"),
    "--by": Values("list"),  # the fields
    "pingmesh heatmap --by": words("pod", "podset", "server", "dc"),
    "pingmesh sla --by": words("all", "server", "pod", "podset", "dc", "service"),
    "replay explain --by": words("cause", "size"),
    "vote --by": words("link", "switch"),
    "--agg": Values("list", WRITTEN),
    "--codec": words("none", "lz4", "zstd", "snappy"),
    "--color": words("auto", "always", "never"),
    "--controller": FOLDER,
    "--decap": words("outer", "inner"),
    "--drops": words("recorded", "buffer"),
    "--dscp": words("cs1", "ef"),
    "--engine": words("local", "dask://", "spark://"),
    "replay --engine": words("serial", "decoupled", "naive"),
    "--fanout": words("hash", "cpu", "rr"),
    "--field": Values("list"),
    "--fields": Values("list", ("help",)),
    "--grade": words("strict", "default"),
    "--healthy": words("path", "ecmp", "none"),
    "vote simulate --healthy": words("none", "bare", "path"),
    "--holes": words("pairs", "flows", "none"),
    "--index": Values("list"),
    "--input-format": words(*INPUTS),
    "--interface": Values("interface"),
    "--kind": words("tcp", "echo", "http", "https", "udp", "icmp"),
    "--level": words("signals", "headers"),
    "--metric": words("drop", "failed", "p50", "p99", "p999"),
    "pingmesh heatmap --metric": words("p50", "p99", "drop"),
    "--palette": words("paper", "safe"),
    "--prior": ANY,
    "--quirks": Values("list", ("last-hop", "two-draws", "culprit", "all")),
    "--rank": words("bytes", "packets"),
    "--schema": words(*schema.builtin_names(), files=True),
    "--signature": words("linux", "linux-classic", "windows"),
    "--sizes": words("uniform", "pareto"),
    "--sort": Values("list"),
    "--source": FILE,
    "pingmesh probe --source": ANY,
    "replay-record run --source": words("tracefs", "bpf"),
    "replay-record attach --source": words("tracefs", "bpf"),
    "--sync": words("none", "seal", "batch"),
    "--telemetry-clock": words("us", "ns"),
    "--theme": words("light", "dark", "auto"),
    "--timestamps": words("host", "hardware"),
    "--to": FILE,
    "--total": words("running", "initial"),
    "--trace": words("auto", "always", "never"),
    "replay --trace": Values("list", ("tcp_probe", "cong_state", "retransmit")),
    "--traffic": words("uniform", "skewed", "hot"),
    "--unequal": words("wrap", "skip"),
    "--unnest": Values("list"),
    "--where": ANY,
    "vote simulate --where": Values("list", ("fabric", "all", "tor-t1", "t1-t2")),
}
FIELD_LISTS = frozenset({"--by", "--field", "--fields", "--index", "--sort", "--unnest"})
# The schema with the fields of a command's records, where it is not that of packets.
FIELDS_OF = {
    "flows": "conn",
    "retx": "retx",
    "trace": "path",
    "monitor": "alert",
    "pingmesh": "probe",
    "replay": "recording",
    "replay explain": "explanation",
    "replay queues": "passage",
    "replay-record": "recording",
    "vote": "vote",
}
OPERANDS = {
    "[INPUT]...": (FILE,),
    "[INPUT]... [EXPR]": (FILE,),
    "[A] [B] [EXPR]": (FILE,),
    "[HOST:]LOG...": (FILE,),
    "LOG": (FILE,),
    "LOG...": (FILE,),
    "FILE": (FILE,),
    "[SERVERS]": (FILE,),
    "TOPOLOGY": (FILE,),
    "LISTS": (FOLDER,),
    "COMMAND...": (FILE,),
    "A": (FILE,),
    "B": (FILE,),
    "[EXPR]": (ANY,),
    "STATEMENT": (ANY,),
    "TARGET...": (ANY,),
    "CLUSTER": (ANY,),
    "NAME": (ANY,),
}


def programs() -> list[Program]:
    """Every command and every verb, in the order of `confluo --help`."""
    found = []
    for name, _, text in COMMANDS:
        found += _programs(name, module_of(name), text)
    return found


def topics() -> list[str]:
    """What `confluo help` opens: commands, and the pages of the other sections."""
    pages = [page.stem for page in sorted((ROOT / "man").glob("man[57]/*"))]
    verbs = [program.path.replace(" ", "-") for program in programs()]
    return [
        *dict.fromkeys([name for name, _, _ in COMMANDS] + verbs + [page.removeprefix("confluo-") for page in pages])
    ]


def _programs(path: str, module_name: str, text: str) -> list[Program]:
    module: Any = import_module(module_name)
    verbs: tuple[Verb, ...] = getattr(module, "VERBS", ())
    app = getattr(module, "app", None)
    if path in WITHOUT_VERB:
        app = import_module(WITHOUT_VERB[path]).app
    elif app is None and not verbs:
        app = module.typed_app()
    params = typer.main.get_command(app).params if app is not None else []
    options = [_option(path, p) for p in params if p.param_type_name == "option"]
    options += [Option((name,), None, False, its) for name, its in GENERAL]
    operands: list[Values] = []
    for one in params:
        if one.param_type_name == "argument":
            operands += _operands(path, one.metavar)
    mine = Program(path, text, tuple(options), tuple(operands), tuple((verb.name, verb.help) for verb in verbs))
    below = [_programs(f"{path} {v.name}", f"{module.__package__}.{v.module}", v.help) for v in verbs]
    return [mine, *(one for some in below for one in some)]


GENERAL = (
    ("-h", "Print usage, the main options and examples."),
    ("--help", "Print the help."),
    ("--version", "Print the version."),
)


def _option(path: str, param: Any) -> Option:
    # click sorts -o before --format by the order of declaration; flags may have a name that turns them off
    names = (*param.opts, *param.secondary_opts)
    many = bool(param.multiple or param.count)
    return Option(names, None if param.is_flag else _values(path, names, param), many, param.help or "")


def _values(path: str, names: tuple[str, ...], param: Any) -> Values:
    long = max(names, key=len)
    if long == "--format":
        listed = param.help.partition("Write ")[2].partition(".")[0]
        return words(*listed.replace(" or ", ", ").split(", "))
    found = OF_OPTION.get(f"{path} {long}") or OF_OPTION.get(long)
    if found is None:
        if param.metavar in CHOICES - set(KINDS):
            raise SystemExit(f"completions/update: {path} {long} {param.metavar}: add its words to OF_OPTION")
        found = KINDS.get(param.metavar, ANY)
    if long in FIELD_LISTS and found.kind == "list":
        return found._replace(words=(*_fields(path), *found.words))
    return found


def _fields(path: str) -> tuple[str, ...]:
    names = [" ".join(path.split()[:n]) for n in (3, 2, 1)]
    name = next((FIELDS_OF[one] for one in names if one in FIELDS_OF), "packet")
    return tuple(field.name for field in schema.builtin(name).fields)


def _operands(path: str, metavar: str) -> tuple[Values, ...]:
    if path == "config":
        return (words(*config.KEYS),)
    if "[add|" in metavar:  # logs, the verbs of confluo-index, and views
        verbs = metavar.partition("[")[2].partition(" ")[0].split("|")
        return (
            FILE,
            words(*verbs, files=True),
            words(*verbs, "filter", "aggregate", "state", *_fields(path), files=True),
        )
    if metavar not in OPERANDS:
        raise SystemExit(f"completions/update: {path} {metavar}: add it to OPERANDS")
    return OPERANDS[metavar]
