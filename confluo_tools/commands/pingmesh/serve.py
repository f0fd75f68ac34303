"""confluo-pingmesh serve: the controller that agents pull their lists from.  Manual: confluo-pingmesh-serve(1)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from confluo_tools import cli, config
from confluo_tools.cli.options import Append, Index, Keep, Sync, option
from confluo_tools.errors import ConfluoError, UsageError

if TYPE_CHECKING:
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.core.block import Block

app = cli.command_app(
    """
# lists that plan has made, to whoever asks over HTTPS
confluo-pingmesh serve pinglists/ --listen :8443 --cert controller.pem --key controller.key

# only to agents with a certificate, to each its own list; their records come back into a log of the last two days
confluo-pingmesh serve pinglists/ --listen :8443 --cert controller.pem --key controller.key \\
    --client-ca agents.pem --records probes.ml --keep 2d

# on one machine, to try it
confluo-pingmesh serve pinglists/ --listen 127.0.0.1:8443
"""
)

LISTEN = "127.0.0.1:8443"


@app.command()
def serve(
    lists: Annotated[str, typer.Argument(metavar="LISTS", help="Folder of lists, as plan -w makes it.")],
    listen: Annotated[
        list[str] | None, option("--listen", metavar="ADDRESS:PORT", help="Where (repeatable; 127.0.0.1:8443).")
    ] = None,
    cert: Annotated[str | None, option("--cert", metavar="FILE", help="Certificate of this controller (PEM).")] = None,
    key: Annotated[str | None, option("--key", metavar="FILE", help="Its key, unless it stands there, too.")] = None,
    client_ca: Annotated[
        str | None, option("--client-ca", metavar="FILE", help="Answer only who has a certificate of this CA (PEM).")
    ] = None,
    any_name: Annotated[
        bool, option("--any-name", help="A certificate is good for all lists, not only for that of its name.")
    ] = False,
    plain: Annotated[bool, option("--plain", help="HTTP where others can reach it: a proxy does TLS.")] = False,
    metrics: Annotated[
        str | None, option("--metrics", metavar="ADDRESS:PORT", help="/metrics and /healthz there, too, for anybody.")
    ] = None,
    records: Annotated[
        str | None, option("--records", metavar="LOG", help="MultiLog for the records that agents send.")
    ] = None,
    append: Append = False,
    index: Index = None,
    keep: Keep = None,
    user: cli.User = None,
    sync: Sync = None,
    *,
    common: cli.CommonOptions,
) -> int:
    """Give agents their pinglists, and take their records, until a signal."""
    for name, given, other in (("--key", key, cert), ("--client-ca", client_ca, cert), ("--any-name", any_name or None,
                               client_ca)):  # fmt: skip
        if given is not None and other is None:
            raise UsageError(f"{name} needs {'--client-ca' if name == '--any-name' else '--cert'}")
    for name, wish in {"--append": append or None, "--index": index, "--keep": keep}.items():
        if wish is not None and records is None:
            raise UsageError(f"{name} is for the records that agents send", hint="--records LOG keeps them")
    if not os.path.isdir(lists):
        raise UsageError("is not a folder", where=lists, hint="confluo-pingmesh plan TOPOLOGY -w LISTS makes one")
    from confluo_tools.cli.privileges import account, hand_over
    from confluo_tools.remote import endpoint

    owner = account(user) if user is not None else None
    places = [endpoint.parse(text, "--listen") for text in listen or [LISTEN]]
    for text, (host, _) in zip(listen or [LISTEN], places, strict=True):
        if cert is None and not plain and not endpoint.loopback(host):
            hint = "give --cert, or --plain if a proxy before it does TLS"
            raise UsageError(f"'{text}' can be reached by others, without TLS", where="--listen", hint=hint)
    try:
        from confluo_tools.remote import controller
        from confluo_tools.remote.controller import Intake, Lists, make_app
        from confluo_tools.remote.service import CONNECTIONS, SPARE, Service
        from confluo_tools.sources.responder import make_room

        tls = controller.tls_context(cert, key, client_ca) if cert is not None else None
        if cert is not None and (words := controller.out_of_date(cert)):
            cli.note(words, where=cert)
        with ExitStack() as stack:
            sockets = [stack.enter_context(endpoint.listen(*place)) for place in places]
            out = log_of(records, append=append, index=index, keep=keep, sync=sync)
            beside = None
            if metrics is not None:
                beside = stack.enter_context(endpoint.listen(*endpoint.parse(metrics, "--metrics")))
            intake = Intake(into(out)) if out is not None else None
            folder = Lists(lists)
            answers = make_app(folder, intake, own=client_ca is not None and not any_name)
            most = max(16, make_room(CONNECTIONS + SPARE) - SPARE)
            service = Service(answers, sockets, tls, beside, most=most)
            if owner is not None:
                controller.rehearse()
            hand_over(out, owner)
            if out is not None:
                stack.enter_context(out)
            stopped = 0

            def stop(number: int) -> None:
                nonlocal stopped
                stopped = number
                service.stop()

            def counts() -> str:
                taken = f", {out.rows} records taken" if out is not None else ""
                return f"{folder.given} lists given, {folder.same} times unchanged{taken}"

            def again(number: int, frame: Any) -> None:
                if tls is not None and cert is not None:
                    try:
                        controller.show(tls, cert, key)
                        if words := controller.out_of_date(cert):
                            cli.note(words, where=cert)
                    except ConfluoError as e:
                        cli.note(f"{e}; the old one stays")

            with cli.signals(stop, counts=counts):
                if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                    signal.signal(signal.SIGHUP, again)
                if not common.quiet:
                    where = ", ".join(endpoint.show(*s.getsockname()[:2]) for s in sockets)
                    if beside is not None:
                        where += f", metrics at {endpoint.show(*beside.getsockname()[:2])}"
                    cli.note(f"{'https' if tls else 'http'} at {where}; pid {os.getpid()}")
                service.run()
            if common.stats or (stopped and not common.quiet):
                cli.note(counts())
    except ModuleNotFoundError as e:
        raise missing(e) from None
    return 128 + stopped if stopped else cli.OK


def log_of(
    path: str | None, *, append: bool, index: str | None, keep: str | None, sync: str | None
) -> LogOutput | None:  # fmt: skip
    """The log for records, not opened yet."""
    if path is None:
        return None
    from confluo_tools.cli.log_output import LogOutput
    from confluo_tools.schema import builtin

    schema = builtin("probe")
    return LogOutput(
        path, schema, append=append, asked=[f.name for f in schema.fields], index=index, keep=keep, views=True,
        sync=config.text("sync", sync), lanes=256,
    )  # fmt: skip


def into(out: LogOutput) -> Callable[[list[Block]], None]:
    def take(blocks: list[Block]) -> None:
        for block in blocks:
            out.write(block, None)

    return take


def missing(e: ModuleNotFoundError) -> ConfluoError:
    """A package of the extra is not installed."""
    name = (e.name or "").split(".")[0]
    if name.startswith("confluo"):
        raise e
    return ConfluoError(f"needs the package {name}", hint="pip install 'confluo-tools[pingmesh]'")


def main(argv: list[str] | None = None) -> int:
    return cli.run(app, "confluo-pingmesh serve", argv, owns_state=True)
