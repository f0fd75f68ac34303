"""Who may import whom, read from the syntax trees; the compiled core from its import lines.

The plan is section 7 of DESIGN.md: the platform in layers, and above it the systems; no system imports another.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "confluo_tools"

# The platform, lowest layer first: a package imports what is in an earlier line, and itself.
PLATFORM: tuple[tuple[str, ...], ...] = (
    ("errors", "core", "stop_signals", "hidden_numpy", "verbs", "plain_print"),
    ("units", "guarded_yaml"),
    ("objects",),
    ("schema",),
    ("expr",),
    ("formats",),
    ("config",),
    ("console",),
    ("kernel", "multilog", "network", "endpoint"),
    ("remote", "kafka", "engine"),
    ("clickhouse", "chart"),
    ("inputs",),
    ("api",),
    ("cli",),
)
# Each is a package with its own commands, algorithms and I/O.  What passes between them is records.
SYSTEMS = {"capture", "monitor", "retx", "trace", "vote", "pingmesh", "replay", "stream", "sql", "top"}
COMMANDS = {"commands"}  # of the platform itself: query, index, info ...
BELOW = {name: {"", *(n for line in PLATFORM[:i] for n in line)} for i, line in enumerate(PLATFORM) for name in line}
ALLOWED: dict[str, set[str]] = {
    "": {"api"},  # confluo_tools/__init__.py: the names of the API, loaded when they are used
    "__main__": {"", "config", "plain_print", "remote"},  # the shells to other hosts start before all else is loaded
    **BELOW,
    "core": set(),
    "formats": BELOW["formats"] - {"expr"},
    "config": {"", "errors", "formats", "guarded_yaml"},
    "console": {"", "config", "errors"},
    "kernel": BELOW["kernel"] - {"console", "config"},
    "multilog": BELOW["multilog"] - {"console", "config"},
    "network": BELOW["network"] - {"console", "config"},
    "endpoint": {"", "errors"},
    "engine": BELOW["engine"] - {"config", "kernel", "network", "endpoint"},
    "remote": BELOW["remote"] - {"console", "config", "kernel", "network", "endpoint"},
    **{name: {"", *(n for line in PLATFORM for n in line)} for name in SYSTEMS | COMMANDS},
}
# The compiled core has the same subjects; a subject of a system is that system's alone.
CORE: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("block",),
    ("text", "packets", "query", "parquet", "kafka"),
    ("multilog", "clickhouse", "flows"),
    ("kernel",),
)
CORE_ALLOWED = {name: {n for line in CORE[:i] for n in line} for i, line in enumerate(CORE) for name in line} | {
    name: {n for line in CORE for n in line} for name in SYSTEMS
}
GENERATED = {"c_packet_columns": "packets", "c_link_types": "packets"}  # by pyx/packets/generate.py
HEADERS = {p.stem: p.parent.name for p in (ROOT / "pyx").rglob("c_*.pxd")} | GENERATED
# Imported only inside functions: a command that does not need them should not load them.
LAZY_FOR = {
    "cli": {"formats", "config", "schema", "core", "multilog", "remote"},
    "inputs": {"multilog", "formats", "config", "schema", "kafka"},
    "console": {"config"},
}
CHEAP = ("confluo_tools.formats.registry.",)  # a table of names: also there outside a function

# Other people's packages: where they may be imported at all, and which of them only inside functions.
THIRD: dict[str, tuple[str, ...]] = {
    "typer": ("cli/", "inputs/", "commands/", *(f"{name}/" for name in sorted(SYSTEMS))),
    "rich": ("formats/table.py", "pingmesh/heatmap/text.py", "cli/"),
    "resvg_py": ("pingmesh/heatmap/svg.py",),
    "dpkt": ("formats/", "capture/"),
    "yaml": ("guarded_yaml.py",),
    "pyarrow": ("formats/", "multilog/archive/"),
    "zstandard": ("formats/", "pingmesh/"),
    "scipy": ("vote/integer_programs.py", "network/"),
    "cryptography": (
        "pingmesh/agent/controller_client.py",
        "pingmesh/controller/tls.py",
        "pingmesh/plan/pinglist_folder.py",
    ),
    "confluent_kafka": ("kafka/",),
    "duckdb": ("sql/",),
    "distributed": ("engine/",),
    "pyspark": ("engine/",),
    "obstore": ("objects/",),
    "botocore": ("objects/access.py",),
    "starlette": ("pingmesh/controller/asgi_app.py",),
    "uvicorn": ("pingmesh/controller/http_server.py",),
    "prometheus_client": (
        "pingmesh/controller/asgi_app.py",
        "pingmesh/agent/metrics.py",
        "endpoint/",
        "stream/operation/metrics.py",
    ),
}
HEAVY = {"rich", "dpkt", "yaml", "pyarrow", "zstandard", "scipy", "cryptography", "starlette", "uvicorn"}
HEAVY |= {"prometheus_client", "confluent_kafka", "duckdb", "distributed", "pyspark", "obstore", "botocore"}
# Algorithms of the papers, readable next to them: no I/O, no clock, no unseeded randomness.
PURE = {
    "network/fat_tree.py",
    "network/hardware.py",
    "network/topology.py",
    "network/ecmp.py",
    "network/fleet.py",
    "network/traceroute_rate.py",
    "pingmesh/agent/lease.py",
    "pingmesh/analysis/blackholes.py",
    "pingmesh/analysis/loss_bursts.py",
    "pingmesh/analysis/silent_drops.py",
    "pingmesh/analysis/silent_servers.py",
    "pingmesh/analysis/sla.py",
    "pingmesh/analysis/verdict.py",
    "pingmesh/heatmap/drop_patterns.py",
    "pingmesh/heatmap/model.py",
    "pingmesh/heatmap/patterns.py",
    "pingmesh/plan/graphs.py",
    "replay/queues/score.py",
    "replay/sampling.py",
    "replay/explain/labels.py",
    "replay/explain/timeline.py",
    "trace/token_bucket.py",
    "vote/dead_flows.py",
    "vote/integer_programs.py",
    "vote/theorems.py",
    "vote/voting.py",
    "vote/way_back.py",
}
IMPURE = {
    "os",
    "io",
    "sys",
    "socket",
    "ssl",
    "select",
    "subprocess",
    "pathlib",
    "tempfile",
    "shutil",
    "mmap",
    "time",
    "datetime",
    "threading",
    "multiprocessing",
    "asyncio",
    "urllib",
    "http",
    "secrets",
    "uuid",
}


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[int, str, bool]]:
    """(line, module, whether inside a function or only for type checkers) of every import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, inside
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}", inside
        else:
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, inside or function or is_typing_only(node))


def is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def layer_of(module: str) -> str:
    """The package below confluo_tools of a dotted name; '' for names that confluo_tools itself defines."""
    first = module.split(".")[1] if "." in module else ""
    return first if first in ALLOWED else ""


def is_pure(module: str) -> bool:
    """Whether a dotted name is a pure module, or something in one."""
    words = module.split(".")[1:]
    return any("/".join(words[:n]) + ".py" in PURE for n in range(1, len(words) + 1))


def violations(path: str, text: str) -> list[str]:
    """The imports of the file at ``path`` (relative to confluo_tools) that break a rule."""
    found = []
    layer = path.split("/")[0].removesuffix(".py") if path != "__init__.py" else ""
    if layer not in ALLOWED:
        return [f"{path}: '{layer}' is missing in PLATFORM and SYSTEMS"]
    for line, module, inside in imports(ast.parse(text)):
        top = module.split(".")[0]
        where = f"{path}:{line}"
        if module.startswith("."):
            found.append(f"{where}: relative import; write the whole name")
        elif top == "confluo_tools":
            target = layer_of(module)
            if layer == "commands" and target == "commands":
                found.append(f"{where}: a command imports another command ({module})")
            elif target != layer and target not in ALLOWED[layer]:
                found.append(f"{where}: {layer or 'the package'} imports {target or module}")
            elif target == "core" and (subject := module.split(".")[2]) in SYSTEMS and subject != layer:
                found.append(f"{where}: {layer} imports core.{subject}, which belongs to {subject}")
            elif path in PURE and not is_pure(module):
                found.append(f"{where}: a pure module imports {module}")
            elif target in LAZY_FOR.get(layer, ()) and target != layer and not inside and not module.startswith(CHEAP):
                found.append(f"{where}: {layer} imports {target} outside a function")
        elif top in sys.stdlib_module_names:
            if path in PURE and top in IMPURE:
                found.append(f"{where}: a pure module imports {top}; it has no I/O and no clock")
        elif top not in THIRD:
            found.append(f"{where}: {top} is not a dependency at run time")
        elif not path.startswith(THIRD[top]):
            found.append(f"{where}: {top} belongs in {' or '.join(THIRD[top])}")
        elif top in HEAVY and not inside:
            found.append(f"{where}: {top} costs start-up time; import it in the function that needs it")
    return found


def subject_of(module: str) -> str:
    """The subject of a cimported module or header, '' if it is none of ours."""
    if module.startswith("confluo_tools.core."):
        return module.split(".")[2]
    return HEADERS.get(module, "")


def core_violations(name: str, text: str, subject: str = "block") -> list[str]:
    """The lines of a file of pyx/``subject`` that break a rule."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words[:1] in (["from"], ["import"], ["cimport"]) and len(words) > 1:
            for module in [words[1]] if words[0] == "from" else " ".join(words[1:]).split(","):
                module = module.split()[0]
                top = module.split(".")[0]
                other = subject_of(module)
                if top == "confluo_tools" and not module.startswith("confluo_tools.core"):
                    found.append(f"{name}:{number}: core imports {module}")
                elif other and other != subject and other not in CORE_ALLOWED[subject]:
                    found.append(f"{name}:{number}: {subject} imports {module}, which is of {other}")
                elif not (
                    top in sys.stdlib_module_names
                    or top in ("cython", "libc", "posix", "cpython")
                    or top == "confluo_tools"
                    or top in HEADERS
                ):
                    found.append(f"{name}:{number}: core imports {top}")
        if "__ATOMIC_" in line and name not in ("c_atomic.pxd", "c_fault.pxd"):  # a fault point only counts down
            found.append(f"{name}:{number}: names a memory order; that is c_atomic.pxd's to do")
        if name.startswith("c_") and re.match(r"cdef\s+inline\b", line):
            whole = line + "".join(text.splitlines()[number : number + 8])  # a head may take several lines
            if not re.match(r"cdef inline [^#]*?\)\s*noexcept nogil:", whole):
                found.append(f"{name}:{number}: not noexcept nogil")
    return found


def test_python_layers() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    assert [v for f in files for v in violations(f.relative_to(PACKAGE).as_posix(), f.read_text())] == []


def test_no_files_import_each_other() -> None:
    """Also not from inside a function; what is only for type checkers is no import."""
    files = {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in (ROOT / "confluo_tools").rglob("*.py")}
    module = {f.removesuffix(".py").removesuffix("/__init__").replace("/", "."): f for f in files}
    graph = graphlib.TopologicalSorter[str]()
    for name, tree in files.items():
        typing = {n for block in ast.walk(tree) if is_typing_only(block) for _, n, _ in imports(block)}
        wanted = {n for _, n, _ in imports(tree)} - typing
        graph.add(name, *({module.get(n) or module.get(n.rpartition(".")[0], "") for n in wanted} - {name, ""}))
    graph.prepare()  # raises CycleError, which lists the files


def test_core_layers() -> None:
    files = sorted([*(ROOT / "pyx").rglob("*.p[yx][xd]"), *(PACKAGE / "core").rglob("*.pxd")])
    assert files
    assert [v for f in files for v in core_violations(f.name, f.read_text(), f.parent.name)] == []
    here = {f.parent.name for f in files}
    assert {name for line in CORE for name in line} <= here <= set(CORE_ALLOWED)  # a system may be Python alone
    assert len(HEADERS) == len(list((ROOT / "pyx").rglob("c_*.pxd"))) + len(
        GENERATED
    )  # they are included by name alone


def test_every_layer_exists() -> None:
    here = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert here - {"__init__"} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("core/x.py", "from confluo_tools.errors import FormatError", "core imports errors"),
        ("core/x.py", "def f():\n    import confluo_tools.schema", "core imports schema"),
        ("formats/x.py", "from confluo_tools.multilog import open", "formats imports multilog"),
        ("formats/x.py", "from confluo_tools import multilog", "formats imports multilog"),
        ("expr/x.py", "import confluo_tools.formats.text", "expr imports formats"),
        ("multilog/x.py", "from confluo_tools import cli", "multilog imports cli"),
        ("kernel/x.py", "from confluo_tools.multilog import log", "kernel imports multilog"),
        ("vote/x.py", "from confluo_tools.trace import engine", "vote imports trace"),
        ("vote/x.py", "def f():\n    from confluo_tools.pingmesh.plan import graphs", "vote imports pingmesh"),
        ("inputs/x.py", "def f():\n    from confluo_tools.vote import flock", "inputs imports vote"),
        ("trace/x.py", "from confluo_tools.core.vote.flow_tally import FlowTally", "which belongs to vote"),
        ("vote/voting.py", "from confluo_tools.core.block import block", "a pure module imports confluo_tools.core"),
        ("vote/voting.py", "from confluo_tools.vote.simulator import ClosSimulation", "a pure module imports"),
        ("vote/voting.py", "def f():\n    import socket", "a pure module imports socket"),
        ("errors.py", "from confluo_tools import cli", "errors imports cli"),
        ("cli/x.py", "from confluo_tools.formats import table", "cli imports formats outside a function"),
        ("commands/a.py", "from confluo_tools.commands.b import main", "a command imports another command"),
        ("commands/a.py", "import confluo_tools.commands.b", "a command imports another command"),
        ("commands/a.py", "from .b import main", "relative import"),
        ("multilog/x.py", "import typer", "typer belongs in"),
        ("formats/text.py", "def f():\n    import rich.table", "rich belongs in"),
        ("formats/table.py", "import rich.table", "rich costs start-up time"),
        ("guarded_yaml.py", "import yaml", "yaml costs start-up time"),
        ("schema/x.py", "class A:\n    import pyarrow", "pyarrow belongs in"),
        ("multilog/x.py", "def f():\n    import yaml", "yaml belongs in guarded_yaml.py"),
        ("expr/x.py", "import numpy as np", "numpy is not a dependency"),
        ("helpers/x.py", "import os", "'helpers' is missing"),
    ],
)
def test_a_violation_is_seen(path: str, text: str, complaint: str) -> None:
    assert complaint in " ".join(violations(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("commands/a.py", "import typer\nfrom confluo_tools import cli\nfrom confluo_tools.multilog import open"),
        ("cli/x.py", "def f():\n    from confluo_tools.formats import table"),
        (
            "multilog/x.py",
            "from confluo_tools.expr.leaves import And\nfrom confluo_tools.core.block.block import Block",
        ),
        ("guarded_yaml.py", "def f():\n    import yaml"),
        ("formats/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
        ("vote/voting.py", "import math\nfrom confluo_tools.network.topology import Clos"),
        (
            "pingmesh/x.py",
            "from confluo_tools.network import topology\nfrom confluo_tools.core.pingmesh.responder import R",
        ),
    ],
)
def test_what_is_allowed_is_not_a_violation(path: str, text: str) -> None:
    assert violations(path, text) == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("x.pyx", "from confluo_tools.schema import Schema", "core imports confluo_tools.schema"),
        ("x.pyx", "def f():\n    import numpy", "core imports numpy"),
        ("x.pyx", "cimport numpy as np", "core imports numpy"),
        ("c_x.pxd", "cdef inline int f(int a):\n    return a", "not noexcept nogil"),
        ("c_x.pxd", "cdef inline int f(int a,\n        int b) nogil:\n    return a", "not noexcept nogil"),
        ("x.pyx", "from confluo_tools.core.vote.flow_tally cimport FlowTally", "which is of vote"),
        ("x.pyx", "from c_layout cimport Head", "which is of multilog"),
        ("x.pyx", "    __atomic_load_n(p, __ATOMIC_ACQUIRE)", "names a memory order"),
    ],
)
def test_a_violation_in_the_core_is_seen(name: str, text: str, complaint: str) -> None:
    assert complaint in " ".join(core_violations(name, text))


def test_what_the_core_may_do() -> None:
    text = (
        "from libc.string cimport memcpy\nfrom c_block cimport Zone\n"
        "from confluo_tools.core.block.block cimport Block\n"
        "import os\ncdef inline int f(int a,\n                  int b) noexcept nogil:\n    return a\n"
    )
    assert core_violations("c_x.pxd", text) == []
