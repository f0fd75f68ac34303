"""confluo-pingmesh serve: the controller, which serves pinglists to agents.  Manual: confluo-pingmesh-serve(1)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import Append, Index, Keep, Sync, option
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.core.block.block import Block

app = cli.command_app(
    """
# serve the lists of a plan over HTTPS
confluo-pingmesh serve pinglists/ --listen :8443 --cert controller.pem --key controller.key

# require client certificates, serve each agent its own list, keep the records of agents for two days
confluo-pingmesh serve pinglists/ --listen :8443 --cert controller.pem --key controller.key \\
    --client-ca agents.pem --records probes.ml --keep 2d

# on one machine, for a trial
confluo-pingmesh serve pinglists/ --listen 127.0.0.1:8443
"""
)

LISTEN = "127.0.0.1:8443"


@app.command(
    panels={"Options": "--listen --cert --key --client-ca --records --metrics", "Pinglists": "--any-name --plain"}
)
def serve(
    lists: Annotated[str, typer.Argument(metavar="LISTS", help="Folder of lists, as plan -w makes it.")],
    listen: Annotated[
        list[str] | None,
        option("--listen", metavar="ADDRESS:PORT", help="Listen at this address (repeatable; 127.0.0.1:8443)."),
    ] = None,
    cert: Annotated[str | None, option("--cert", metavar="FILE", help="Certificate of this controller (PEM).")] = None,
    key: Annotated[str | None, option("--key", metavar="FILE", help="Private key, if not in the --cert file.")] = None,
    client_ca: Annotated[
        str | None, option("--client-ca", metavar="FILE", help="Require client certificates of this CA (PEM).")
    ] = None,
    any_name: Annotated[
        bool, option("--any-name", help="Let a client certificate fetch all lists, not only the one of its name.")
    ] = False,
    plain: Annotated[
        bool, option("--plain", help="Allow HTTP on other than loopback addresses, behind a TLS proxy.")
    ] = False,
    metrics: Annotated[
        str | None,
        option("--metrics", metavar="ADDRESS:PORT", help="Serve /metrics and /healthz there as well, over plain HTTP."),
    ] = None,
    records: Annotated[
        str | None, option("--records", metavar="LOG", help="Write the records of agents to this MultiLog.")
    ] = None,
    append: Append = False,
    index: Index = None,
    keep: Keep = None,
    user: cli.User = None,
    sync: Sync = None,
    *,
    common: cli.CommonOptions,
) -> int:
    """Serve pinglists to agents and receive their records, until a signal."""
    for name, given, other in (
        ("--key", key, cert),
        ("--client-ca", client_ca, cert),
        ("--any-name", any_name or None, client_ca),
    ):
        if given is not None and other is None:
            raise UsageError(f"{name} needs {'--client-ca' if name == '--any-name' else '--cert'}")
    for name, given in {"--append": append or None, "--index": index, "--keep": keep}.items():
        if given is not None and records is None:
            raise UsageError(f"{name} needs --records")
    if not os.path.isdir(lists):
        raise UsageError("is not a folder", where=lists, hint="confluo-pingmesh plan TOPOLOGY -w LISTS makes one")
    from confluo_tools.cli.privileges import account, hand_over
    from confluo_tools.endpoint import listen_address

    owner = account(user) if user is not None else None
    places = [listen_address.parse(text, "--listen") for text in listen or [LISTEN]]
    for text, (host, _) in zip(listen or [LISTEN], places, strict=True):
        if cert is None and not plain and not listen_address.loopback(host):
            hint = "give --cert, or --plain behind a TLS proxy"
            raise UsageError(f"'{text}' is not loopback and has no TLS", where="--listen", hint=hint)
    try:
        from confluo_tools.pingmesh.controller import asgi_app, tls
        from confluo_tools.pingmesh.controller.http_server import MAX_CONNECTIONS, SPARE, HttpService
        from confluo_tools.pingmesh.probe.responder import make_room

        context = tls.server_context(cert, key, client_ca) if cert is not None else None
        if cert is not None and (problem := tls.validity_problem(cert)):
            cli.note(problem, where=cert)
        with ExitStack() as stack:
            sockets = [stack.enter_context(listen_address.listen(*place)) for place in places]
            out = log_of(records, append=append, index=index, keep=keep, sync=sync)
            state_socket = None
            if metrics is not None:
                state_socket = stack.enter_context(listen_address.listen(*listen_address.parse(metrics, "--metrics")))
            receiver = asgi_app.RecordReceiver(writer_to(out)) if out is not None else None
            store = asgi_app.PinglistStore(lists)
            apps = asgi_app.make_apps(store, receiver, own=client_ca is not None and not any_name)
            limit = max(16, make_room(MAX_CONNECTIONS + SPARE) - SPARE)
            service = HttpService(apps.main, sockets, context, apps.state, state_socket, limit=limit)
            if owner is not None:
                asgi_app.preload()
            hand_over(out, owner)
            if out is not None:
                stack.enter_context(out)
            stopped = 0

            def stop(number: int) -> None:
                nonlocal stopped
                stopped = number
                service.stop()

            def counts() -> str:
                received = f", {out.rows} records received" if out is not None else ""
                return f"{store.served} lists served, {store.unmodified} requests unmodified{received}"

            def reload() -> None:
                if context is not None and cert is not None:
                    try:
                        tls.load_certificate(context, cert, key)
                        if problem := tls.validity_problem(cert):
                            cli.note(problem, where=cert)
                    except ConfluoError as e:
                        cli.note(f"{e}; the previous certificate stays in use")

            with cli.signals(stop, counts=counts):
                if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                    signal.signal(signal.SIGHUP, lambda number, frame: service.call(reload))
                if not common.quiet:
                    where = ", ".join(listen_address.show(*s.getsockname()[:2]) for s in sockets)
                    if state_socket is not None:
                        where += f", metrics at {listen_address.show(*state_socket.getsockname()[:2])}"
                    cli.note(f"{'https' if context else 'http'} at {where}; pid {os.getpid()}")
                service.run()
            if common.stats or (stopped and not common.quiet):
                cli.note(counts())
    except ModuleNotFoundError as e:
        raise missing(e) from None
    return 128 + stopped if stopped else cli.OK


def log_of(
    path: str | None, *, append: bool, index: str | None, keep: str | None, sync: str | None
) -> LogOutput | None:
    """The log for the records of agents, not open yet."""
    if path is None:
        return None
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    return LogOutput(
        path,
        schema,
        append=append,
        extra_fields=[f.name for f in schema.fields],
        index=index,
        keep=keep,
        views=True,
        sync=config.text("sync", sync),
        lanes=256,
    )


def writer_to(out: LogOutput) -> Callable[[list[Block]], None]:
    """A function that writes blocks to ``out``."""

    def write(blocks: list[Block]) -> None:
        for block in blocks:
            out.write(block, None)

    return write


def missing(e: ModuleNotFoundError) -> ConfluoError:
    """The error for a package of the extra `pingmesh` that is not installed."""
    name = (e.name or "").split(".")[0]
    if name.startswith("confluo"):
        raise e
    return ConfluoError(f"needs the package {name}", hint="pip install 'confluo-tools[pingmesh]'")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh serve", argv, owns_state=True)
