"""A log whose owner puts links and FIFOs into it: root changes nothing outside of it, and nothing waits for ever."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from confluo_tools.core.base.log_file import open_log_file
from forked_commands import Ran, run_forked
from running import DATA, run

NOBODY = 65534
VLAN = DATA / "vlan.pcap.gz"
SEGMENT = "seg-0000000000000000"
FILES = (
    "control",
    "multilog.yaml",
    "retain.lock",
    "archives",
    "captures/a.yaml",
    "captures/files.ndjson",
    "lane-000/lock",
    f"lane-000/{SEGMENT}.arrow",
    "lane-000/.seg-0000000000000541.tmp",
    "lane-001/lock",
    "views/index-dst_port/index.yaml",
    "views/index-dst_port/lock",
    f"views/index-dst_port/lane-000/{SEGMENT}.idx",
    f"views/index-dst_port/lane-000/{SEGMENT}.idx.tmp",
    f"views/filter-web/lane-000/{SEGMENT}.view",
    f"views/filter-web/lane-000/{SEGMENT}.view.tmp",
    "views/state-maxseq/states",
    "views/state-maxseq/states.tmp",
)
FOLDERS = ("lane-000", "lane-001", "views", "views/index-dst_port", "views/index-dst_port/lane-000", "captures")
COMMANDS = (
    ("query", "x.ml", "dst_port == 443", "--count"),
    ("query", "x.ml", "--analyze", "tcp", "retransmission", "--count"),
    ("info", "x.ml"),
    ("info", "--verify", "x.ml"),
    ("index", "x.ml"),
    ("index", "x.ml", "update"),
    ("index", "x.ml", "add", "src_ip"),
    ("index", "x.ml", "rebuild", "dst_port"),
    ("index", "x.ml", "drop", "dst_port"),
    ("capture", "-q", "-r", str(VLAN), "-w", "x.ml", "--append"),
    ("archive", "x.ml", "--to", "archive", "--keep", "1k"),
    ("archive", "x.ml", "--keep", "1k", "--delete"),
)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder with `clean.ml`, the log of another user, and `outside`, which is root's."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files that are another user's")
    with tempfile.TemporaryDirectory(prefix="confluo-hostile-") as folder:
        made = Path(folder)
        made.chmod(0o755)
        for words in (
            ("confluo-capture", "-q", "-r", VLAN, "-w", "clean.ml", "--index", "dst_port"),
            ("confluo-index", "-q", "clean.ml", "add", "filter", "web", "dst_port == 443"),
            ("confluo-index", "-q", "clean.ml", "add", "state", "maxseq"),
        ):
            done = run(*words, cwd=made)
            assert done.returncode == 0, done.stderr
        (made / "clean.ml" / "captures" / "a.yaml").write_text("begun: 2026-01-01\n")
        for path in [made / "clean.ml", *(made / "clean.ml").rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        yield made


def outside(place: Path) -> Path:
    """A folder of root, with files whose names are those of a log."""
    folder = place / "outside"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("secret", "lock", f"{SEGMENT}.arrow", ".seg-9.tmp", f"{SEGMENT}.idx.tmp", "lane-000/old.idx.tmp"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("of root\n")
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def look(folder: Path) -> list[tuple[str, int, int, int, bytes]]:
    """Names, owners, times and content of all that is in a folder."""
    found = []
    for path in sorted([folder, *folder.rglob("*")]):
        at = path.lstat()
        found.append((str(path), at.st_uid, at.st_mode, at.st_mtime_ns, path.read_bytes() if path.is_file() else b""))
    return found


def attacked(place: Path, name: str, kind: str) -> list[Ran]:
    """What the commands say of a log in which ``name`` is something else."""
    target = outside(place)
    before = look(target)
    commands = []
    held = ExitStack()
    for i, words in enumerate(COMMANDS):
        log = place / f"{i}.ml"
        shutil.rmtree(log, ignore_errors=True)
        shutil.copytree(place / "clean.ml", log)
        hostile = log / name
        if hostile.is_dir():
            shutil.rmtree(hostile)
        hostile.unlink(missing_ok=True)
        hostile.parent.mkdir(exist_ok=True)
        if kind == "fifo":
            os.mkfifo(hostile, 0o666)
        else:
            points = {"file": target / "secret", "nothing": target / "new", "folder": target, "device": "/dev/zero"}
            os.symlink(points[kind], hostile)
        if name.startswith("lane-001"):  # the writers take lane 1
            held.enter_context(locked(log / "lane-000" / "lock"))
        for path in [log, *log.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        commands.append([word.replace("x.ml", log.name) for word in words])
    with held:
        done = run_forked(commands, place)
    assert look(target) == before, name
    shutil.rmtree(place / "archive", ignore_errors=True)
    return done


def judge(done: list[Ran]) -> None:
    for ran in done:
        assert ran.status in (0, 1, 2, 75), ran
        assert "internal error" not in ran.err, ran
        assert "Too many levels" not in ran.err, ran
        assert ran.status in (0, 1) or ran.err.count("\n") in range(1, 6), ran


@pytest.mark.root
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_links_or_fifos(place: Path, name: str) -> None:
    for kind in ("file", "nothing", "device", "fifo"):
        done = attacked(place, name, kind)
        judge(done)
        if name == "control":
            assert all(ran.status == 2 for ran in done), kind


@pytest.mark.root
@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_are_links(place: Path, name: str) -> None:
    for kind in ("folder", "fifo", "nothing"):
        judge(attacked(place, name, kind))


@pytest.mark.root
def test_a_writer_names_the_link(place: Path) -> None:
    append = COMMANDS.index(("capture", "-q", "-r", str(VLAN), "-w", "x.ml", "--append"))
    for name, kind, words in (
        ("lane-000", "folder", "lane-000: cannot be written: is a symbolic link, which a log must not contain"),
        ("lane-000/lock", "file", "lane-000/lock: cannot be written: is a symbolic link, which a log must not contain"),
        ("lane-000/lock", "fifo", "lane-000/lock: cannot be written: is not a regular file"),
        ("multilog.yaml", "file", "multilog.yaml: cannot be written: is a symbolic link, which a log must not contain"),
    ):
        ran = attacked(place, name, kind)[append]
        assert (ran.status, ran.err) == (2, f"confluo-capture: {append}.ml/{words}\n")


def test_files_of_a_log_are_opened_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.symlink("/dev/zero", tmp_path / "link")
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
        with pytest.raises(OSError, match="is not a regular file"):
            open_log_file(tmp_path / "fifo", flags)
        with pytest.raises(OSError, match="is a symbolic link"):
            open_log_file(tmp_path / "link", flags)
    with pytest.raises(OSError, match="No such file"):
        open_log_file(tmp_path / "none")
    (tmp_path / "old").write_text("old")
    os.link(tmp_path / "old", tmp_path / "same")
    with open(tmp_path / "old", "wb", opener=open_log_file) as new:  # not the file that was there
        new.write(b"new")
        assert not os.get_inheritable(new.fileno())
    assert ((tmp_path / "same").read_text(), (tmp_path / "old").read_text()) == ("old", "new")
