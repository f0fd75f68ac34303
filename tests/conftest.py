"""What every test shares."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from netns import Lab, Space

if TYPE_CHECKING:
    from agent_lab import Pki
    from clickhouse_lab import ClickHouse
    from dask_lab import DaskCluster
    from kafka_lab import Broker
    from s3_lab import S3Server

# What starts us in the background (nohup, a script's &) may ignore these; the programs that we start would, too.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

# On a busy machine any example may take long; the deadline of the test itself (pyproject.toml) is enough.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")

GRACE = 300  # s that the clean-up of a failed test may take


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: object) -> None:
    """After a failure, pytest stops the timer of faulthandler_timeout: fixtures could then clean up for ever."""
    if isinstance(node, pytest.Item):
        faulthandler.dump_traceback_later(GRACE, exit=True)


ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("CONFLUO_TEST_DATA", ROOT.parent / "shared"))


PCAPS = DATA / "pcaps"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where other people's captures are not, their tests do not exist: tests of our captures make each comparison."""
    if (PCAPS / "truth").is_dir():
        return
    theirs = [item for item in items if "pcaps" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=theirs)
    items[:] = [item for item in items if item not in theirs]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: no collection of garbage has to look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_messages() -> Iterator[None]:
    """The Python API turns messages into warnings, from its first use on: not those of later tests."""
    yield
    console = sys.modules.get("confluo_tools.console")
    if console is not None:
        console.state.listener = None


@pytest.fixture(scope="session")
def pcaps() -> Path:
    """Folder of the real captures with their truth; never part of this project."""
    return PCAPS


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    return ROOT / "bin"


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system with as much room as ``DISK`` of the module says; `running.resize` changes it."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={request.module.DISK}"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """An authority, a controller, agents: keys and certificates of this module."""
    from agent_lab import Pki

    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Network namespaces of this module."""
    with Lab() as made:
        yield made


@pytest.fixture(scope="module")
def pair(lab: Lab) -> tuple[Space, Space]:
    """Two namespaces with an interface v0 each, joined by a cable."""
    return lab.pair()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server of S3, for all tests of a worker."""
    from s3_lab import S3Server

    server = S3Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of Kafka, for all tests of a worker."""
    from kafka_lab import CALM, Broker, jars

    libs, why = jars()
    if libs is None:
        pytest.skip(why)
    made = Broker(tmp_path_factory.mktemp("kafka"), libs, CALM)
    yield made
    made.close()


@pytest.fixture(scope="session")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """A scheduler of Dask and two workers, for all tests of a pytest worker."""
    from dask_lab import DaskCluster

    made = DaskCluster(tmp_path_factory.mktemp("dask"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    """A server of ClickHouse, also with TLS, for all tests of a worker; its authority is the file ca.pem."""
    from broker_certificates import Authority
    from clickhouse_lab import ClickHouse, missing

    if missing():
        pytest.skip(missing())
    folder = tmp_path_factory.mktemp("clickhouse")
    made = ClickHouse(folder, pem=Authority(folder, "ca").certify("server", "127.0.0.1"))
    yield made
    made.close()
