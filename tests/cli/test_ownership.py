"""Files that root creates in a log are chowned to the owner of the log, who can continue to write it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from confluo_tools import multilog
from confluo_tools.core.block.block import Block
from confluo_tools.multilog import views
from running import CAMPUS, run

NOBODY = 65534
pytestmark = pytest.mark.root


@pytest.fixture
def log() -> Iterator[Path]:
    """A log of an unprivileged user, in a folder that all users may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files that are another user's")
    with tempfile.TemporaryDirectory(prefix="confluo-owner-") as folder:
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/x.ml")
        os.chown(f"{folder}/x.ml", NOBODY, NOBODY)
        assert run("confluo-capture", "-q", "-r", CAMPUS, "-w", f"{folder}/x.ml").returncode == 0
        for path in [*Path(folder, "x.ml").rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        yield Path(folder, "x.ml")


def owners(log: Path) -> set[int]:
    return {os.lstat(p).st_uid for p in log.rglob("*")}


def nobody(work: Callable[[], object]) -> str:
    """What ``work`` gives, as text, when it is done by another user who may not even load Python."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            told = str(work())
        except BaseException as e:
            told = f"{type(e).__name__}: {e}"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read().decode()
    os.waitpid(child, 0)
    return told


def test_views_that_root_adds_are_kept_up_by_the_owner(log: Path) -> None:
    for words in (["src_ip"], ["filter", "web", "dst_port == 80"], ["aggregate", "a", "sum(len)", "--filter", "web"]):
        assert run("confluo-index", log, "add", *words).returncode == 0
    assert owners(log) == {NOBODY}
    opened = multilog.open(log)
    found = views.views(opened)
    for view in found:
        views.rebuild(opened, view)  # as root: the modules are loaded
    assert owners(log) == {NOBODY}

    def again() -> list[str]:
        for view in found:
            views.rebuild(opened, view)
        return [view.spec for view in found]

    assert nobody(again) == "['src_ip', 'filter web', 'aggregate a']"
    counts = [run("confluo-query", log, "--count", text).stdout for text in ("filter web", "dst_port == 80")]
    assert counts[0] == counts[1] != b"0\n"


def test_a_lane_that_root_claims(log: Path) -> None:
    opened = multilog.open(log)
    with opened.writer(), opened.writer() as writer:
        writer.append(Block.wrap(opened.schema.layout, 1, [bytes(c.size * c.count) for c in opened.schema.columns]))
        assert owners(log) == {NOBODY}  # also of the segment that grows
    assert owners(log) == {NOBODY}


def test_views_of_another_user_do_not_stop_the_rest(log: Path) -> None:
    """A view that cannot be updated is reported once; the others are updated, and no rows are lost."""
    for name, port in (("a", 80), ("b", 443)):
        assert run("confluo-index", log, "add", "filter", name, f"dst_port == {port}").returncode == 0
    os.chown(log / "views/filter-a/lock", 0, 0)
    os.chmod(log / "views/filter-a/lock", 0o600)
    said: list[str] = []
    maintainer = views.Maintainer(multilog.open(log), None, lambda path, what: said.append(what))
    shutil.rmtree(log / "views/filter-b/lane-000")
    told = nobody(lambda: (maintainer.step() > 0, maintainer.step(), said))
    assert told == "(True, 0, ['is not updated: Permission denied; it belongs to another user'])"
    assert (log / "views/filter-b/lane-000").is_dir()
