"""The controller of Pingmesh: pinglists from a folder over HTTPS, and the agents' records back into a MultiLog.

It has no state and no key: a list is a file that `plan` has written and signed, so any number of controllers over
copies of one folder answer alike (the paper has several behind one virtual address).

    GET  /v1/pinglist/NAME       the list, its ETag, and its signature in X-Confluo-Signature (base64); 304, 404
    GET  /v1/pinglist/NAME.sig   the signature alone
    POST /v1/records             an Arrow stream of probe records; 204, 400, 403, 413, 429, 507
    GET  /healthz                200 while the folder can be read
    GET  /metrics                for Prometheus

The last two may also be had elsewhere, without a certificate: for what stands before several controllers.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError, DiskFullError, FormatError, StoreError

if TYPE_CHECKING:
    from ssl import SSLContext

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from confluo_tools.core.block import Block
    from confluo_tools.formats.stream import ByteStream

MOST_LIST = 16 << 20  # bytes of a list
MOST_UPLOAD = 32 << 20  # bytes of records at once
MOST_RECORDS = 128 << 20  # bytes of them when they are not compressed, columns that are not there counted in
UPLOAD_TIME = 30.0  # s that sending them may take
UPLOADS = 8  # at the same time; others are asked to come again
OF_ONE = 2  # of the same agent, by its certificate
UNPACKED = 2  # of those; the others wait compressed
REMEMBERED = 4096  # uploads of which one that comes again is known
CACHED = 1 << 16  # lists whose ETag is known without reading them
SUFFIXES = {".yaml": "application/yaml", ".arrow": "application/vnd.apache.arrow.file"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,31}\Z", re.ASCII)
SIGNATURE = 64  # bytes of Ed25519

Take = Callable[[list["Block"]], None]


class Served(NamedTuple):
    body: bytes
    etag: str
    media: str
    signature: bytes


class Lists:
    """The folder.  A list that is replaced while it is read is read again: list and signature belong together."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.given = self.same = 0  # answers
        self._etags: OrderedDict[str, tuple[tuple[int, ...], str]] = OrderedDict()
        self._lock = threading.Lock()

    def names(self) -> int:
        """How many lists there are.  Raises OSError."""
        with os.scandir(self.folder) as entries:
            return sum(1 for e in entries if os.path.splitext(e.name)[1] in SUFFIXES)

    def get(self, name: str) -> Served | None:
        """The list of that agent; None when there is none.  Raises OSError, and StoreError when it is too large."""
        if not NAME.match(name):
            return None
        for suffix, media in SUFFIXES.items():
            path = os.path.join(self.folder, name + suffix)
            for _ in range(5):
                try:
                    body, identity = _read(path, MOST_LIST)
                except FileNotFoundError:
                    break
                signature = self._signature(name, suffix)
                try:
                    again = os.stat(path)
                except FileNotFoundError:
                    break
                if _identity(again) == identity:
                    return Served(body, self._etag(path, identity, body), media, signature)
        os.stat(self.folder)  # a folder that is not there says nothing about its lists
        return None

    def unchanged(self, name: str, etag: str) -> bool:
        """Whether the list still has this ETag, without reading it if that is known already."""
        if not NAME.match(name):
            return False
        for suffix in SUFFIXES:
            path = os.path.join(self.folder, name + suffix)
            try:
                identity = _identity(os.stat(path))
            except OSError:
                continue
            with self._lock:
                known = self._etags.get(path)
            if known is not None and known[0] == identity:
                return known[1] == etag
            found = self.get(name)
            return found is not None and found.etag == etag
        return False

    def _signature(self, name: str, suffix: str) -> bytes:
        try:
            signature, _ = _read(os.path.join(self.folder, f"{name}.sig"), SIGNATURE)
        except FileNotFoundError:
            return b""
        return signature

    def _etag(self, path: str, identity: tuple[int, ...], body: bytes) -> str:
        from hashlib import sha256

        etag = f'"{sha256(body).hexdigest()[:40]}"'
        with self._lock:
            self._etags[path] = identity, etag
            self._etags.move_to_end(path)
            while len(self._etags) > CACHED:
                self._etags.popitem(last=False)
        return etag


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _read(path: str, most: int) -> tuple[bytes, tuple[int, ...]]:
    with open(path, "rb") as file:
        identity = _identity(os.fstat(file.fileno()))
        body = file.read(most + 1)
    if len(body) > most:
        raise StoreError(f"has more than {most} bytes", where=path)
    return body, identity


class Intake:
    """Records that agents send, all of an upload or none: into `take`, one upload after the other."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._room = threading.Semaphore(UNPACKED)
        self._seen: OrderedDict[str, None] = OrderedDict()

    def accept(self, fd: int, upload: str, src: Sequence[str] | None) -> int:
        """The Arrow stream in the file ``fd``; says how many rows are new.

        ``upload`` names it, so that one that is sent again (its answer was lost) is not kept twice.
        ``src``: names that the records may be of, any by default.  Raises ConfluoError; FormatError when it is not
        what it should be, PermissionError when it is of others.
        """
        with self._room:
            return self._accept(fd, upload, src)

    def _accept(self, fd: int, upload: str, src: Sequence[str] | None) -> int:
        from confluo_tools.formats.arrow import StreamReader
        from confluo_tools.formats.stream import ByteStream, unzip
        from confluo_tools.schema import builtin

        wanted = builtin("probe")
        fd = _plain(unzip(ByteStream(fd, "upload")))
        with StreamReader(ByteStream(fd, "upload"), warn=_refuse) as reader:
            if reader.schema.kind != wanted.kind:
                raise FormatError(f"are records of '{reader.schema.kind[:40]}'", hint="send those of 'probe'")
            for field in reader.schema.fields:
                if field.name not in wanted or wanted[field.name].type.text != field.type.text:
                    raise FormatError(f"field '{field.name[:40]}' is not one of a probe")
            most = MOST_RECORDS // wanted.layout.row_bytes
            blocks = [block.project(wanted.layout) for block in _copied(reader, most)]
        if src is not None and blocks:
            self._of(blocks, src)
        with self._lock:
            if upload and upload in self._seen:
                return 0
            self._take(blocks)
            if upload:
                self._seen[upload] = None
                while len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
        return sum(block.rows for block in blocks)

    def _of(self, blocks: Iterable[Block], names: Sequence[str]) -> None:
        from confluo_tools.expr import compile
        from confluo_tools.schema import builtin

        text = " or ".join(f'src == "{name}"' for name in names if NAME.match(name))
        program = compile(text, builtin("probe")).program if text else None
        for block in blocks:
            if program is None or len(program.select(block)) != block.rows:
                raise PermissionError


def _plain(stream: ByteStream) -> int:
    # What was compressed is looked at when all of it is known to be small.
    out, size = os.memfd_create("plain", os.MFD_CLOEXEC), 0
    try:
        while piece := stream.some():
            size += len(piece)
            if size > MOST_RECORDS:
                raise FormatError(f"more than {MOST_RECORDS >> 20} MiB of records at once")
            os.write(out, piece)
        if getattr(stream, "damage", ""):
            raise FormatError(stream.damage)
        os.lseek(out, 0, os.SEEK_SET)
    except BaseException:
        os.close(out)
        raise
    finally:
        stream.close()
    return out


def _refuse(what: str) -> None:
    raise FormatError(what)


def _copied(reader: Any, most: int) -> Iterable[Block]:
    # A reader's blocks last until the next one.  ``most`` rows: a narrow one becomes a whole record in the log.
    from confluo_tools.core.block import Block

    rows = 0
    for block in reader.blocks():
        rows += block.rows
        if rows > most:
            raise FormatError(f"more than {most} records at once")
        columns = [bytes(block.buffer(i)) for i in range(block.layout.n)]
        yield Block.wrap(block.layout, block.rows, columns)


def certified(scope: Any) -> list[str]:
    """The names in the client's certificate: its common name, and those of DNS."""
    cert = scope.get("confluo.peercert") or {}
    names = [value for pair in cert.get("subject", ()) for key, value in pair if key == "commonName"]
    return names + [value for key, value in cert.get("subjectAltName", ()) if key == "DNS"]


def make_app(lists: Lists, intake: Intake | None, *, own: bool = False) -> Starlette:
    """The ASGI application.  ``own``: an agent gets, and sends, only what is its own by its certificate.

    Its ``state.beside`` is another one, of /healthz and /metrics alone.
    """
    import asyncio
    from base64 import b64encode

    import prometheus_client as prometheus
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    registry = prometheus.CollectorRegistry()
    asked = prometheus.Counter(
        "pingmesh_controller_requests_total", "Answers, by what was asked and the status", ["what", "status"],
        registry=registry,
    )  # fmt: skip
    rows = prometheus.Counter("pingmesh_controller_records_total", "Records taken from agents", registry=registry)
    body = prometheus.Counter("pingmesh_controller_upload_bytes_total", "Bytes of those", registry=registry)
    there = prometheus.Gauge("pingmesh_controller_lists", "Pinglists in the folder; -1: unreadable", registry=registry)
    room = asyncio.Semaphore(UPLOADS)
    of_one: Counter[str] = Counter()  # uploads under way

    def said(what: str, status: int, text: str = "", **more: Any) -> Response:
        asked.labels(what, str(status)).inc()
        return PlainTextResponse(f"{text}\n" if text else "", status, **more)

    async def pinglist(request: Request) -> Response:
        name = request.path_params["name"]
        alone = name.endswith(".sig")
        name = name.removesuffix(".sig")
        if own and name not in certified(request.scope):
            return said("pinglist", 403, "the certificate is not that agent's")
        wish = request.headers.get("if-none-match", "")
        try:
            if wish and not alone and await run_in_threadpool(lists.unchanged, name, wish):
                asked.labels("pinglist", "304").inc()
                lists.same += 1
                return Response(status_code=304, headers={"etag": wish})
            found = await run_in_threadpool(lists.get, name)
        except (OSError, ConfluoError):
            return said("pinglist", 500, "the list cannot be read")
        if found is None or (alone and not found.signature):
            return said("pinglist", 404, "there is no such list")
        asked.labels("pinglist", "200").inc()
        lists.given += not alone
        if alone:
            return Response(found.signature, media_type="application/octet-stream")
        headers = {"etag": found.etag, "cache-control": "no-cache"}
        if found.signature:
            headers["x-confluo-signature"] = b64encode(found.signature).decode()
        return Response(found.body, headers=headers, media_type=found.media)

    async def records(request: Request) -> Response:
        if intake is None:
            return said("records", 404, "this controller keeps no records")
        names = certified(request.scope) if own else None
        who = names[0] if names else ""
        if room.locked() or (who and of_one[who] >= OF_ONE):
            return said("records", 429, "too many at once", headers={"retry-after": "5"})
        fd = os.memfd_create("upload", os.MFD_CLOEXEC)
        of_one[who] += 1
        try:
            async with room:
                size = 0
                try:
                    async with asyncio.timeout(UPLOAD_TIME):
                        async for chunk in request.stream():
                            size += len(chunk)
                            if size > MOST_UPLOAD:
                                return said("records", 413, f"more than {MOST_UPLOAD} bytes at once",
                                            headers={"connection": "close"})  # fmt: skip
                            os.write(fd, chunk)
                except (TimeoutError, ClientDisconnect):
                    return said("records", 408, headers={"connection": "close"})
                os.lseek(fd, 0, os.SEEK_SET)
                upload = request.headers.get("x-confluo-upload", "")[:64]
                try:
                    rows.inc(await run_in_threadpool(intake.accept, os.dup(fd), upload, names))
                except FormatError as e:
                    return said("records", 400, str(e))
                except PermissionError:
                    return said("records", 403, "the records are not of the agent that the certificate names")
                except DiskFullError:
                    return said("records", 507, "no room")
                except (OSError, ConfluoError):
                    return said("records", 500, "cannot be kept")
                body.inc(size)
        finally:
            os.close(fd)
            of_one[who] -= 1
            if not of_one[who]:
                del of_one[who]
        asked.labels("records", "204").inc()
        return Response(status_code=204)

    def count() -> int:
        try:
            return lists.names()
        except OSError:
            return -1

    async def healthz(request: Request) -> Response:
        n = await run_in_threadpool(count)
        return JSONResponse({"lists": n} if n >= 0 else {"error": "the folder of lists cannot be read"},
                            200 if n >= 0 else 503)  # fmt: skip

    async def metrics(request: Request) -> Response:
        there.set(await run_in_threadpool(count))
        return Response(prometheus.generate_latest(registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    beside = [Route("/healthz", healthz, methods=["GET"]), Route("/metrics", metrics, methods=["GET"])]
    app = Starlette(routes=[
        Route("/v1/pinglist/{name}", pinglist, methods=["GET"]),
        Route("/v1/records", records, methods=["POST", "PUT"]), *beside,
    ])  # fmt: skip
    app.state.beside = Starlette(routes=beside)
    return app


def rehearse() -> None:
    """Answer one question of each kind to nobody: every module is loaded then, and later may not be ours to read."""
    import asyncio
    from tempfile import TemporaryDirectory

    from confluo_tools.formats.build import block_of
    from confluo_tools.formats.bundle import Bundle
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    bundle = Bundle(schema)
    bundle.add(block_of(schema, {"ts": [1], "src": ["x"]}, 1))
    upload = bundle.bytes()
    cert = {"subject": ((("commonName", "x"),),)}

    async def questions(folder: str) -> None:
        app = make_app(Lists(folder), Intake(lambda blocks: None), own=True)
        for path, body in (("/v1/pinglist/x", b""), ("/v1/records", upload), ("/metrics", b""), ("/healthz", b""),
                           ("/none", b"")):  # fmt: skip
            method = "POST" if body else "GET"
            scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
                     "raw_path": path.encode(), "query_string": b"", "headers": [(b"host", b"x")], "root_path": "",
                     "scheme": "https", "server": ("x", 1), "client": ("x", 1), "confluo.peercert": cert}  # fmt: skip
            message = {"type": "http.request", "body": body, "more_body": False}

            async def receive(message: Any = message) -> Any:
                return message

            async def send(message: Any) -> None:
                pass

            await app(scope, receive, send)

    with TemporaryDirectory() as folder:
        with open(os.path.join(folder, "x.yaml"), "wb") as file:
            file.write(b"x")
        asyncio.run(questions(folder))


def tls_context(cert: str, key: str | None, client_ca: str | None) -> SSLContext:
    """What a controller shows and asks for.  Raises ConfluoError naming the file."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    show(context, cert, key)
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as e:
            raise ConfluoError(f"is no certificate: {_why(e)}", where=client_ca, hint="PEM is read") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def show(context: SSLContext, cert: str, key: str | None) -> None:
    """Show this certificate to those who come from now on.  Raises ConfluoError: then the one before is shown on."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)  # half of a new pair must not be taken
        context.load_cert_chain(cert, key)
    except OSError as e:
        raise ConfluoError(f"is no certificate with its key: {_why(e)}", where=cert, hint="PEM is read") from None


def out_of_date(cert: str) -> str:
    """Why agents will refuse this certificate now, in words; '': they will not for its dates."""
    import ssl
    import time

    try:
        told = ssl._ssl._test_decode_cert(cert)  # type: ignore[attr-defined]
        begins, ends = (ssl.cert_time_to_seconds(told[word]) for word in ("notBefore", "notAfter"))
    except (AttributeError, KeyError, OSError, ValueError):  # nobody can tell
        return ""
    if time.time() > ends:
        return f"is out of date since {told['notAfter']}: agents refuse it"
    return f"is no good before {told['notBefore']}: agents refuse it" if time.time() < begins else ""


def _why(e: OSError) -> str:
    return str(getattr(e, "reason", None) or e.strerror or e)
