"""Compile pyx/SUBJECT/NAME.pyx into confluo_tools.core.SUBJECT.NAME; everything else is in pyproject.toml.

CONFLUO_EXT=block,packet   build only these modules (while working on them)
CONFLUO_DEBUG_BUILD=1      bounds checks, assertions and the address and undefined-behaviour sanitizers
"""

import os
import platform
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from Cython.Build.Dependencies import DependencyTree
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "pyx" / "packets")]

import generate  # noqa: E402

DEBUG = bool(os.environ.get("CONFLUO_DEBUG_BUILD"))
CPUS = os.cpu_count() or 1
ONLY = set(filter(None, os.environ.get("CONFLUO_EXT", "").split(",")))

# Never -march=native: kernels choose AVX2/AVX-512 when they run (target_clones, cpu_supports).
FLAGS = ["-O3", "-g0", "-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function"]
if DEBUG:
    FLAGS = [
        "-O1",
        "-g",
        "-std=gnu11",
        "-fno-strict-aliasing",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ]

# What Cython adds to each module (functions, memory views), compiled once.
SHARED = "confluo_tools.core.cython_shared"
# The headers c_*.pxd and *.h of all subjects have unique names: they are included without a path.
GENERATED = "build/generated"
SUBJECTS = sorted(glob("pyx/*/"))

generate.generate(Path(GENERATED))


def completion_files(folder: Path) -> None:
    """Cut the completions into files with the names of commands, as bash and fish look for them."""
    for shell in ("bash", "fish"):
        shutil.rmtree(folder / shell, ignore_errors=True)
        (folder / shell).mkdir(parents=True)
    shutil.copy("completions/confluo.bash", folder / "bash" / "confluo")
    for section in Path("completions/confluo.fish").read_text().split("# command: ")[1:]:
        name, _, text = section.partition("\n")
        (folder / "fish" / f"{name}.fish").write_text(text)
        if name != "confluo":
            (folder / "bash" / name).write_text('. "${BASH_SOURCE[0]%/*}/confluo"\n')


completion_files(Path("build/completions"))

extensions = [
    Extension(
        f"confluo_tools.core.{Path(source).parent.name}.{Path(source).stem}",
        [source],
        include_dirs=SUBJECTS,
        depends=glob("pyx/*/*.pxd") + glob("pyx/*/*.h") + glob(f"{GENERATED}/*.pxd"),
        extra_compile_args=FLAGS,
        extra_link_args=["-fsanitize=address,undefined"] if DEBUG else [],
        libraries=["pthread", "dl"],
    )
    for source in sorted(glob("pyx/*/*.pyx"))
    if not ONLY or Path(source).stem in ONLY
]
extensions.append(
    Extension(
        SHARED,
        [f"{SHARED.rpartition('.')[2]}.c"],
        extra_compile_args=FLAGS,
        extra_link_args=extensions[0].extra_link_args,
    )
)

OURS = glob("pyx/*/*.pxd") + glob("confluo_tools/core/*/*.pxd") + glob(f"{GENERATED}/*.pxd")
PXD = {*(Path(name).stem for name in OURS), "stdint"}  # stdint: a new Cython compiles all again


def cimports(self: DependencyTree, filename: str) -> tuple[str, ...]:
    """What a file depends on: also its own .pxd, which is in the package, not in the folder of the .pyx.

    Cython would look in each folder for a file of each name that is imported: 4 s where nothing has changed.
    """
    subject, _, name = filename.removeprefix("pyx/").partition("/")
    own = (f"confluo_tools.core.{subject}.{name[:-4]}",) if name.endswith(".pyx") else ()
    return (*(m for m in self.cimports_externs_incdirs(filename)[0] if m.rpartition(".")[2] in PXD), *own)


DependencyTree.cimports = cimports

BPF_FLAGS = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall"]
BPF_FLAGS += ["-D__TARGET_x86"] if platform.machine() == "x86_64" else []


class BuildExtensions(build_ext):
    """Compiles pyx/SUBJECT/NAME.bpf.c as well, if clang is there: what needs them says so if they are missing."""

    def run(self) -> None:
        super().run()
        for source in sorted(Path("pyx").glob("*/*.bpf.c")):
            folder = Path("" if self.inplace else self.build_lib, "confluo_tools/core", source.parent.name)
            self.compile_bpf(source, folder / source.name.replace(".c", ".o"))

    def compile_bpf(self, source: Path, target: Path) -> None:
        newest = max(path.stat().st_mtime for path in [source, *source.parent.glob("*.h")])
        if target.exists() and target.stat().st_mtime >= newest:
            return
        target.unlink(missing_ok=True)
        clang = shutil.which("clang")
        if clang is None:
            print(f"{source}: not compiled: there is no clang", file=sys.stderr)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if subprocess.run([clang, *BPF_FLAGS, "-c", str(source), "-o", str(target)], check=False).returncode:
            print(f"{source}: not compiled: clang cannot", file=sys.stderr)


setup(
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=cythonize(
        extensions,
        include_path=[*SUBJECTS, GENERATED, "."],
        build_dir="build/cython",
        shared_utility_qualified_name=SHARED,
        cache=os.environ.get("CONFLUO_CYTHON_CACHE") or False,  # a folder: C files by the content of their sources
        compiler_directives={
            "language_level": 3,
            "binding": True,
            "auto_pickle": False,
            "embedsignature": True,
            "boundscheck": DEBUG,
            "wraparound": DEBUG,
            "initializedcheck": DEBUG,
            "cdivision": True,
            "freethreading_compatible": True,
        },
        nthreads=CPUS if CPUS > 1 and len(extensions) > 1 else 0,
    ),
    options={"build_ext": {"parallel": CPUS}},
)
