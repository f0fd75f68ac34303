"""Who may import whom, read from the syntax trees; the compiled core from its import lines."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "confluo_tools"

LOW = {"schema", "core", "units", "errors"}
ALLOWED: dict[str, set[str]] = {
    "": set(),  # confluo_tools/__init__.py
    "__main__": {"", "config", "remote"},  # the shells to other hosts start before all else is loaded
    "errors": set(),
    "units": {"errors"},
    "config": {"errors", "units"},
    "cli": {"", "errors", "units", "config", "formats", "schema", "core", "sources", "sinks", "store",
            "remote"},
    "core": set(),
    "schema": LOW - {"units"} | {"schema"},
    "formats": LOW | {"", "formats", "algo"},
    "expr": LOW | {"expr"},
    "algo": {"algo"},
    "sources": LOW | {"", "formats", "sources", "algo"},
    "sinks": LOW | {"", "formats", "sinks"},
    "store": LOW | {"", "formats", "expr", "store"},
    "remote": LOW | {"", "formats", "expr", "store", "remote"},
    "commands": LOW | {"", "formats", "expr", "algo", "sources", "sinks", "store", "remote", "cli", "config"},
}
# Imported only inside a function of their own layer: reading nothing should not cost their start-up.
LAZY = {("cli", layer) for layer in ("formats", "config", "schema", "core", "sources", "sinks", "store",
                                       "remote")}

# Other people's packages: where they may be imported at all, and which of them only inside functions.
THIRD: dict[str, tuple[str, ...]] = {
    "typer": ("commands/", "cli/"),
    "rich": ("formats/table.py", "formats/heatmap_text.py", "cli/"),
    "resvg_py": ("formats/heatmap_svg.py",),
    "dpkt": ("sources/", "formats/"),
    "yaml": ("schema/", "store/", "config.py", "formats/topology.py", "formats/fleet.py", "formats/pinglist.py"),
    "pyarrow": ("formats/",),
    "zstandard": ("sources/", "formats/"),
    "scipy": ("algo/",),
    "cryptography": ("remote/lists.py", "sinks/pinglists.py"),
    "starlette": ("remote/controller.py",),
    "uvicorn": ("remote/service.py",),
    "prometheus_client": ("remote/controller.py", "sinks/metrics.py"),
}
HEAVY = {"rich", "dpkt", "yaml", "pyarrow", "zstandard", "scipy", "cryptography", "starlette", "uvicorn",
         "prometheus_client"}  # fmt: skip
# What pure mathematics has no business with.
IMPURE = {"os", "io", "sys", "socket", "ssl", "select", "subprocess", "pathlib", "tempfile", "shutil", "mmap", "time",
          "datetime", "threading", "multiprocessing", "asyncio", "urllib", "http", "secrets", "uuid"}


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
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, inside or function or typing_only)


def layer_of(module: str) -> str:
    """The layer of a dotted name below confluo_tools; '' for names that the package itself defines."""
    first = module.split(".")[1] if "." in module else ""
    return first if first in ALLOWED else ""


def violations(path: str, text: str) -> list[str]:
    """What the file at ``path`` (relative to confluo_tools) imports though it may not."""
    found = []
    layer = path.split("/")[0].removesuffix(".py") if path != "__init__.py" else ""
    if layer not in ALLOWED:
        return [f"{path}: a layer that nobody wrote down in ALLOWED"]
    own = "confluo_tools." + ".".join(path.removesuffix(".py").split("/")[:2])  # a command may be a package
    for line, module, inside in imports(ast.parse(text)):
        top = module.split(".")[0]
        where = f"{path}:{line}"
        if module.startswith("."):
            found.append(f"{where}: relative import; write the whole name")
        elif top == "confluo_tools":
            target = layer_of(module)
            if layer == "commands" and target == "commands" and not module.startswith(own):
                found.append(f"{where}: a command imports another command ({module})")
            elif target != layer and target not in ALLOWED[layer]:
                found.append(f"{where}: {layer or 'the package'} imports {target or module}")
            elif (layer, target) in LAZY and not inside:
                found.append(f"{where}: {layer} imports {target} outside a function")
        elif top in sys.stdlib_module_names:
            if layer == "algo" and top in IMPURE:
                found.append(f"{where}: algo imports {top}; it has no I/O and no clock")
        elif top not in THIRD:
            found.append(f"{where}: {top} is not a dependency at run time")
        elif not path.startswith(THIRD[top]):
            found.append(f"{where}: {top} belongs in {' or '.join(THIRD[top])}")
        elif top in HEAVY and not inside:
            found.append(f"{where}: {top} costs start-up time; import it in the function that needs it")
    return found


def core_violations(name: str, text: str) -> list[str]:
    """What a file of pyx/ does though it may not."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words[:1] in (["from"], ["import"], ["cimport"]) and len(words) > 1:
            for module in [words[1]] if words[0] == "from" else " ".join(words[1:]).split(","):
                module = module.split()[0]
                top = module.split(".")[0]
                if top == "confluo_tools" and not module.startswith("confluo_tools.core"):
                    found.append(f"{name}:{number}: core imports {module}")
                elif not (top in sys.stdlib_module_names or top in ("cython", "libc", "posix", "cpython")
                          or top == "confluo_tools" or (ROOT / "pyx" / f"{top}.pxd").exists()):
                    found.append(f"{name}:{number}: core imports {top}")
        if "__ATOMIC_" in line and name not in ("c_atomic.pxd", "c_fault.pxd"):  # a fault point only counts down
            found.append(f"{name}:{number}: names a memory order; that is c_atomic.pxd's to do")
        if name.startswith("c_") and re.match(r"cdef\s+inline\b", line):
            whole = line + "".join(text.splitlines()[number:number + 8])  # a head may take several lines
            if not re.match(r"cdef inline [^#]*?\)\s*noexcept nogil:", whole):
                found.append(f"{name}:{number}: not noexcept nogil")
    return found


def test_python_layers() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    assert [v for f in files for v in violations(f.relative_to(PACKAGE).as_posix(), f.read_text())] == []


def test_core_layers() -> None:
    files = sorted([*(ROOT / "pyx").glob("*.pyx"), *(ROOT / "pyx").glob("*.pxd"), *(PACKAGE / "core").glob("*.pxd")])
    assert files
    assert [v for f in files for v in core_violations(f.name, f.read_text())] == []


def test_every_layer_exists() -> None:
    here = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert here - {"__init__"} <= set(ALLOWED)


@pytest.mark.parametrize(("path", "text", "complaint"), [
    ("core/x.py", "from confluo_tools.errors import FormatError", "core imports errors"),
    ("core/x.py", "def f():\n    import confluo_tools.schema", "core imports schema"),
    ("formats/x.py", "from confluo_tools.store import open", "formats imports store"),
    ("formats/x.py", "from confluo_tools import store", "formats imports store"),
    ("expr/x.py", "import confluo_tools.formats.text", "expr imports formats"),
    ("store/x.py", "from confluo_tools import cli", "store imports cli"),
    ("sources/x.py", "from confluo_tools.store import log", "sources imports store"),
    ("algo/x.py", "from confluo_tools.core import block", "algo imports core"),
    ("algo/x.py", "def f():\n    import socket", "algo imports socket"),
    ("errors.py", "from confluo_tools import cli", "errors imports cli"),
    ("cli/x.py", "from confluo_tools.formats import table", "cli imports formats outside a function"),
    ("commands/a.py", "from confluo_tools.commands.b import main", "a command imports another command"),
    ("commands/a.py", "import confluo_tools.commands.b", "a command imports another command"),
    ("commands/a.py", "from .b import main", "relative import"),
    ("store/x.py", "import typer", "typer belongs in"),
    ("formats/text.py", "def f():\n    import rich.table", "rich belongs in"),
    ("formats/table.py", "import rich.table", "rich costs start-up time"),
    ("schema/x.py", "import yaml", "yaml costs start-up time"),
    ("store/x.py", "class A:\n    import pyarrow", "pyarrow belongs in"),
    ("expr/x.py", "import numpy as np", "numpy is not a dependency"),
    ("helpers/x.py", "import os", "a layer that nobody wrote down"),
])
def test_a_violation_is_seen(path: str, text: str, complaint: str) -> None:
    assert complaint in " ".join(violations(path, text))


@pytest.mark.parametrize(("path", "text"), [
    ("commands/a.py", "import typer\nfrom confluo_tools import cli\nfrom confluo_tools.store import open"),
    ("cli/x.py", "def f():\n    from confluo_tools.formats import table"),
    ("store/x.py", "from confluo_tools.expr.leaves import And\nfrom confluo_tools.core.block import Block"),
    ("schema/x.py", "def f():\n    import yaml"),
    ("formats/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
    ("algo/x.py", "import math"),
])
def test_what_is_allowed_is_not_a_violation(path: str, text: str) -> None:
    assert violations(path, text) == []


@pytest.mark.parametrize(("name", "text", "complaint"), [
    ("x.pyx", "from confluo_tools.schema import Schema", "core imports confluo_tools.schema"),
    ("x.pyx", "def f():\n    import numpy", "core imports numpy"),
    ("x.pyx", "cimport numpy as np", "core imports numpy"),
    ("c_x.pxd", "cdef inline int f(int a):\n    return a", "not noexcept nogil"),
    ("c_x.pxd", "cdef inline int f(int a,\n        int b) nogil:\n    return a", "not noexcept nogil"),
    ("x.pyx", "    __atomic_load_n(p, __ATOMIC_ACQUIRE)", "names a memory order"),
])
def test_a_violation_in_the_core_is_seen(name: str, text: str, complaint: str) -> None:
    assert complaint in " ".join(core_violations(name, text))


def test_what_the_core_may_do() -> None:
    text = ("from libc.string cimport memcpy\nfrom c_block cimport Zone\nfrom confluo_tools.core.block cimport Block\n"
            "import os\ncdef inline int f(int a,\n                  int b) noexcept nogil:\n    return a\n")
    assert core_violations("c_x.pxd", text) == []
