"""Power failure, simulated on a real file system: the rows that --sync seal and --sync batch guarantee survive.

The log is on an ext4 image behind a loop device.  A copy of the image file, taken while the file system is mounted
and nothing was flushed for it, is what a disk would hold if the power went at that moment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.multilog.verify import verify
from log_rows import SIGNED, signed_block, signed_rows

pytestmark = pytest.mark.root

After = Callable[[], "contextmanager[Path]"]


def mount(image: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a loop device: {done.stderr.decode().strip()}")


def writes(folder: Path) -> str:
    """Write statistics of the kernel for the device of a mounted folder."""
    device = os.path.basename(
        next(
            line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[1] == str(folder)
        )
    )
    fields = Path(f"/sys/block/{device}/stat").read_text().split()
    return " ".join((*fields[4:7], fields[8]))  # writes done, merged, sectors written; in flight


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, After]]:
    """A folder on its own disk, and a function that copies the state after a power failure."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root and mkfs.ext4")
    image, folder = tmp_path / "image", tmp_path / "disk"
    with open(image, "wb") as f:
        f.truncate(96 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    mount(image, folder)
    copies = 0

    @contextmanager
    def after_power_loss() -> Iterator[Path]:
        nonlocal copies
        copies += 1
        copy, there = tmp_path / f"copy{copies}", tmp_path / f"disk{copies}"
        before = writes(folder)
        while True:  # without writes during the copy, it is the state at one instant
            subprocess.run(["cp", "--sparse=always", image, copy], check=True)
            now = writes(folder)
            if now == before:
                break
            before = now
        mount(copy, there)
        try:
            yield there
        finally:
            subprocess.run(["umount", "-l", there], check=True)
            copy.unlink()

    yield folder, after_power_loss  # type: ignore[misc]
    subprocess.run(["umount", "-l", folder], check=True)


def rows_of(path: Path, sealed_only: bool = False) -> int:
    """Rows 0.. of writer 1 that a reader finds; AssertionError for any other row."""
    log, rows = multilog.open(path), 0
    for part in log.segments():
        for number in range(part.blocks if part.sealed or not sealed_only else 0):
            block = part.block(number)
            assert block is not None
            assert block.check(), log.damage
            for writer, first, n in signed_rows(block):
                assert (writer, first) == (1, rows)
                rows += n
    return rows


def test_batch_keeps_every_append(disk: tuple[Path, After]) -> None:
    folder, after_power_loss = disk
    log = multilog.create(folder / "t.ml", SIGNED, sync="batch", segment_blocks=1)
    with log.writer() as writer:
        for k, n in enumerate([1, 100, 60_000, 10_000, 60_000, 65_536, 5]):  # across blocks and segments
            writer.append(signed_block(1, writer.rows, n))
            with after_power_loss() as there:
                assert rows_of(there / "t.ml") >= writer.rows
                with multilog.open(there / "t.ml").writer() as again:  # and writing continues
                    again.append(signed_block(1, again.base, 10))
                assert rows_of(there / "t.ml") >= writer.rows + 10
                assert [f for f in verify(multilog.open(there / "t.ml")) if f.damage] == []
            assert k < 7
    with after_power_loss() as there:
        assert rows_of(there / "t.ml") == log.version().rows


def test_seal_keeps_what_is_sealed(disk: tuple[Path, After]) -> None:
    folder, after_power_loss = disk
    log = multilog.create(folder / "t.ml", SIGNED, sync="seal", segment_blocks=1)
    for session, rows in enumerate([100, 65_536 * 2 + 40_000, 65_536 * 3 + 7]):
        with log.writer() as writer:
            for start in range(0, rows, 30_000):
                n = min(30_000, rows - start)
                writer.append(signed_block(1, writer.base + start, n))
        with after_power_loss() as there:
            assert rows_of(there / "t.ml", sealed_only=True) == log.version().rows
            assert all(p.sealed for p in multilog.open(there / "t.ml").segments())
            assert [f for f in verify(multilog.open(there / "t.ml")) if f.damage] == []
        assert session < 3


def test_seal_keeps_full_segments_while_writing_goes_on(disk: tuple[Path, After]) -> None:
    folder, after_power_loss = disk
    log = multilog.create(folder / "t.ml", SIGNED, sync="seal", segment_blocks=1)
    with log.writer() as writer:
        for _ in range(8):
            writer.append(signed_block(1, writer.rows, 50_000))
            sealed = log.control.sealed(0)  # its line is synced right after this is counted
            with after_power_loss() as there:
                rows = rows_of(there / "t.ml", sealed_only=True)
                assert rows % 65_536 == 0
                again = multilog.open(there / "t.ml")
                with again.writer() as lane:  # a valid seal counts, even if the line is older
                    assert lane.base >= sealed - 65_536
                assert rows_of(there / "t.ml", sealed_only=False) >= sealed - 65_536


@pytest.mark.parametrize("rows", [10, 40_000, 200_000])
def test_none_may_lose_rows_but_never_lies_about_sealed_ones(disk: tuple[Path, After], rows: int) -> None:
    folder, after_power_loss = disk
    log = multilog.create(folder / "t.ml", SIGNED, sync="none", segment_blocks=1)
    os.sync()  # so that the folder itself exists
    with log.writer() as writer:
        for start in range(0, rows, 20_000):
            writer.append(signed_block(1, start, min(20_000, rows - start)))
        for flushed in (False, True):
            if flushed:
                os.sync()
            with after_power_loss() as there:
                again = multilog.open(there / "t.ml")
                for part in again.segments():
                    for number in range(part.blocks):
                        block = part.block(number)
                        if part.sealed and block is not None and block.check():
                            signed_rows(block)
                list(verify(again))
                with again.writer() as lane:
                    lane.append(signed_block(2, 0, 10))
                if flushed:
                    assert rows_of_both(there / "t.ml") == rows + 10


def rows_of_both(path: Path) -> int:
    log = multilog.open(path)
    rows = sum(n for block in log.blocks() for _, _, n in signed_rows(block))
    assert log.damage == []
    return rows
