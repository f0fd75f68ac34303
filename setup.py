"""Compile pyx/*.pyx into confluo_tools.core.*; everything else stands in pyproject.toml.

CONFLUO_EXT=block,packet   build only these (while working on them)
CONFLUO_DEBUG_BUILD=1      bounds checks, assertions and the address and undefined-behaviour sanitizers
"""

import os
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = bool(os.environ.get("CONFLUO_DEBUG_BUILD"))
CPUS = os.cpu_count() or 1
ONLY = set(filter(None, os.environ.get("CONFLUO_EXT", "").split(",")))

# Never -march=native: kernels choose AVX2/AVX-512 when they run (target_clones, cpu_supports).
FLAGS = ["-O3", "-g0", "-std=gnu11", "-fno-strict-aliasing", "-Wno-unused-function"]
if DEBUG:
    FLAGS = ["-O1", "-g", "-std=gnu11", "-fno-strict-aliasing",
             "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]

extensions = [
    Extension(
        f"confluo_tools.core.{Path(source).stem}",
        [source],
        include_dirs=["pyx"],
        depends=glob("pyx/*.pxd") + glob("pyx/*.h"),
        extra_compile_args=FLAGS,
        extra_link_args=["-fsanitize=address,undefined"] if DEBUG else [],
        libraries=["pthread"],
    )
    for source in sorted(glob("pyx/*.pyx"))
    if not ONLY or Path(source).stem in ONLY
]

setup(
    ext_modules=cythonize(
        extensions,
        include_path=["pyx", "."],
        build_dir="build/cython",
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
