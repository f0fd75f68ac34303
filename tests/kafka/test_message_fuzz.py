"""A short run of the fuzzer of messages, with the decoder under the address sanitizer; see tests/fuzz/README.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
COUNT = 1200
MODULES = ["short_message", "message"]


def test_changed_messages_do_no_harm(tmp_path: Path) -> None:
    sys.path.insert(0, str(FUZZ))
    try:
        import build_modules as build
    finally:
        sys.path.remove(str(FUZZ))
    libraries = build.preload()
    if not libraries:
        pytest.skip("this compiler has no sanitizers")
    build.build_modules(tmp_path, MODULES)
    sanitized = {"LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    command = [sys.executable, FUZZ / "fuzz_messages.py", "--count", str(COUNT), "--modules", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **sanitized}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.fullmatch(r"(\d+) messages, (\d+) could be read\n", done.stdout)
    assert found is not None
    assert int(found[1]) == COUNT
    assert 0 < int(found[2]) < COUNT
