"""Pinglists as files: written whole, left alone when they say the same, refused when they are not what plan wrote."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from confluo_tools.errors import FormatError
from confluo_tools.network.fleet import make_grid
from confluo_tools.network.topology_file import read_fleet
from confluo_tools.pingmesh.plan.graphs import (
    SECOND,
    Pinglist,
    PinglistPeer,
    PingmeshPlan,
    PlanRules,
    ProbeSpec,
    version_of,
)
from confluo_tools.pingmesh.plan.pinglist_file import read_pinglist, to_arrow, to_yaml
from running import BIN, environment, popen, run

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "pingmesh" / "topology.yaml"
PLAN = ("confluo-pingmesh", "plan")
DISK = "2M"  # see small_disk


def planned(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[bytes]:
    done = run(*PLAN, *words)
    assert done.returncode == status, done.stderr.decode()
    return done


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "plan.json"}


def a_list(probes: tuple[ProbeSpec, ...] = (ProbeSpec(), ProbeSpec("udp", 64, 8))) -> Pinglist:
    plan = PingmeshPlan(read_fleet(str(EXAMPLE)), PlanRules(probes=probes), 0x1234567890ABCDEF)
    return plan.pinglist(plan.fleet.server("web08"))


GOOD = a_list()


# -- what is written


@pytest.mark.parametrize("form", ["yaml", "arrow"])
def test_lists_are_those_of_the_plan(form: str, tmp_path: Path) -> None:
    planned(
        EXAMPLE,
        "-o",
        form,
        "--probe",
        "tcp",
        "--probe",
        "udp,payload=64,dscp=8",
        "--token",
        "1234567890abcdef",
        "-w",
        tmp_path / "p",
    )
    plan = PingmeshPlan(
        read_fleet(str(EXAMPLE)), PlanRules(probes=(ProbeSpec(), ProbeSpec("udp", 64, 8))), 0x1234567890ABCDEF
    )
    names = {s.name for s in plan.fleet.servers if s.active}
    assert set(contents(tmp_path / "p")) == {f"{name}.{form}" for name in names}
    for name in names:
        wanted = plan.pinglist(plan.fleet.server(name))
        assert read_pinglist(str(tmp_path / "p" / f"{name}.{form}")) == wanted
    about = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert (about["complete"], about["servers"], about["pairs"]) == (True, 16, plan.check())


def test_pairs_are_the_lists_as_records(tmp_path: Path) -> None:
    planned(EXAMPLE, "-w", tmp_path / "p")
    planned(EXAMPLE, "-w", tmp_path / "pairs.parquet")
    import pyarrow.parquet as pq

    rows = pq.read_table(tmp_path / "pairs.parquet").to_pylist()
    said = sorted((r["src"], r["dst"], r["dst_port"], r["list"]) for r in rows)
    its = [read_pinglist(str(path)) for path in (tmp_path / "p").glob("*.yaml")]
    assert said == sorted((x.server, p.name, p.port, x.version) for x in its for p in x.peers)


def test_a_table_begins_with_who_probes() -> None:
    """A table has not all fields, and the prober comes after the target."""
    lines = run("confluo-pingmesh", "plan", EXAMPLE, "-o", "table").stdout.decode().splitlines()
    assert lines[0].split() == ["src", "src_pod", "dst", "dst_pod", "dst_ip", "dst_port", "kind", "level", "interval"]
    assert lines[2].split() == ["disk01", "rack1", "disk02", "rack1", "10.1.1.2", "8765", "tcp", "pod", "10s"]
    assert max(map(len, lines)) < 80
    wide = run("confluo-pingmesh", "plan", EXAMPLE, "-o", "table", "--wide").stdout.decode().splitlines()
    assert "src_podset" in wide[0]


def test_a_topology_from_a_pipe() -> None:
    done = run(*PLAN, "-", "-T", stdin=EXAMPLE.read_bytes())
    assert done.stdout == planned(EXAMPLE, "-T").stdout
    done = run(*PLAN, "-", "-T", stdin=b"x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"confluo-pingmesh plan: standard input: is not a topology; ")


def test_an_arrow_list_is_one_for_others_too(tmp_path: Path) -> None:
    planned(EXAMPLE, "-o", "arrow", "-w", tmp_path / "p")
    data = (tmp_path / "p" / "web08.arrow").read_bytes()
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    table = pa.ipc.open_stream(plain).read_all()
    metadata = table.schema.metadata
    assert metadata[b"pinglist:server"] == b"web08"
    wanted = read_pinglist(data)
    assert metadata[b"pinglist:version"] == b"%016x" % wanted.version
    names = [name.rstrip(b"\0").decode() for name in table["dst"].to_pylist()]
    assert [name for name in names if name != "web08"] == [p.name for p in wanted.peers]
    done = run("confluo-query", tmp_path / "p" / "web08.arrow", "level == wan", "--count")
    assert done.stdout == b"4\n"


def test_lists_that_say_the_same_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    planned(EXAMPLE, "-w", folder)
    before, stamps = contents(folder), {p.name: p.stat().st_mtime_ns for p in folder.glob("*.yaml")}
    changed = tmp_path / "t.yaml"
    changed.write_text(EXAMPLE.read_text().replace("disk08: 10.2.6.2", "disk08: 10.2.6.9"))
    done = planned(changed, "-w", folder, "--stats")
    after = contents(folder)
    new = {name for name in before if before[name] != after[name]}
    assert new == {name for name, text in before.items() if b"name: disk08" in text}
    assert f"{len(new)} lists written, {16 - len(new)} unchanged, 0 removed".encode() in done.stderr
    assert {p.name for p in folder.glob("*.yaml") if p.stat().st_mtime_ns != stamps[p.name]} == new


def test_the_list_of_a_server_that_is_gone_goes_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    planned(EXAMPLE, "-w", folder)
    (folder / "mine.yaml").write_text("not of the plan\n")
    smaller = tmp_path / "t.yaml"
    smaller.write_text(EXAMPLE.read_text().replace("web06: {address: 10.1.4.3, port: 9765}", ""))
    planned(smaller, "-w", folder, "-o", "yaml")
    assert not (folder / "web06.yaml").exists()
    assert (folder / "mine.yaml").read_text() == "not of the plan\n"
    planned(smaller, "-w", folder, "-o", "arrow")
    assert {p.name for p in folder.glob("*.yaml")} == {"mine.yaml"}


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear\n")
    done = planned(EXAMPLE, "-w", tmp_path, status=2)
    assert b"contains files that are not of a plan; name an empty folder" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]
    planned(EXAMPLE, "-w", tmp_path, "--force")
    assert (tmp_path / "letter.txt").exists()
    assert (tmp_path / "web01.yaml").exists()


def test_one_plan_at_a_time(tmp_path: Path) -> None:
    import fcntl

    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    done = planned(EXAMPLE, "-w", tmp_path, status=75)
    assert b"another plan is being written into it" in done.stderr
    os.close(fd)
    planned(EXAMPLE, "-w", tmp_path)


def test_signatures_as_openssl_sees_them(tmp_path: Path) -> None:
    def openssl(*words: str | Path) -> int:
        return subprocess.run(["openssl", *words], capture_output=True, check=False).returncode

    for name in ("key", "other"):
        assert openssl("genpkey", "-algorithm", "ed25519", "-out", tmp_path / name) == 0
        assert openssl("pkey", "-in", tmp_path / name, "-pubout", "-out", tmp_path / f"{name}.pub") == 0
    folder = tmp_path / "p"
    planned(EXAMPLE, "--sign", tmp_path / "key", "-w", folder)

    def verify(key: str) -> set[int]:
        return {
            openssl(
                "pkeyutl",
                "-verify",
                "-pubin",
                "-inkey",
                tmp_path / f"{key}.pub",
                "-rawin",
                "-in",
                path,
                "-sigfile",
                path.with_suffix(".sig"),
            )
            for path in folder.glob("web0*.yaml")
        }

    assert verify("key") == {0}
    assert 0 not in verify("other")
    planned(EXAMPLE, "--sign", tmp_path / "other", "-w", folder)  # another key, the same lists
    assert verify("other") == {0}
    planned(EXAMPLE, "-w", folder)  # a signature that fits no more would be worse than none
    assert list(folder.glob("*.sig")) == []


def test_the_token_stays_until_another_is_asked_for(tmp_path: Path) -> None:
    def tokens() -> set[int]:
        return {read_pinglist(str(p)).token for p in tmp_path.glob("*.yaml")}

    planned(EXAMPLE, "-w", tmp_path)
    assert tokens() == {0}
    planned(EXAMPLE, "-w", tmp_path, "--token", "random")
    first = tokens()
    assert len(first) == 1
    assert first != {0}
    planned(EXAMPLE, "-w", tmp_path, "--unequal", "skip")
    assert tokens() == first
    planned(EXAMPLE, "-w", tmp_path, "--token", "ff")
    assert tokens() == {255}


def test_killed_at_any_time_what_is_there_is_whole(tmp_path: Path) -> None:
    big, folder = tmp_path / "t.yaml", tmp_path / "p"
    big.write_text("grid: {dcs: 1, podsets: 2, pods: 40, servers: 40}\n")
    planned(EXAMPLE, "-w", folder, "--token", "abc")
    for _ in range(3):
        before = {p.name for p in folder.glob("*.arrow")}
        child = popen(
            [BIN / PLAN[0], PLAN[1], big, "-o", "arrow", "-w", folder], env=environment(), stderr=subprocess.PIPE
        )
        deadline = time.monotonic() + 30
        while child.poll() is None and len(list(folder.glob("p*.arrow"))) <= len(before) + 50:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        found = list(folder.glob("p*.arrow"))
        assert found
        for path in [*found[:50], *found[-50:]]:
            assert read_pinglist(str(path)).server == path.name.removesuffix(".arrow")
    planned(EXAMPLE, "-w", folder)
    assert {p.name.removesuffix(".yaml") for p in folder.iterdir()} == {
        *(s.name for s in read_fleet(str(EXAMPLE)).servers if s.active),
        "plan.json",
    }
    assert {read_pinglist(str(p)).token for p in folder.glob("*.yaml")} == {0xABC}


# -- what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval", "9.9s"], "--interval: 9.9s is below the minimum of 10s; in a lab, give --lab"),
        (["--interval", "0s", "--lab"], "--interval: '0s' is too short; 1ms or more"),
        (["--timeout", "1h"], "--timeout: '1h' is too long; 1m at most"),
        (["--algo", "star"], "--algo: unknown graph 'star'; use mesh, ring:N or full"),
        (["--algo", "ring:0"], "--algo: unknown graph 'ring:0'"),
        (["--algo", "mesh:3"], "--algo: unknown graph 'mesh:3'"),
        (["--unequal", "cut"], "--unequal: not 'cut'"),
        (["--probe", "smtp"], "--probe: not 'smtp'"),
        (["--probe", "echo,payload=65537"], "--probe: payload 65537 exceeds 65536"),
        (["--probe", "tcp,dscp=64"], "--probe: dscp 64 exceeds 63"),
        (["--probe", "udp,payload=40"], "--probe: payload of udp is 40 B; the minimum is 1 B of echo, 48 B of udp"),
        (["--probe", "udp,payload=65508"], "--probe: payload 65508 exceeds 65507"),
        (["--probe", "echo,payload=0"], "--probe: payload of echo is 0 B"),
        (
            ["--probe", "udp"],
            "--token: responders do not answer udp probes without a token; make one with --token random",
        ),
        (
            ["--probe", "tcp", "--probe", "tcp,port=8765"],
            "'disk01' would be probed twice in the same way: its own port is 8765",
        ),
        ([w for n in range(21) for w in ("--probe", f"tcp,dscp={n}")], "each target would get 21 probes in 10 s"),
        (["--probe", "tcp,size=1"], "--probe: invalid 'size=1'"),
        (["--probe", "tcp", "--probe", "tcp"], "--probe: duplicate probe"),
        (["--probe", "echo,payload=9", "--probe", "echo,payload=99"], "--probe: duplicate probe"),
        (["--max-peers", "3"], "would have 8 peers, more than 3; raise --max-peers"),
        (["--token", "xyz"], "--token: 'xyz' is not a token"),
        (["--sign", "/nonexistent"], "/nonexistent: No such file"),
        (["--sign", str(EXAMPLE)], "not an Ed25519 private key"),
        (["-o", "parquet"], "-o: unknown format 'parquet' of lists; use yaml or arrow"),
        (["-T"], "-w: lists need a folder"),
        (["--server", "web01"], "-w: lists need a folder"),
    ],
)
def test_options_that_cannot_be_meant(words: list[str], said: str, tmp_path: Path) -> None:
    done = planned(EXAMPLE, *words, "-w", f"{tmp_path}/p/", status=2)
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert said in done.stderr.decode()
    assert not list(tmp_path.glob("p/*"))


def test_a_server_nobody_knows_and_a_fleet_of_one(tmp_path: Path) -> None:
    assert b"--server: unknown server 'web77'" in planned(EXAMPLE, "--server", "web77", status=2).stderr
    (tmp_path / "t.yaml").write_text("dcs: {a: {b: {c: {d: 10.0.0.1}}}}")
    assert (
        b"plan is empty: no server has a peer" in planned(tmp_path / "t.yaml", "-w", tmp_path / "p/", status=1).stderr
    )
    assert read_pinglist(str(tmp_path / "p" / "d.yaml")).peers == ()
    assert planned(tmp_path / "t.yaml", "-T", status=1).stdout.count(b"\n") == 2


def test_a_damaged_plan_file_is_not_guessed_at(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"files": 3}', "[" * 100_000):
        (tmp_path / "plan.json").write_text(text)
        done = planned(EXAMPLE, "-w", tmp_path, status=2)
        assert b"plan.json: not a plan file" in done.stderr
    # and names in it that lead elsewhere are not followed
    (tmp_path / "keep.yaml").write_text("x")
    folder = tmp_path / "q"
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({"files": ["../keep.yaml", "/etc/hosts", 3, "gone.yaml"]}))
    (folder / "gone.yaml").write_text("x")
    planned(EXAMPLE, "-w", folder)
    assert (tmp_path / "keep.yaml").exists()
    assert not (folder / "gone.yaml").exists()


def refused(data: bytes) -> bool:
    """Whether it is; if not, then it says what the good list does."""
    try:
        found = read_pinglist(data)
    except FormatError as error:
        return "\n" not in str(error)
    assert found == GOOD
    return False


@pytest.mark.parametrize("data", [to_yaml(GOOD), to_arrow(GOOD)], ids=["yaml", "arrow"])
def test_a_list_that_was_cut_is_none(data: bytes) -> None:
    assert read_pinglist(data) == GOOD
    for n in range(0, len(data), 1 if len(data) < 2000 else 7):
        # Only the last newline, or the frame of the end mark, says nothing that is missed.
        assert refused(data[:n]) or n == len(data) - 1


def test_no_byte_can_be_another_one() -> None:
    """Each byte of a list in turn, where a small change is still YAML: refused, or it says the same."""
    whole = to_yaml(GOOD)
    assert f"place: {'/'.join(GOOD.place)}".encode() in whole
    for at in range(len(whole)):
        for other in (whole[at] ^ 1, ord("-"), ord("9")):
            refused(whole[:at] + bytes([other]) + whole[at + 1 :])


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["yaml", "arrow"]), st.data())
def test_a_list_that_was_changed_is_none(form: str, data: st.DataObject) -> None:
    whole = bytearray(to_yaml(GOOD) if form == "yaml" else PLAIN_ARROW)
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    refused(bytes(whole))


PLAIN_ARROW = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(to_arrow(GOOD)), read_across_frames=True).read()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_no_list(data: bytes) -> None:
    for head in (b"", b"pinglist: 1\n", b"\xff\xff\xff\xff", b"\x28\xb5\x2f\xfd"):
        with pytest.raises(FormatError):
            read_pinglist(head + data)


def forged(**more: object) -> bytes:
    # A list with a valid version, as an attacker without the key can make it.
    peer = PinglistPeer(**{"name": "a", "address": "10.0.0.1", "port": 8765, **more})  # type: ignore[arg-type]
    return to_yaml(Pinglist("b", version_of("b", 0, [peer]), 0, (peer,)))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"interval": 10 * SECOND - 1}, "has an interval of 9.999999999s; the minimum is 10 s"),
        ({"interval": 10**18}, "has an invalid time-out or interval"),
        ({"timeout": 0}, "has an invalid time-out or interval"),
        ({"timeout": 61 * SECOND}, "has an invalid time-out or interval"),
        ({"payload": 65537}, "has a payload of 65537 B; 0 to 65536 B are valid"),
        ({"kind": "udp", "payload": 65508}, "has a payload of 65508 B; 0 to 65507 B are valid"),
        ({"kind": "echo"}, "has a payload of 0 B; 1 to 65536 B are valid"),
        ({"port": 0}, "invalid peer 'a'"),
        ({"dscp": 64}, "invalid peer 'a'"),
        ({"kind": "smtp"}, "invalid peer 'a'"),
        ({"level": "moon"}, "invalid peer 'a'"),
        ({"address": "224.0.0.1"}, "peer 'a' has no address"),
        ({"address": "example.org"}, "peer 'a' has no address"),
        ({"name": "../a"}, "invalid server name '../a'"),
        ({"pod": "x" * 17}, "invalid place"),
        ({"name": "a\nb"}, "invalid server name"),
    ],
)
def test_limits_are_the_readers_too(more: dict[str, object], said: str) -> None:
    assert len(read_pinglist(forged()).peers) == 1
    with pytest.raises(FormatError) as error:
        read_pinglist(forged(**more), where="list")
    assert str(error.value).startswith("list: ")
    assert said in str(error.value)


def test_a_peer_twice_is_refused() -> None:
    peers = (PinglistPeer("a", "10.0.0.1", 8765), PinglistPeer("c", "10.0.0.1", 8765))
    with pytest.raises(FormatError, match="duplicate peer"):
        read_pinglist(to_yaml(Pinglist("b", version_of("b", 0, peers), 0, peers)))


def test_more_probes_than_an_agent_sends_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("grid: {dcs: 1, podsets: 1, pods: 1, servers: 20010}\n")
    words = [tmp_path / "t.yaml", "--max-peers", "30000", "--server", "p001s00001", "-o", "tsv"]
    said = b"would send 2001 probes per second, more than 2000; --max-rate limits it"
    assert said in planned(*words, status=2).stderr
    assert planned(*words, "--max-rate", "1000").stdout.count(b"\n") == 20009 + 2


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        ("nan", b"--max-rate: nan is not a rate; write probes per second, such as 200"),
        ("1e-300", b"--max-rate: 1e-300 is not a rate; write probes per second, such as 200"),
        ("0.00009", b"server 'disk06' would probe each peer less than once a day; raise --max-rate"),
    ],
)
def test_a_rate_that_agents_would_refuse_is_refused(tmp_path: Path, rate: str, said: bytes) -> None:
    done = planned(EXAMPLE, "--max-rate", rate, "-w", f"{tmp_path}/lists/", status=2)
    assert said in done.stderr
    assert not (tmp_path / "lists").exists()
    planned(EXAMPLE, "--max-rate", "0.0001", "-w", f"{tmp_path}/lists/")
    assert len(read_pinglist((tmp_path / "lists/disk06.yaml").read_bytes()).peers) == 8


def test_a_full_disk_names_the_list(tmp_path: Path) -> None:
    for limit, name in ((800, b"disk01.yaml"), (200, b"plan.json")):
        words = ["prlimit", f"--fsize={limit}", BIN / PLAN[0], PLAN[1], EXAMPLE, "-w", f"{tmp_path}/lists{limit}/"]
        done = subprocess.run([str(w) for w in words], capture_output=True, env=environment(), check=False)
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
        assert f"/lists{limit}/".encode() + name + b": File too large" in done.stderr


def test_a_laboratory_may_probe_more_often() -> None:
    data = forged(interval=SECOND // 10)
    with pytest.raises(FormatError):
        read_pinglist(data)
    assert read_pinglist(data, lab=True).peers[0].interval == SECOND // 10
    with pytest.raises(FormatError):
        read_pinglist(forged(interval=-1), lab=True)


def test_large_lists_are_not_believed() -> None:
    with pytest.raises(FormatError, match="exceeds 16 MiB"):
        read_pinglist(b"#" * (17 << 20))
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    assert len(bomb) < 1 << 20
    start = time.process_time()
    with pytest.raises(FormatError, match="exceeds 64 MiB decompressed"):
        read_pinglist(bomb)
    assert time.process_time() - start < 30
    plan = PingmeshPlan(make_grid(1, 1, 1, 5000))
    assert len(read_pinglist(to_arrow(plan.pinglist(plan.fleet.servers[0]))).peers) == 4999


def test_a_full_disk_leaves_whole_lists(small_disk: Path, tmp_path: Path) -> None:
    folder, big = small_disk / "p", tmp_path / "t.yaml"
    planned(EXAMPLE, "-w", folder)
    before = contents(folder)
    big.write_text("grid: {dcs: 1, podsets: 10, pods: 40, servers: 40}\n")
    done = planned(big, "-o", "arrow", "-w", folder, status=2)
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr
    after = contents(folder)
    assert not before.keys() & after.keys()  # those servers are not of this plan
    whole = [name for name in after if name.endswith(".arrow")]
    assert len(whole) > 100
    for name in [*whole[:20], *whole[-20:]]:
        assert read_pinglist(after[name]).server == name.removesuffix(".arrow")
    planned(EXAMPLE, "-w", folder)  # and what was too much goes again
    assert contents(folder) == before
