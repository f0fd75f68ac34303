"""Compile modules of the core with the address and undefined-behaviour sanitizers, in a folder of their own.

`python tests/fuzz/build_modules.py FOLDER NAME...` writes FOLDER/NAME.so for each pyx/*/NAME.pyx.  To load one, start
Python with LD_PRELOAD from `preload`.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = ["-O0", "-g1", "-std=gnu11", "-fno-strict-aliasing", "-w", "-fPIC", "-shared"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def preload() -> str:
    """The libraries of the sanitizers, for LD_PRELOAD; "": this compiler has none."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        if not Path(done.stdout.strip()).is_absolute():
            return ""
        found.append(done.stdout.strip())
    return " ".join(found)


def build_modules(folder: Path, names: Iterable[str]) -> None:
    """CalledProcessError says why not."""
    from Cython.Compiler.Main import compile as cythonize

    includes = [*map(str, ROOT.glob("pyx/*/")), str(ROOT / "build" / "generated")]
    running = []
    for name in names:
        (source,) = ROOT.glob(f"pyx/*/{name}.pyx")
        made = cythonize(
            str(source),
            full_module_name=f"confluo_tools.core.{source.parent.name}.{name}",
            output_file=str(folder / f"{name}.c"),
            include_path=[*includes, str(ROOT)],
            language_level=3,
            compiler_directives={"boundscheck": True, "wraparound": True, "cdivision": True, "auto_pickle": False},
        )
        if made.num_errors:
            raise SystemExit(f"{made.num_errors} errors in {source}")
        places = [f"-I{place}" for place in (*includes, sysconfig.get_paths()["include"])]
        command = ["cc", *FLAGS, *SANITIZERS, *places, str(folder / f"{name}.c"), "-o", str(folder / f"{name}.so")]
        running.append(subprocess.Popen(command))
    for process in running:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    build_modules(Path(sys.argv[1]), sys.argv[2:])
    print(f"LD_PRELOAD={preload()!r}")
