"""Controller client of an agent: fetch its pinglist, send its records.

Each exchange is done by a child process that is killed at its deadline.  A name that does not resolve, a response that
never ends, and the 25 MB of memory for TLS, signatures and YAML thus do not affect the process that probes.  The child
reads its request as JSON from stdin and writes the result as JSON to stdout; a pinglist in it is complete, signed if
that is required, and of the right server.

HTTP is http.client of the standard library; only the connect is our own, because http.client has one time-out for each
address of a name, and no limit for resolving it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.pingmesh.plan.pinglist_file import Pinglist

DEADLINE = 10.0  # s for one exchange
MAX_LIST = 16 << 20  # bytes of a list
MAX_PEERS = 20_000  # of one agent
MAX_MEMORY = 1 << 30  # bytes of address space of the child
MAX_CPU = 60  # s of processor time of the child
CHUNK = 1 << 16


class Controller(NamedTuple):
    """Controllers to try in order, and credentials.  ``places``: http(s)://HOST[:PORT], or folders.

    ``ca``, ``cert``, ``key``: PEM files for TLS; ``trust``: PEM of the Ed25519 public key that must have signed lists.
    """

    places: tuple[str, ...]
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    trust: str | None = None
    lab: bool = False


class ControllerReply(NamedTuple):
    """Result of an exchange: a kind of `pingmesh.agent.lease`, or for records ``taken``, ``refused`` or ``lost``."""

    kind: str
    detail: str = ""
    etag: str = ""
    pinglist: Pinglist | None = None


def check_place(text: str, *, signed: bool) -> str:
    """``text`` as a controller's place.  Raises UsageError: invalid, or plain HTTP to a remote host and unsigned."""
    from urllib.parse import urlsplit

    if "://" not in text:
        return os.path.abspath(text)
    try:
        url = urlsplit(text)
        port, host = url.port, url.hostname
    except ValueError:
        port, host = -1, None
    if url.scheme not in ("http", "https") or not host or port == -1 or url.query or url.fragment or url.username:
        raise UsageError(
            f"'{text[:80]}' is not a controller URL",
            where="--controller",
            hint="write https://HOST:PORT, or a folder of lists",
        )
    if url.scheme == "http" and not signed and not _local(host):
        raise UsageError(
            f"plain http to an unsigned controller is refused: '{text[:80]}'",
            where="--controller",
            hint="write https://..., or sign the lists and give --trust KEY",
        )
    return text.rstrip("/")


def _local(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetch(at: Controller, name: str, etag: str = "", deadline: float = DEADLINE) -> ControllerReply:
    """Fetch the list of agent ``name``.  ``etag``: of the list it has.  Network errors are in the reply."""
    request = {"do": "fetch", "name": name, "etag": etag, "deadline": deadline, **at._asdict()}
    reply, rest = _exchange(request, b"", deadline)
    if reply.kind != "list":
        return reply
    try:
        return reply._replace(pinglist=_unpacked(rest))
    except (TypeError, ValueError, KeyError):
        return ControllerReply("lost", "invalid output of the child process")


def send(at: Controller, records: bytes, upload: str, deadline: float = DEADLINE) -> ControllerReply:
    """Send an Arrow stream of records.  ``upload``: its name, by which the controller detects a repeated upload."""
    request = {"do": "send", "upload": upload, "deadline": deadline, **at._asdict()}
    return _exchange(request, records, deadline)[0]


def _exchange(request: Mapping[str, Any], data: bytes, deadline: float) -> tuple[ControllerReply, Any]:
    # The child inherits the environment, and no descriptor or directory.
    import subprocess

    root = Path(__file__).resolve().parents[3]
    path = os.pathsep.join(p for p in (str(root), os.environ.get("PYTHONPATH", "")) if p)
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "confluo_tools.pingmesh.agent.controller_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            start_new_session=True,
        ) as child:
            try:
                out, err = child.communicate(json.dumps(request).encode() + b"\n" + data, timeout=deadline + 1)
            except subprocess.TimeoutExpired:
                return ControllerReply("lost", f"no answer within {deadline:g} s"), None
            finally:
                child.kill()
    except (OSError, RuntimeError, MemoryError) as e:  # no process, no thread, no memory
        return ControllerReply("lost", f"cannot start a process: {getattr(e, 'strerror', None) or e}"), None
    try:
        kind, detail, etag, rest = json.loads(out)
    except ValueError:
        if child.returncode < 0:  # killed by a signal: a list can crash a parser
            return ControllerReply("bad", f"signal {-child.returncode} while reading the list"), None
        last = err.decode(errors="replace").strip().rpartition("\n")[2][:80]
        return ControllerReply("lost", f"child process ended with {child.returncode} {last}".rstrip()), None
    return ControllerReply(kind, detail, etag), rest


def _unpacked(rest: Any) -> Pinglist:
    from confluo_tools.pingmesh.plan.pinglist_file import Pinglist, PinglistPeer

    server, version, token, peers, (pod, podset, dc) = rest
    return Pinglist(server, version, token, tuple(PinglistPeer(*p) for p in peers), (pod, podset, dc))


# -- the child process ---------------------------------------------------------------------------------------------

Output = tuple[str, str, str, Any]  # kind, detail, ETag, and the fields of the list


class _ListResponse(NamedTuple):
    """Response to the request for a list; ``status`` 0: none, ``problem`` is the reason."""

    status: int
    body: bytes = b""
    signature: bytes = b""
    etag: str = ""
    problem: str = ""


class _HttpResponse(NamedTuple):
    """``header(name)``: a header's value or None; ``body``: at most the requested bytes and one."""

    status: int
    header: Callable[[str], str | None]
    body: bytes


def _fetch(request: Mapping[str, Any]) -> Output:
    last: Output = ("lost", "no controller is given", "", None)
    for place, end in _places(request):
        for retry in (True, False):
            got = _get(request, place, end)
            if got.status == 304:
                return "same", "", request["etag"], None
            if got.status in (404, 410):
                return "missing", f"{place} has no list for {request['name']}", "", None
            if got.status != 200:
                last = "lost", got.problem or f"{place} returned {got.status}", "", None
                break
            try:
                return _checked(request, got, place)
            except ConfluoError as e:
                last = "bad", str(e), "", None
                if retry:  # the list may have been replaced while it was read
                    time.sleep(min(1.0, request["deadline"] / 10))
        if last[0] == "bad":
            return last
    return last


def _checked(request: Mapping[str, Any], got: _ListResponse, place: str) -> Output:
    """The list of a response.  Raises ConfluoError if it is invalid."""
    from confluo_tools.pingmesh.plan.pinglist_file import read_pinglist

    if len(got.body) > MAX_LIST:
        raise ConfluoError(f"list of {place} exceeds {MAX_LIST >> 20} MiB")
    if not got.body.strip():
        return "empty", f"{place} has an empty list", "", None
    if request["trust"]:
        verify(got.body, got.signature, request["trust"])
    found = read_pinglist(got.body, lab=request["lab"], where=f"list of {place}")
    if found.server != request["name"]:
        raise ConfluoError(f"{place} sent the list of {found.server}")
    if len(found.peers) > MAX_PEERS:
        raise ConfluoError(f"list of {place} has {len(found.peers)} peers", hint=f"the maximum is {MAX_PEERS}")
    if not found.peers:
        return "empty", f"{place} has a list without peers", "", None
    fields = type(found.peers[0]).__dataclass_fields__
    peers = [[getattr(p, f) for f in fields] for p in found.peers]
    return "list", "", got.etag, [found.server, found.version, found.token, peers, found.place]


def verify(body: bytes, signature: bytes, trust: str) -> None:
    """Raises ConfluoError unless ``signature`` is the one of ``body`` by the key ``trust`` (PEM)."""
    from cryptography.exceptions import InvalidSignature

    if not signature:
        raise ConfluoError("the list is not signed")
    try:
        public_key(trust).verify(signature, body)
    except InvalidSignature:
        raise ConfluoError("the signature of the list is not by the trusted key") from None


def public_key(pem: str) -> Any:
    """The Ed25519 public key of a PEM.  Raises UsageError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("not an Ed25519 public key", hint="make it with openssl pkey -in KEY -pubout")
    return key


def _places(request: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each place and its deadline (monotonic s); a place that does not answer leaves time for the others."""
    end = time.monotonic() + request["deadline"]
    places = request["places"]
    for i, place in enumerate(places):
        now = time.monotonic()
        yield place, now + max(0.0, end - now) / (len(places) - i)


def _get(request: Mapping[str, Any], place: str, end: float) -> _ListResponse:
    if "://" not in place:
        return _read(request, place)
    from base64 import b64decode

    headers = {"If-None-Match": request["etag"]} if request["etag"] else {}
    try:
        got = _http(request, "GET", f"{place}/v1/pinglist/{request['name']}", None, headers, MAX_LIST, end)
    except _NoResponseError as e:
        return _ListResponse(0, problem=str(e))
    try:
        signature = b64decode(got.header("x-confluo-signature") or "", validate=True)
    except ValueError:
        signature = b""
    if got.status not in (200, 304, 404, 410):
        return _ListResponse(0, problem=f"{place} returned {got.status}{_reason(got.body)}")
    return _ListResponse(got.status, got.body, signature, (got.header("etag") or "")[:200])


def _reason(body: bytes) -> str:
    """The first line of an error response in plain text; '' for HTML."""
    line = body[:200].decode("ascii", "replace").strip().partition("\n")[0][:60]
    return f" {line}" if line and line.isprintable() and not line.startswith("<") else ""


def _read(request: Mapping[str, Any], folder: str) -> _ListResponse:
    from hashlib import sha256

    name = request["name"]
    if not os.path.isdir(folder):
        return _ListResponse(0, problem=f"{folder} does not exist")
    for suffix in (".yaml", ".arrow"):
        try:
            with open(os.path.join(folder, name + suffix), "rb") as file:
                body = file.read(MAX_LIST + 1)
        except FileNotFoundError:
            continue
        except OSError as e:
            return _ListResponse(0, problem=f"{folder}: {e.strerror}")
        etag = sha256(body).hexdigest()
        if request["etag"] == etag:
            return _ListResponse(304)
        try:
            with open(os.path.join(folder, f"{name}.sig"), "rb") as file:
                return _ListResponse(200, body, file.read(1024), etag)
        except OSError:
            return _ListResponse(200, body, b"", etag)
    return _ListResponse(404)


def _send(request: Mapping[str, Any], body: bytes) -> Output:
    last = "no controller is given"
    headers = {"Content-Type": "application/vnd.apache.arrow.stream", "X-Confluo-Upload": request["upload"]}
    for place, end in _places(request):
        if "://" not in place:
            continue
        try:
            got = _http(request, "POST", f"{place}/v1/records", body, headers, 1000, end)
        except _NoResponseError as e:
            last = str(e)
            continue
        if got.status == 204:
            return "taken", "", "", None
        last = f"{place} returned {got.status}{_reason(got.body)}"
        if got.status in (400, 403, 404, 413):
            return "refused", last, "", None
    return "lost", last, "", None


class _NoResponseError(Exception):
    """No complete HTTP response; the message is the reason."""


def _http(
    request: Mapping[str, Any],
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    max_bytes: int,
    end: float,
) -> _HttpResponse:
    """One HTTP exchange until ``end``, reading up to ``max_bytes`` + 1 of the body.  Redirections are not followed.

    Raises _NoResponseError.
    """
    import http.client
    import ssl
    from urllib.parse import urlsplit

    at = urlsplit(url)
    patience = max(0.1, end - time.monotonic())
    host = str(at.hostname)

    class ControllerConnection(http.client.HTTPConnection):
        default_port = 443 if at.scheme == "https" else 80

        def connect(self) -> None:
            self.sock = _connect(self.host, self.port, end)
            if context is not None:
                self.sock = context.wrap_socket(self.sock, server_hostname=self.host)

    context = None
    try:
        if at.scheme == "https":
            context = ssl.create_default_context(cafile=request["ca"])
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if request["cert"]:
                context.load_cert_chain(request["cert"], request["key"])
        connection = ControllerConnection(host, at.port, timeout=patience)
        connection.request(method, at.path, body, {"User-Agent": "confluo-pingmesh", **headers})
        response = connection.getresponse()
        pieces, size = [], 0
        while size <= max_bytes and (piece := response.read1(CHUNK)):
            pieces.append(piece)
            size += len(piece)
            if time.monotonic() > end:
                raise TimeoutError
        if response.length and size <= max_bytes:  # bytes of Content-Length that did not come
            raise _NoResponseError(f"{at.netloc} closed the connection before the end of its response")
        return _HttpResponse(response.status, response.getheader, b"".join(pieces)[: max_bytes + 1])
    except TimeoutError:
        raise _NoResponseError(f"{at.netloc}: no answer within {patience:.2g} s") from None
    except ssl.SSLCertVerificationError as e:
        raise _NoResponseError(f"{at.netloc}: certificate verification failed: {e.verify_message}") from None
    except (http.client.RemoteDisconnected, ConnectionResetError) as e:
        why = "closed the connection"
        if at.scheme == "https":  # the only sign of a controller that rejects our certificate
            why += "; it may reject our certificate" if request["cert"] else "; it may require a certificate (--cert)"
        raise _NoResponseError(f"{at.netloc} {why}") from e
    except (OSError, http.client.HTTPException) as e:
        why = getattr(e, "reason", None) or getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise _NoResponseError(f"{at.netloc}: {' '.join(str(why).split())[:80]}") from None


def _connect(host: str, port: int, end: float) -> Any:
    """A TCP connection to the first address of ``host`` that accepts one until ``end``.

    Addresses share the time evenly.  Raises OSError.
    """
    import socket
    import threading

    found: list[Any] = []

    def resolve() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as e:
            found.append(e)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(max(0.0, end - time.monotonic()))
    if not found:
        raise OSError(f"cannot resolve {host[:60]} in time")
    if isinstance(found[0], Exception):
        raise found[0] if isinstance(found[0], OSError) else OSError(f"invalid host name {host[:60]}")
    last: OSError = OSError("no address")
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
    for what, limit in ((resource.RLIMIT_AS, MAX_MEMORY), (resource.RLIMIT_CPU, MAX_CPU)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    request = json.loads(sys.stdin.buffer.readline())
    signal.setitimer(signal.ITIMER_REAL, request["deadline"] + 2)  # ends the child even if its parent has died
    try:
        output = _fetch(request) if request["do"] == "fetch" else _send(request, sys.stdin.buffer.read())
    except MemoryError:
        output = "bad", f"reading the list needs more than {MAX_MEMORY >> 20} MiB", "", None
    sys.stdout.write(json.dumps(output))


if __name__ == "__main__":
    _child()
