"""A short run of the fuzzer under the address and undefined-behaviour sanitizers; see tests/fuzz/README.md."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
SECONDS = 20


@pytest.mark.slow
def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    sys.path.insert(0, str(FUZZ))
    try:
        import build_fuzzer as build
        import make_seeds
    finally:
        sys.path.remove(str(FUZZ))
    if build.missing():
        pytest.skip(f"fuzzing needs {build.missing()}")
    try:
        fuzz = build.build(tmp_path)
    except subprocess.CalledProcessError as e:
        if "libclang_rt.fuzzer" in e.stderr:
            pytest.skip("this clang has no libFuzzer")
        raise AssertionError(e.stderr) from None
    assert make_seeds.make_seeds(tmp_path / "seeds") > 100
    (tmp_path / "corpus").mkdir()
    # It ends when its memory peaks at 2 GiB.  Linux counts what a process had before exec, so what pytest has: the
    # shell is a small parent.
    done = subprocess.run(
        [
            "sh",
            "-c",
            '"$@"; exit $?',
            "sh",
            fuzz,
            f"-max_total_time={SECONDS}",
            "-max_len=2048",
            "-print_final_stats=1",
            tmp_path / "corpus",
            tmp_path / "seeds",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) > 10_000
    covered = re.findall(r"cov: (\d+)", done.stderr)
    assert int(covered[-1]) > 500  # of the edges of readers and parser: the seeds alone reach that


def test_every_seed_passes_the_compiled_modules() -> None:
    """The seeds through the modules as they are built for use."""
    sys.path.insert(0, str(FUZZ))
    try:
        import make_seeds
    finally:
        sys.path.remove(str(FUZZ))
    from confluo_tools.core.packets.packet import Packets
    from confluo_tools.core.packets.pcap import Capture
    from confluo_tools.formats.pcap import packet_schema

    packets = Packets(packet_schema().layout, inner=True)
    for data in make_seeds.captures():
        capture = Capture(data)
        assert packets.fill(capture) == "end"
        assert capture.fault == ""
    for link, frame in make_seeds.frames():
        packets.add(frame, link_type=link)
    assert packets.take().rows > 50
