"""A standalone Spark cluster on this host with Spark's own settings, for benchmarks."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

START = 120.0  # s
MEMORY = "4g"  # of a worker, and of the executor on it
ROOT = Path(__file__).resolve().parent.parent


def cluster(cores: int) -> str:
    """Start a master and a worker for each core; returns ``spark://HOST:PORT``.  They end with this process.

    The environment of this process gets what its clients need.
    """
    folder = Path(tempfile.mkdtemp(prefix="confluo-spark-"))
    settings = {
        "spark.executor.memory": MEMORY,
        "spark.driver.memory": MEMORY,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": 4 * cores,
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    os.environ |= {
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    words = ["--host", "127.0.0.1", "--webui-port", "0"]
    address = _daemon(folder, "master.Master", [*words, "--port", "0"], r"Starting Spark master at (spark://\S+)")
    for number in range(cores):
        own = ["-c", "1", "-m", MEMORY, "-d", str(folder / str(number)), address]
        _daemon(folder, "worker.Worker", [*words, *own], "(Successfully registered)", number)
    return address


def _daemon(folder: Path, name: str, words: list[str], ready: str, number: int = 0) -> str:
    # Starts it, and waits for a line of its log; returns the first group.
    log = folder / f"{name}{number}.log"
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    atexit.register(os.killpg, process.pid, signal.SIGKILL)
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        found = re.search(ready, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise SystemExit(f"{name} did not start: {log}")
