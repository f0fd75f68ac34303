"""TLS and logins at a real broker: what is right works; what is wrong is one clear line, soon, without the secret."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker_certificates import Authority
from kafka_lab import Broker, jars
from running import BIN, CAMPUS, environment, listens, run

PASSWORD = "correct-horse-4711"
WRONG = "wrong-battery-0815"
SECURITY = "org.apache.kafka.common.security"
LISTENERS = {
    "TLS": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
}
PACKETS = b"5735\n"
DEADLINE = 60.0  # s


class SecureBroker:
    """A broker with a port for each way to connect, and a topic `t` of packets."""

    def __init__(self, folder: Path, libs: Path) -> None:
        self.folder, self.ours, self.other = folder, Authority(folder, "ours"), Authority(folder, "other")
        hosts = "localhost", "127.0.0.1"
        certificates = {
            "TLS": self.ours.certify("good", *hosts),
            "EXPIRED": self.ours.certify("expired", *hosts, days=-2),
            "ELSEWHERE": self.ours.certify("elsewhere", "elsewhere.example"),
            "MUTUAL": self.ours.certify("mutual", *hosts),
            "BOTH": self.ours.certify("both", *hosts),
        }
        self.client = self.ours.certify("client", "client.example")
        lines = []
        for name, path in certificates.items():
            key = f"listener.name.{name.lower()}.ssl"
            lines += [f"{key}.keystore.type=PEM", f"{key}.keystore.location={path}"]
        mutual = "listener.name.mutual.ssl"
        lines += [f"{mutual}.client.auth=required", f"{mutual}.truststore.type=PEM"]
        lines += [f"{mutual}.truststore.location={self.ours.path}"]
        for name in ("login", "both"):
            key = f"listener.name.{name}"
            lines += [
                f"{key}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
                f"{key}.scram-sha-256.sasl.jaas.config={SECURITY}.scram.ScramLoginModule required;",
                f'{key}.plain.sasl.jaas.config={SECURITY}.plain.PlainLoginModule required user_alice="{PASSWORD}";',
            ]
        self.broker = Broker(folder, libs, lines, listeners=LISTENERS)

    def at(self, listener: str, host: str = "127.0.0.1") -> str:
        port = self.broker.port if listener == "PLAIN" else self.broker.ports[listener]
        return f"kafka://{host}:{port}/t"

    def settings(self, **names: object) -> Mapping[str, str]:
        """An environment with these settings; `_` for the dots of a name."""
        path = self.folder / "settings"
        path.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in names.items()))
        return environment(CONFLUO_KAFKA=str(path), SECRET=PASSWORD)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    libs, why = jars()
    if libs is None:
        pytest.skip(why)
    made = SecureBroker(tmp_path_factory.mktemp("secure"), libs)
    try:
        assert run("confluo-stream", "publish", CAMPUS, "--to", made.at("PLAIN"), "--create", "1").returncode == 0
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        bob = UserScramCredentialUpsertion("bob", scram, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": made.broker.address})
        for done in admin.alter_user_scram_credentials([bob]).values():
            done.result(DEADLINE)
        yield made
    finally:
        made.broker.close()


def login(secure: SecureBroker, user: str, mechanism: str, password: str, **more: object) -> Mapping[str, str]:
    names = {"security_protocol": "sasl_plaintext", "sasl_mechanism": mechanism, "sasl_username": user, **more}
    return secure.settings(**names, sasl_password=password)


def test_tls_and_logins_that_are_right(secure: SecureBroker) -> None:
    tls = {"security_protocol": "ssl", "ssl_ca_location": secure.ours.path}
    key = {"ssl_key_location": secure.client, "ssl_certificate_location": secure.client}
    for address, env in (
        (secure.at("TLS", "localhost"), lambda: secure.settings(**tls)),
        (secure.at("MUTUAL"), lambda: secure.settings(**tls, **key)),
        (secure.at("LOGIN"), lambda: login(secure, "alice", "PLAIN", "env:SECRET")),
        (
            secure.at("BOTH"),
            lambda: login(secure, "bob", "SCRAM-SHA-256", PASSWORD, **{**tls, "security_protocol": "sasl_ssl"}),
        ),
    ):
        done = run("confluo-query", address, "--count", env=env())
        assert (done.stdout, done.stderr) == (PACKETS, b""), address


@pytest.mark.parametrize(
    ("listener", "protocol", "ca", "what"),
    [
        (
            "TLS",
            "ssl",
            "other",
            "the certificate of the broker is wrong: self-signed certificate in certificate chain;",
        ),
        ("EXPIRED", "ssl", "ours", "the certificate of the broker is wrong: certificate has expired;"),
        ("ELSEWHERE", "ssl", "ours", "the certificate of the broker is wrong: IP address mismatch"),
        ("MUTUAL", "ssl", "ours", "the broker refuses the certificate of this client, or wants one;"),
        ("PLAIN", "ssl", "ours", "the broker does not speak TLS;"),
        ("TLS", "plaintext", "ours", "the broker wants TLS; set -X security.protocol=ssl"),
        ("TLS", "ssl", "none", "-X: ssl.ca.location failed"),
    ],
)
def test_connections_that_are_wrong(secure: SecureBroker, listener: str, protocol: str, ca: str, what: str) -> None:
    env = secure.settings(security_protocol=protocol, ssl_ca_location=secure.folder / f"{ca}.pem")
    check_refusal(["confluo-query", secure.at(listener), "--count"], env, what)


def test_logins_that_are_wrong(secure: SecureBroker) -> None:
    for user, mechanism, password, what in (
        ("alice", "PLAIN", WRONG, "the broker refuses the login: Authentication failed: Invalid username or password;"),
        ("bob", "SCRAM-SHA-256", WRONG, "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("bob", "SCRAM-SHA-512", PASSWORD, "broker's supported mechanisms: PLAIN,SCRAM-SHA-256"),
    ):
        env = login(secure, user, mechanism, password)
        check_refusal(["confluo-stream", "publish", CAMPUS, "--to", secure.at("LOGIN")], env, what)
    check_refusal(["confluo-stream", "topics", secure.at("LOGIN")], secure.settings(), "it may want a login; set -X")


def check_refusal(words: list[object], env: Mapping[str, str], what: str) -> None:
    """One line, and the secret is in none."""
    done = run(*(str(word) for word in words), env=env)
    said = done.stderr.decode()
    assert what in said
    assert (done.returncode, done.stdout, said.count("\n")) == (2, b"", 1), said
    assert PASSWORD not in said
    assert WRONG not in said


def test_settings_in_the_address(secure: SecureBroker, tmp_path: Path) -> None:
    """Of a topic that is read, and of one that is written."""
    words = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
    text = "&".join(f"{name}={value}" for name, value in words.items())
    source = f"{secure.at('LOGIN')}?{text}&sasl.password=env:SECRET"
    (tmp_path / "ca").write_text(secure.ours.path.read_text())
    to = f"{secure.at('TLS', 'localhost')}2?security.protocol=ssl&ssl.ca.location={tmp_path / 'ca'}"
    env = environment(SECRET=PASSWORD)
    done = run("confluo-stream", "publish", source, "--to", to, "--create", "1", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    for topic in (source, to):
        done = run("confluo-query", topic, "--count", env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, PACKETS, b"")
    done = run("confluo-query", f"{secure.at('LOGIN')}?{text}&sasl.password={PASSWORD}", "--count")
    said = "sasl.password: is a secret, and other users see command lines; write sasl.password=@FILE, or "
    assert done.returncode == 2
    assert done.stderr.decode() == f"confluo-query: {secure.at('LOGIN')}: {said}sasl.password=env:VARIABLE\n"


def test_secrets_are_in_no_list_of_processes_and_no_log(secure: SecureBroker, tmp_path: Path) -> None:
    """Also not in the history of a log, and not in what librdkafka writes at its most talkative."""
    (tmp_path / "secret").write_text(PASSWORD + "\n")
    connect = ["-X", "security.protocol=sasl_plaintext", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=alice"]
    words = ["confluo-stream", "publish", "-", "--to", secure.at("LOGIN"), *connect]
    packets = run("confluo-query", CAMPUS, "-c", "10", "-o", "stream").stdout
    for value in (f"@{tmp_path / 'secret'}", "env:SECRET"):
        with subprocess.Popen(
            [BIN / words[0], *words[1:], "-X", f"sasl.password={value}", "-X", "debug=all", "-X", "log_level=7"],
            env=environment(SECRET=PASSWORD),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(packets)
            process.stdin.flush()
            listens(process, signal.SIGTERM)  # it knows its password by now
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            process.stdin.close()
            said = process.stderr.read()
            assert process.wait(DEADLINE) == 0, said
        assert b"sasl.password" in command
        assert PASSWORD.encode() not in command + said
    env = login(secure, "alice", "PLAIN", PASSWORD)
    done = run("confluo-query", secure.at("LOGIN"), "-w", tmp_path / "t.ml", env=env)
    assert done.returncode == 0, done.stderr
    for folder, _, files in os.walk(tmp_path / "t.ml"):
        for name in files:
            assert PASSWORD.encode() not in (Path(folder) / name).read_bytes()
    refused = run(*words, "-X", f"sasl.password={WRONG}")
    assert b"other users see command lines" in refused.stderr
    assert WRONG.encode() not in refused.stderr


def test_a_broker_that_closes_tls_does_not_speak_it() -> None:
    """librdkafka names the reason or sees only the end, as its tries fall; this looks itself."""
    from confluo_tools.kafka.connection_faults import ConnectionFaults

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1 << 14)

        thread = threading.Thread(target=serve)
        thread.start()
        faults = ConnectionFaults()
        faults._refused = "Disconnected: SSL connection closed by peer"
        brokers = f"127.0.0.1:{server.getsockname()[1]}"
        assert faults.explain(brokers, {"security.protocol": "ssl"})[0] == "the broker does not speak TLS"
        thread.join(30)
    assert faults.explain(brokers, {})[0] == "no broker answers: Disconnected: SSL connection closed by peer"
