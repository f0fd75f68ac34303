"""Build the fuzzer: `python tests/fuzz/build_fuzzer.py FOLDER` writes FOLDER/fuzz and FOLDER/seeds.

Needs clang with libFuzzer and this Python's library and headers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SANITIZERS = "-fsanitize=fuzzer,address,undefined"


def missing() -> str:
    """What this machine lacks for fuzzing, '' if nothing."""
    if shutil.which("clang") is None:
        return "clang"
    if not library():
        return "libpython"
    return ""


def library() -> Path | None:
    name = sysconfig.get_config_var("LDLIBRARY") or ""
    for folder in (sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL")):
        if folder and (Path(folder) / name).exists():
            return Path(folder) / name
    return None


def build(folder: Path) -> Path:
    """Compile the harness into ``folder``; CalledProcessError says why not."""
    from Cython.Compiler.Main import compile as cythonize

    folder.mkdir(parents=True, exist_ok=True)
    source, c = folder / "fuzz_capture.pyx", folder / "fuzz_capture.c"
    shutil.copy(HERE / "fuzz_capture.pyx", source)
    done = cythonize(
        str(source),
        output_file=str(c),
        include_path=[*map(str, ROOT.glob("pyx/*/")), str(ROOT / "build" / "generated"), str(ROOT)],
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True},
    )
    if done.num_errors:
        raise SystemExit(f"{done.num_errors} errors in {source}")
    libpython = library()
    if libpython is None:
        raise SystemExit("this Python has no library to link with")
    links = [*(sysconfig.get_config_var("LIBS") or "").split(), *(sysconfig.get_config_var("SYSLIBS") or "").split()]
    fuzz = folder / "fuzz"
    subprocess.run(
        [
            "clang",
            "-O2",
            "-g",
            "-std=gnu11",
            "-fno-strict-aliasing",
            "-Wno-everything",
            SANITIZERS,
            "-fno-sanitize-recover=undefined",
            f"-I{sysconfig.get_paths()['include']}",
            str(c),
            str(HERE / "fuzz_main.c"),
            "-o",
            str(fuzz),
            str(libpython),
            f"-Wl,-rpath,{libpython.parent}",
            *links,
            "-Wl,--export-dynamic",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return fuzz


if __name__ == "__main__":
    from make_seeds import make_seeds

    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/fuzz")
    if missing():
        sys.exit(f"fuzzing needs {missing()}")
    print(build(target))
    print(make_seeds(target / "seeds"), "seeds")
