"""Web application of the Pingmesh controller: agents GET their pinglists and POST their probe records.

The controller keeps no state and has no private key: a pinglist is a file that `plan` has written and signed, so any
number of controllers serve copies of one folder alike (the paper has several behind one virtual address).

    GET  /v1/pinglist/NAME       the list, its ETag, and its signature in X-Confluo-Signature (base64); 304, 404
    GET  /v1/pinglist/NAME.sig   the signature alone
    POST /v1/records             an Arrow stream of probe records; 204, 400, 403, 413, 429, 507
    GET  /healthz                200 while the folder can be read
    GET  /metrics                for Prometheus

The last two are also served on a second socket without certificates, for load balancers in front of controllers.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from confluo_tools.errors import ConfluoError, DiskFullError, FormatError, StoreError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from confluo_tools.core.block.block import Block
    from confluo_tools.formats.bytestream import ByteStream

MAX_LIST = 16 << 20  # bytes of a list
MAX_UPLOAD = 32 << 20  # bytes of one upload
MAX_RECORDS = 128 << 20  # bytes of one upload after decompression, as records with all columns
UPLOAD_TIME = 30.0  # s for an upload
MAX_UPLOADS = 8  # at the same time; more get status 429
MAX_UPLOADS_EACH = 2  # at the same time of one agent, by its certificate
MAX_UNPACKED = 2  # uploads decompressed at the same time; the others wait compressed
MAX_UPLOAD_NAMES = 4096  # names of past uploads kept to detect repeated ones
MAX_ETAGS = 1 << 16  # lists with a cached ETag
SUFFIXES = {".yaml": "application/yaml", ".arrow": "application/vnd.apache.arrow.file"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,31}\Z", re.ASCII)
SIGNATURE = 64  # bytes of Ed25519

WriteBlocks = Callable[[list["Block"]], None]


class ServedPinglist(NamedTuple):
    """A pinglist as it is sent; ``signature`` is empty for a list without one."""

    body: bytes
    etag: str
    media: str
    signature: bytes


class PinglistStore:
    """The folder of pinglists.  A list replaced during reading is read again: list and signature belong together."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.served = self.unmodified = 0  # responses
        self._etags: OrderedDict[str, tuple[tuple[int, ...], str]] = OrderedDict()
        self._lock = threading.Lock()

    def count(self) -> int:
        """The number of lists.  Raises OSError."""
        with os.scandir(self.folder) as entries:
            return sum(1 for e in entries if os.path.splitext(e.name)[1] in SUFFIXES)

    def get(self, name: str) -> ServedPinglist | None:
        """The list of agent ``name``, or None.  Raises OSError; StoreError for a list above MAX_LIST."""
        if not NAME.match(name):
            return None
        for suffix, media in SUFFIXES.items():
            path = os.path.join(self.folder, name + suffix)
            for _ in range(5):
                try:
                    body, identity = _read(path, MAX_LIST)
                except FileNotFoundError:
                    break
                signature = self._signature(name, suffix)
                try:
                    again = os.stat(path)
                except FileNotFoundError:
                    break
                if _identity(again) == identity:
                    return ServedPinglist(body, self._etag(path, identity, body), media, signature)
        os.stat(self.folder)  # without the folder: an error, not "no list"
        return None

    def unchanged(self, name: str, etag: str) -> bool:
        """Whether the list still has this ETag; a file with a cached ETag is not read."""
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
            while len(self._etags) > MAX_ETAGS:
                self._etags.popitem(last=False)
        return etag


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _read(path: str, max_bytes: int) -> tuple[bytes, tuple[int, ...]]:
    with open(path, "rb") as file:
        identity = _identity(os.fstat(file.fileno()))
        body = file.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise StoreError(f"exceeds {max_bytes} bytes", where=path)
    return body, identity


class RecordReceiver:
    """Checks uploads of probe records and passes each whole one to ``write``, one after the other."""

    def __init__(self, write: WriteBlocks) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(MAX_UNPACKED)
        self._seen: OrderedDict[str, None] = OrderedDict()

    def accept(self, fd: int, upload: str, src: Sequence[str] | None) -> int:
        """Write the Arrow stream in the file ``fd``; returns the number of new rows.

        ``upload``: a name of the upload; one repeated because its response was lost is not written twice.
        ``src``: the permitted values of field `src`; None: any.
        Raises FormatError for an invalid stream, PermissionError for another ``src``, ConfluoError of ``write``.
        """
        with self._slots:
            return self._accept(fd, upload, src)

    def _accept(self, fd: int, upload: str, src: Sequence[str] | None) -> int:
        from confluo_tools.formats.arrow import StreamReader
        from confluo_tools.formats.bytestream import ByteStream, unzip
        from confluo_tools.schema import builtin

        probe = builtin("probe")
        fd = _decompressed(unzip(ByteStream(fd, "upload")))
        with closing(ByteStream(fd, "upload")) as stream, StreamReader(stream, warn=_reject) as reader:
            if reader.schema.kind != probe.kind:
                raise FormatError(f"contains records of '{reader.schema.kind[:40]}'", hint="send records of 'probe'")
            for field in reader.schema.fields:
                if field.name not in probe or probe[field.name].type.text != field.type.text:
                    raise FormatError(f"field '{field.name[:40]}' is not in schema 'probe'")
            max_rows = MAX_RECORDS // probe.layout.row_bytes
            blocks = [block.project(probe.layout) for block in _copied(reader, max_rows)]
        if src is not None and blocks:
            self._check_sources(blocks, src)
        with self._lock:
            if upload and upload in self._seen:
                return 0
            self._write(blocks)
            if upload:
                self._seen[upload] = None
                while len(self._seen) > MAX_UPLOAD_NAMES:
                    self._seen.popitem(last=False)
        return sum(block.rows for block in blocks)

    def _check_sources(self, blocks: Iterable[Block], names: Sequence[str]) -> None:
        from confluo_tools.expr import compile
        from confluo_tools.schema import builtin

        text = " or ".join(f'src == "{name}"' for name in names if NAME.match(name))
        program = compile(text, builtin("probe")).program if text else None
        for block in blocks:
            if program is None or len(program.select(block)) != block.rows:
                raise PermissionError


def _decompressed(stream: ByteStream) -> int:
    # A memory file of the whole stream: parsing starts only after its full size is known to be small.
    out, size = os.memfd_create("plain", os.MFD_CLOEXEC), 0
    try:
        while piece := stream.some():
            size += len(piece)
            if size > MAX_RECORDS:
                raise FormatError(f"upload exceeds {MAX_RECORDS >> 20} MiB of records")
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


def _reject(problem: str) -> None:
    raise FormatError(problem)


def _copied(reader: Any, max_rows: int) -> Iterable[Block]:
    # A reader reuses its blocks.  The limit is on rows: a narrow stream becomes whole records in the log.
    from confluo_tools.core.block.block import Block

    rows = 0
    for block in reader.blocks():
        rows += block.rows
        if rows > max_rows:
            raise FormatError(f"upload exceeds {max_rows} records")
        columns = [bytes(block.buffer(i)) for i in range(block.layout.n)]
        yield Block.wrap(block.layout, block.rows, columns)


def certificate_names(scope: Any) -> list[str]:
    """The names in the client's certificate: its common name, then its DNS names."""
    cert = scope["state"]["connection"].certificate
    names = [value for pair in cert.get("subject", ()) for key, value in pair if key == "commonName"]
    return names + [value for key, value in cert.get("subjectAltName", ()) if key == "DNS"]


class ControllerApps(NamedTuple):
    """ASGI applications: ``main`` serves all paths, ``state`` serves /healthz and /metrics alone."""

    main: Starlette
    state: Starlette


def make_apps(lists: PinglistStore, receiver: RecordReceiver | None, *, own: bool = False) -> ControllerApps:
    """The ASGI applications.  ``own``: an agent may fetch and send only what its certificate names.

    ``receiver`` None: uploads get status 404.
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
    requests = prometheus.Counter(
        "pingmesh_controller_requests_total", "Responses by path and status", ["what", "status"], registry=registry
    )
    rows = prometheus.Counter("pingmesh_controller_records_total", "Records received from agents", registry=registry)
    received = prometheus.Counter(
        "pingmesh_controller_upload_bytes_total", "Bytes of accepted uploads", registry=registry
    )
    list_count = prometheus.Gauge(
        "pingmesh_controller_lists", "Pinglists in the folder; -1: unreadable", registry=registry
    )
    slots = asyncio.Semaphore(MAX_UPLOADS)
    uploads_of: Counter[str] = Counter()  # uploads in progress by agent

    def response(what: str, status: int, text: str = "", **more: Any) -> Response:
        requests.labels(what, str(status)).inc()
        return PlainTextResponse(f"{text}\n" if text else "", status, **more)

    async def pinglist(request: Request) -> Response:
        name = request.path_params["name"]
        signature_only = name.endswith(".sig")
        name = name.removesuffix(".sig")
        if own and name not in certificate_names(request.scope):
            return response("pinglist", 403, "the certificate is for another agent")
        etag = request.headers.get("if-none-match", "")
        try:
            if etag and not signature_only and await run_in_threadpool(lists.unchanged, name, etag):
                requests.labels("pinglist", "304").inc()
                lists.unmodified += 1
                return Response(status_code=304, headers={"etag": etag})
            found = await run_in_threadpool(lists.get, name)
        except (OSError, ConfluoError):
            return response("pinglist", 500, "cannot read the list")
        if found is None or (signature_only and not found.signature):
            return response("pinglist", 404, "no such list")
        requests.labels("pinglist", "200").inc()
        lists.served += not signature_only
        if signature_only:
            return Response(found.signature, media_type="application/octet-stream")
        headers = {"etag": found.etag, "cache-control": "no-cache"}
        if found.signature:
            headers["x-confluo-signature"] = b64encode(found.signature).decode()
        return Response(found.body, headers=headers, media_type=found.media)

    async def records(request: Request) -> Response:
        if receiver is None:
            return response("records", 404, "this controller does not accept records")
        names = certificate_names(request.scope) if own else None
        agent = names[0] if names else ""
        if slots.locked() or (agent and uploads_of[agent] >= MAX_UPLOADS_EACH):
            return response("records", 429, "too many uploads at once", headers={"retry-after": "5"})
        fd = os.memfd_create("upload", os.MFD_CLOEXEC)
        uploads_of[agent] += 1
        try:
            async with slots:
                size = 0
                try:
                    async with asyncio.timeout(UPLOAD_TIME):
                        async for chunk in request.stream():
                            size += len(chunk)
                            if size > MAX_UPLOAD:
                                text = f"upload exceeds {MAX_UPLOAD} bytes"
                                return response("records", 413, text, headers={"connection": "close"})
                            os.write(fd, chunk)
                except (TimeoutError, ClientDisconnect):
                    return response("records", 408, headers={"connection": "close"})
                os.lseek(fd, 0, os.SEEK_SET)
                upload = request.headers.get("x-confluo-upload", "")[:64]
                try:
                    rows.inc(await run_in_threadpool(receiver.accept, os.dup(fd), upload, names))
                except FormatError as e:
                    return response("records", 400, str(e))
                except PermissionError:
                    return response("records", 403, "records of an agent that the certificate does not name")
                except DiskFullError:
                    return response("records", 507, "disk full")
                except (OSError, ConfluoError):
                    return response("records", 500, "cannot write the records")
                received.inc(size)
        finally:
            os.close(fd)
            uploads_of[agent] -= 1
            if not uploads_of[agent]:
                del uploads_of[agent]
        requests.labels("records", "204").inc()
        return Response(status_code=204)

    def count() -> int:
        try:
            return lists.count()
        except OSError:
            return -1

    async def healthz(request: Request) -> Response:
        n = await run_in_threadpool(count)
        return JSONResponse(
            {"lists": n} if n >= 0 else {"error": "cannot read the folder of lists"}, 200 if n >= 0 else 503
        )

    async def metrics(request: Request) -> Response:
        list_count.set(await run_in_threadpool(count))
        return Response(prometheus.generate_latest(registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    state = [Route("/healthz", healthz, methods=["GET"]), Route("/metrics", metrics, methods=["GET"])]
    main = [
        Route("/v1/pinglist/{name}", pinglist, methods=["GET"]),
        Route("/v1/records", records, methods=["POST", "PUT"]),
        *state,
    ]
    return ControllerApps(Starlette(routes=main), Starlette(routes=state))


def preload() -> None:
    """Load every module by one request of each kind: after the change of user, modules may be unreadable."""
    import asyncio
    from tempfile import TemporaryDirectory

    from confluo_tools.formats.block_builder import block_of
    from confluo_tools.pingmesh.agent.upload_batch import UploadBatch
    from confluo_tools.pingmesh.controller.http_server import ConnectionState
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    bundle = UploadBatch(schema)
    bundle.add(block_of(schema, {"ts": [1], "src": ["x"]}, 1))
    upload = bundle.bytes()

    async def requests(folder: str) -> None:
        app = make_apps(PinglistStore(folder), RecordReceiver(lambda blocks: None), own=True).main
        for path, body in (
            ("/v1/pinglist/x", b""),
            ("/v1/records", upload),
            ("/metrics", b""),
            ("/healthz", b""),
            ("/none", b""),
        ):
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "POST" if body else "GET",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
                "headers": [(b"host", b"x")],
                "root_path": "",
                "scheme": "https",
                "server": ("x", 1),
                "client": ("x", 1),
                "state": {"connection": ConnectionState({"subject": ((("commonName", "x"),),)})},
            }
            message = {"type": "http.request", "body": body, "more_body": False}

            async def receive(message: Any = message) -> Any:
                return message

            async def send(message: Any) -> None:
                pass

            await app(scope, receive, send)

    with TemporaryDirectory() as folder:
        with open(os.path.join(folder, "x.yaml"), "wb") as file:
            file.write(b"x")
        asyncio.run(requests(folder))
