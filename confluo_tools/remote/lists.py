"""An agent's errands to its controller: fetch a pinglist, send records.

Each is done by a child process that lives as long as the errand and is killed at its deadline.  So a name that does
not resolve, an answer that comes a byte a second or never ends, and the 25 MB that TLS, signatures and YAML take are
no business of the process that probes.  The child is told what to do in JSON on its stdin, and says in JSON what
came of it; a list that it hands on is whole, signed if that was asked for, and of the right server.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.formats.pinglist import Pinglist

DEADLINE = 10.0  # s that an errand may take
MOST = 16 << 20  # bytes of a list
MOST_PEERS = 20_000  # of one agent
MEMORY = 1 << 30  # bytes of address space that the child may take
CPU = 60  # s of processor time, likewise
CHUNK = 1 << 16


class Controller(NamedTuple):
    """Where to ask, and what to show and believe.  ``places``: http(s)://HOST[:PORT], or folders; asked in turn.

    ``ca``, ``cert``, ``key``: PEM files for TLS; ``trust``: the PEM of the Ed25519 key that lists must be signed with.
    """

    places: tuple[str, ...]
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    trust: str | None = None
    lab: bool = False


class Reply(NamedTuple):
    """What came of an errand: a kind of `algo.authority`, or for records ``taken``, ``refused`` or ``lost``."""

    kind: str
    detail: str = ""
    etag: str = ""
    pinglist: Pinglist | None = None


def check_place(text: str, *, signed: bool) -> str:
    """``text`` as a place to ask.  UsageError: it is none, or somebody on the way could change what it says."""
    from urllib.parse import urlsplit

    if "://" not in text:
        return os.path.abspath(text)
    try:
        url = urlsplit(text)
        port, host = url.port, url.hostname
    except ValueError:
        port, host = -1, None
    if url.scheme not in ("http", "https") or not host or port == -1 or url.query or url.fragment or url.username:
        raise UsageError(f"'{text[:80]}' is no controller", where="--controller",
                         hint="write https://HOST:PORT, or a folder of lists")  # fmt: skip
    if url.scheme == "http" and not signed and not _local(host):
        raise UsageError(f"'{text[:80]}' could be anybody", where="--controller",
                         hint="write https://..., or have lists signed and give --trust KEY")  # fmt: skip
    return text.rstrip("/")


def _local(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetch(at: Controller, name: str, etag: str = "", deadline: float = DEADLINE) -> Reply:
    """The list of the agent ``name``.  ``etag``: of the one it has.  Never raises for what others do."""
    told = {"do": "fetch", "name": name, "etag": etag, "deadline": deadline, **at._asdict()}
    reply, rest = _errand(told, b"", deadline)
    if reply.kind != "list":
        return reply
    try:
        return reply._replace(pinglist=_unpacked(rest))
    except (TypeError, ValueError, KeyError):
        return Reply("lost", "the errand ended with garbage")


def send(at: Controller, records: bytes, upload: str, deadline: float = DEADLINE) -> Reply:
    """An Arrow stream of records; ``upload`` names it, so that it is not kept twice."""
    told = {"do": "send", "upload": upload, "deadline": deadline, **at._asdict()}
    return _errand(told, records, deadline)[0]


def _errand(told: Mapping[str, Any], data: bytes, deadline: float) -> tuple[Reply, Any]:
    # Children come and go: nothing of ours is inherited but the environment.
    import subprocess

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "confluo_tools.remote.lists"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, cwd="/", start_new_session=True,
        ) as child:  # fmt: skip
            try:
                out, err = child.communicate(json.dumps(told).encode() + b"\n" + data, timeout=deadline + 1)
            except subprocess.TimeoutExpired:
                return Reply("lost", f"no answer within {deadline:g} s"), None
            finally:
                child.kill()
    except (OSError, RuntimeError, MemoryError) as e:  # no process, no thread, no memory
        return Reply("lost", f"nobody can be sent to ask: {getattr(e, 'strerror', None) or e}"), None
    try:
        kind, detail, etag, rest = json.loads(out)
    except ValueError:
        if child.returncode < 0:  # a parser that dies of what it reads
            return Reply("bad", f"reading the list ended with signal {-child.returncode}"), None
        last = err.decode(errors="replace").strip().rpartition("\n")[2][:80]
        return Reply("lost", f"the errand ended with {child.returncode} {last}".rstrip()), None
    return Reply(kind, detail, etag), rest


def _unpacked(rest: Any) -> Pinglist:
    from confluo_tools.formats.pinglist import Peer, Pinglist

    server, version, token, peers, (pod, podset, dc) = rest
    return Pinglist(server, version, token, tuple(Peer(*p) for p in peers), (pod, podset, dc))


# -- the child -------------------------------------------------------------------------------------------------


def _fetch(told: Mapping[str, Any]) -> tuple[str, str, str, Any]:
    last: tuple[str, str, str, Any] = ("lost", "there is no controller", "", None)
    for place, end in _turns(told):
        for again in (True, False):
            status, body, signature, etag = _get(told, place, end)
            if status == 304:
                return "same", "", told["etag"], None
            if status in (404, 410):
                return "missing", f"{place} has no list for {told['name']}", "", None
            if status != 200:
                last = "lost", etag or f"{place} says {status}", "", None
                break
            try:
                return _checked(told, body, signature, etag, place)
            except ConfluoError as e:
                last = "bad", str(e), "", None
                if again:  # it may have been replaced while it was read
                    time.sleep(min(1.0, told["deadline"] / 10))
        if last[0] == "bad":
            return last
    return last


def _checked(
    told: Mapping[str, Any], body: bytes, signature: bytes, etag: str, place: str
) -> tuple[str, str, str, Any]:
    """The list in ``body``.  Raises ConfluoError when it is not what it should be."""
    from confluo_tools.formats.pinglist import read_pinglist

    if len(body) > MOST:
        raise ConfluoError(f"{place} sends more than {MOST >> 20} MiB: no list")
    if not body.strip():
        return "empty", f"{place} has an empty list", "", None
    if told["trust"]:
        verify(body, signature, told["trust"])
    found = read_pinglist(body, lab=told["lab"], where=f"list of {place}")
    if found.server != told["name"]:
        raise ConfluoError(f"{place} sends the list of {found.server}")
    if len(found.peers) > MOST_PEERS:
        raise ConfluoError(f"{place} sends a list of {len(found.peers)} peers", hint=f"{MOST_PEERS} are the most")
    if not found.peers:
        return "empty", f"{place} has a list without peers", "", None
    fields = type(found.peers[0]).__dataclass_fields__
    peers = [[getattr(p, f) for f in fields] for p in found.peers]
    return "list", "", etag, [found.server, found.version, found.token, peers, found.place]


def verify(body: bytes, signature: bytes, trust: str) -> None:
    """Raises ConfluoError unless ``signature`` is that of ``body`` by the key ``trust`` (PEM)."""
    from cryptography.exceptions import InvalidSignature

    if not signature:
        raise ConfluoError("the list is not signed")
    try:
        public_key(trust).verify(signature, body)
    except InvalidSignature:
        raise ConfluoError("the signature of the list is not by the key that is trusted") from None


def public_key(pem: str) -> Any:
    """The Ed25519 key of a PEM.  Raises UsageError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("is no public key of Ed25519", hint="openssl pkey -in KEY -pubout makes it")
    return key


def _turns(told: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each place, and until when (monotonic s) it is waited for: one that is dead leaves the others their time."""
    end = time.monotonic() + told["deadline"]
    places = told["places"]
    for i, place in enumerate(places):
        now = time.monotonic()
        yield place, now + max(0.0, end - now) / (len(places) - i)


def _get(told: Mapping[str, Any], place: str, end: float) -> tuple[int, bytes, bytes, str]:
    """Status, list, signature, ETag; status 0: nobody answered, the last says why."""
    if "://" not in place:
        return _read(told, place)
    from base64 import b64decode

    headers = {"If-None-Match": told["etag"]} if told["etag"] else {}
    try:
        status, head, body = _ask(told, "GET", f"{place}/v1/pinglist/{told['name']}", None, headers, MOST,
                                  end)  # fmt: skip
    except _Nobody as e:
        return 0, b"", b"", str(e)
    try:
        signature = b64decode(head("x-confluo-signature") or "", validate=True)
    except ValueError:
        signature = b""
    if status not in (200, 304, 404, 410):
        return 0, b"", b"", f"{place} says {status}{_words(body)}"
    return status, body, signature, (head("etag") or "")[:200]


def _words(said: bytes) -> str:
    """What an answer that is no list says for people: its first line, unless it is a page."""
    words = said[:200].decode("ascii", "replace").strip().partition("\n")[0][:60]
    return f" {words}" if words and words.isprintable() and not words.startswith("<") else ""


def _read(told: Mapping[str, Any], folder: str) -> tuple[int, bytes, bytes, str]:
    from hashlib import sha256

    name = told["name"]
    if not os.path.isdir(folder):
        return 0, b"", b"", f"{folder} is not there"
    for suffix in (".yaml", ".arrow"):
        try:
            with open(os.path.join(folder, name + suffix), "rb") as file:
                body = file.read(MOST + 1)
        except FileNotFoundError:
            continue
        except OSError as e:
            return 0, b"", b"", f"{folder}: {e.strerror}"
        etag = sha256(body).hexdigest()
        if told["etag"] == etag:
            return 304, b"", b"", etag
        try:
            with open(os.path.join(folder, f"{name}.sig"), "rb") as file:
                return 200, body, file.read(1024), etag
        except OSError:
            return 200, body, b"", etag
    return 404, b"", b"", ""


def _send(told: Mapping[str, Any], body: bytes) -> tuple[str, str, str, Any]:
    last = "there is no controller"
    headers = {"Content-Type": "application/vnd.apache.arrow.stream", "X-Confluo-Upload": told["upload"]}
    for place, end in _turns(told):
        if "://" not in place:
            continue
        try:
            status, _, said = _ask(told, "POST", f"{place}/v1/records", body, headers, 1000, end)
        except _Nobody as e:
            last = str(e)
            continue
        if status == 204:
            return "taken", "", "", None
        last = f"{place} says {status}{_words(said)}"
        if status in (400, 403, 404, 413):
            return "refused", last, "", None
    return "lost", last, "", None


class _Nobody(Exception):
    """Nobody answered as HTTP has it."""


def _ask(
    told: Mapping[str, Any], method: str, url: str, body: bytes | None, headers: Mapping[str, str], most: int,
    end: float,
) -> tuple[int, Callable[[str], str | None], bytes]:  # fmt: skip
    """Status, headers and up to ``most`` + 1 bytes of the answer, until ``end``.  Redirections are not followed."""
    import http.client
    import ssl
    from urllib.parse import urlsplit

    at = urlsplit(url)
    patience = max(0.1, end - time.monotonic())
    connection: Any
    try:
        if at.scheme == "https":
            context = ssl.create_default_context(cafile=told["ca"])
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if told["cert"]:
                context.load_cert_chain(told["cert"], told["key"])
            connection = http.client.HTTPSConnection(str(at.hostname), at.port, timeout=patience, context=context)
        else:
            connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=patience)
        connection._create_connection = lambda where, *_: _connect(where[0], where[1], end)
        connection.request(method, at.path, body, {"User-Agent": "confluo-pingmesh", **headers})
        answer = connection.getresponse()
        pieces, size = [], 0
        while size <= most and (piece := answer.read1(CHUNK)):
            pieces.append(piece)
            size += len(piece)
            if time.monotonic() > end:
                raise TimeoutError
        length = answer.length  # what is still to come of what was promised
        if length and size <= most:
            raise _Nobody(f"{at.netloc} hung up in the middle")
        return answer.status, answer.getheader, b"".join(pieces)[: most + 1]
    except TimeoutError:
        raise _Nobody(f"{at.netloc}: no answer within {patience:.2g} s") from None
    except ssl.SSLCertVerificationError as e:
        raise _Nobody(f"{at.netloc}: its certificate is not good: {e.verify_message}") from None
    except (http.client.RemoteDisconnected, ConnectionResetError) as e:
        why = "hung up"
        if at.scheme == "https":  # a controller that does not know us says so only by this
            why += "; is our certificate good?" if told["cert"] else "; it may want a certificate (--cert)"
        raise _Nobody(f"{at.netloc}: {why}") from e
    except (OSError, http.client.HTTPException) as e:
        why = getattr(e, "reason", None) or getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise _Nobody(f"{at.netloc}: {' '.join(str(why).split())[:80]}") from None


def _connect(host: str, port: int, end: float) -> Any:
    """A connection to the first of the name's addresses that takes one; each has its share of the time.  OSError."""
    import socket
    import threading

    found: list[Any] = []

    def look() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as e:
            found.append(e)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(max(0.0, end - time.monotonic()))
    if not found:
        raise OSError(f"nobody resolves {host[:60]}")
    if isinstance(found[0], Exception):
        raise found[0] if isinstance(found[0], OSError) else OSError(f"{host[:60]} is no name")
    last: OSError = OSError("it has no address")
    for i, (family, kind, protocol, _, address) in enumerate(found[0]):
        left = end - time.monotonic()
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(max(0.05, left / (len(found[0]) - i)))
            sock.connect(address)
            sock.settimeout(max(0.05, end - time.monotonic()))
            return sock
        except OSError as e:
            last = e
            if sock is not None:
                sock.close()
    raise last


def _child() -> None:
    import resource
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, CPU)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    told = json.loads(sys.stdin.buffer.readline())
    signal.setitimer(signal.ITIMER_REAL, told["deadline"] + 2)  # whoever sent us may have died
    try:
        reply = _fetch(told) if told["do"] == "fetch" else _send(told, sys.stdin.buffer.read())
    except MemoryError:
        reply = "bad", f"the list takes more than {MEMORY >> 20} MiB", "", None
    sys.stdout.write(json.dumps(reply))


if __name__ == "__main__":
    _child()
