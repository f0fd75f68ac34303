"""Real brokers of Apache Kafka for tests: KRaft, on loopback, each in a folder of its own."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

POM = Path(__file__).resolve().parents[1] / "kafka" / "pom.xml"
START = 120.0  # s that a broker may take on a busy machine
CLUSTER = "confluo-tests-cluster0"  # 22 characters
# Of a broker that no test kills: it wakes less often while other tests run.
CALM = (
    "broker.heartbeat.interval.ms=2000",
    "broker.session.timeout.ms=9000",
    "controller.quorum.fetch.timeout.ms=2000",
    "metadata.max.idle.interval.ms=0",
)


def jars() -> tuple[Path | None, str]:
    """The folder with the jars of the broker, or None and why there is none."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        return None, "java and mvn are not installed"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "confluo-tests"
    cache.mkdir(parents=True, exist_ok=True)
    libs = cache / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if libs.is_dir():
            return libs, ""
        made = cache / "unfinished"
        shutil.rmtree(made, ignore_errors=True)
        command = ["mvn", "-q", "-B", "-f", POM, "dependency:copy-dependencies", f"-DoutputDirectory={made}"]
        done = subprocess.run(command, capture_output=True, timeout=300, stdin=subprocess.DEVNULL, check=False)
        if done.returncode or not made.is_dir():
            return None, f"Maven Central does not answer: {done.stdout.decode(errors='replace')[-300:]}"
        made.rename(libs)
    return libs, ""


class Broker:
    """A broker that runs.  `close` ends it and removes nothing else.

    ``more``: lines of its configuration.  ``listeners``: {name: protocol} of more ports, with the numbers in ``ports``.
    ``disk``: its data are on a disk of this size ("4m"), in memory; needs root.
    ``number``, ``voters``: of a node of a cluster, and {number: port} of the controllers of all of them; `start` it.
    """

    def __init__(
        self,
        folder: Path,
        libs: Path,
        more: Sequence[str] = (),
        *,
        listeners: Mapping[str, str] | None = None,
        number: int = 1,
        voters: Mapping[int, int] | None = None,
        disk: str = "",
    ) -> None:
        self.folder, self.libs, self.number, self._disk = folder, libs, number, disk
        named = dict(listeners or {})
        self.port, controller, *ports = free_ports(2 + len(named))
        self.ports = dict(zip(named, ports, strict=True))
        everyone = voters or {number: controller}
        self.address = f"127.0.0.1:{self.port}"
        lines = [
            "process.roles=broker,controller",
            f"node.id={number}",
            "controller.quorum.voters=" + ",".join(f"{n}@127.0.0.1:{port}" for n, port in everyone.items()),
            "listeners="
            + ",".join(
                f"{name}://127.0.0.1:{port}"
                for name, port in {"PLAINTEXT": self.port, "CONTROLLER": everyone[number], **self.ports}.items()
            ),
            "listener.security.protocol.map="
            + ",".join(
                f"{name}:{protocol}"
                for name, protocol in {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **named}.items()
            ),
            "controller.listener.names=CONTROLLER",
            f"log.dirs={folder / ('disk/data' if disk else 'data')}",
            f"offsets.topic.replication.factor={min(len(everyone), 3)}",
            "offsets.topic.num.partitions=4",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=2",
            "group.initial.rebalance.delay.ms=0",
            "group.min.session.timeout.ms=500",
            "auto.create.topics.enable=false",
            "broker.session.timeout.ms=1000",  # after a crash, the broker may come back no sooner
            "broker.heartbeat.interval.ms=200",
            "num.network.threads=2",
            "num.io.threads=2",
            "log.flush.interval.messages=1000000",
            *more,
        ]
        self.configuration = folder / "server.properties"
        self.configuration.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None
        self._alone = len(everyone) == 1 and not disk
        self._format()
        if voters is None:
            self.start()

    def topic(self, name: str) -> str:
        """The address of a topic."""
        return f"kafka://{self.address}/{name}"

    def _command(self, *words: object) -> list[str]:
        """``words``: options of java, a class and its arguments."""
        # One collector thread and the first compiler only: a broker for tests should start soon, and stay small.
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self.libs}/*"]
        return [*java, *(str(word) for word in words)]

    def _classes(self) -> list[str]:
        """Options of java: its classes from a file, parsed already.  That is half of a start.

        The first broker that is alone, and has no disk of its own, makes the file when it ends; then it starts again.
        """
        file = self.libs.with_name(f"{self.libs.name}.jsa")
        with open(self.libs.with_name("lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists() and self._alone:
                unfinished = file.with_name("unfinished.jsa")
                unfinished.unlink(missing_ok=True)
                self._begin(f"-XX:ArchiveClassesAtExit={unfinished}")
                self.wait()
                self.end()
                if unfinished.exists():
                    unfinished.rename(file)
        return [f"-XX:SharedArchiveFile={file}", "-Xshare:auto"] if file.exists() else []

    def _format(self) -> None:
        """Make its folder of data: the first one by Kafka's own tool, others as a copy with another number."""
        data, first = self.folder / "data", self.libs.with_name(f"{self.libs.name}-formatted")
        with open(self.libs.with_name("lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not first.is_dir():
                command = self._command("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", self.configuration)
                subprocess.run(command, capture_output=True, timeout=START, check=True)
                unfinished = self.libs.with_name("unfinished-format")
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.move(data, unfinished)
                unfinished.rename(first)
        shutil.copytree(first, data)
        known = {"version": 1, "cluster.id": CLUSTER, "node.id": self.number, "directory.id": _uuid()}
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in known.items()))

    def _on_disk(self) -> list[str]:
        """What runs a command with the small disk, which other processes do not see."""
        if not self._disk:
            return []
        (self.folder / "disk").mkdir(exist_ok=True)
        mount = 'mount -t tmpfs -o size="$0" none "$1/disk" && cp -r "$1/data" "$1/disk/" && shift && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, self._disk, str(self.folder)]

    def start(self, *, wait: bool = True) -> None:
        self._begin(*self._classes())
        if wait:
            self.wait()

    def _begin(self, *options: str) -> None:
        with open(self.folder / "broker.log", "ab") as log:
            command = [*self._on_disk(), *self._command(*options, "kafka.Kafka", self.configuration)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait(self) -> None:
        """Until it takes part in its cluster."""
        assert self.process is not None
        end = time.monotonic() + START
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                tail = (self.folder / "broker.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the broker does not start: {tail}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether the broker takes part in its cluster: it says so of itself."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return bool(AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=2).brokers)
        except (OSError, KafkaException):
            return False

    def kill(self) -> None:
        """End it at once, as a crash does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """End it as its operator does."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(START)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Cluster:
    """Three nodes; a topic has three copies."""

    def __init__(self, folder: Path, libs: Path, more: Sequence[str] = ()) -> None:
        voters = dict(enumerate(free_ports(3), 1))
        lines = ["default.replication.factor=3", "replica.lag.time.max.ms=3000", *more]
        self.nodes = []
        for number in voters:
            (folder / str(number)).mkdir()
            self.nodes.append(Broker(folder / str(number), libs, lines, number=number, voters=voters))
        for node in self.nodes:
            node.start(wait=False)
        self.wait()

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic; returns its address.  ``config``: `_` for the dots of a name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        named = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(name, partitions, 3, config=named)], operation_timeout=30)[name].result(START)
        self.wait()
        return f"kafka://{self.address}/{name}"

    def leader(self, name: str, partition: int = 0) -> Broker:
        """The node that leads a partition."""
        number = self._topics()[name].partitions[partition].leader
        return next(node for node in self.nodes if node.number == number)

    def wait(self, replicas: int = 3) -> None:
        """Until all nodes that run know each other, and each partition has a leader and enough replicas in sync."""
        end = time.monotonic() + START
        for node in self.nodes:
            node.wait()
        while not all(
            p.leader > 0 and len(p.isrs) >= replicas for t in self._topics().values() for p in t.partitions.values()
        ):
            assert time.monotonic() < end, "no leader"
            time.sleep(0.1)

    def _topics(self) -> dict[str, Any]:
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        topics: dict[str, Any] = client.list_topics(timeout=30).topics
        return topics

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def _uuid() -> str:
    """As Kafka writes them: 16 bytes in base 64."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def free_ports(n: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
