"""The engine that the argument of --engine names."""

from __future__ import annotations

from confluo_tools import units
from confluo_tools.engine.runner import Runner
from confluo_tools.errors import UsageError

MAX_PROCESSES = 1024


def runner(name: str) -> Runner:
    """The runner of ``local``, ``local:N`` for N processes, ``dask://HOST:PORT`` or ``spark://HOST:PORT``.

    Spark may have several masters: ``spark://HOST:PORT,HOST:PORT``.  Raises ConfluoError.
    """
    word, _, number = name.partition(":")
    if word == "local" and (not number or (number.isdecimal() and 0 < int(number) <= MAX_PROCESSES)):
        from confluo_tools.engine.forks import Forks

        return Forks(units.integer(number) if number else None)
    if name.startswith("dask://"):
        from confluo_tools.engine.dask_runner import DaskRunner

        return DaskRunner(*host_and_port(name))
    if name.startswith("spark://"):
        from confluo_tools.engine.spark_runner import SparkRunner

        for place in name.removeprefix("spark://").split(","):
            host_and_port(f"spark://{place}")
        return SparkRunner(name)
    hint = "use local, local:N for N processes, dask://HOST:PORT or spark://HOST:PORT"
    raise UsageError(f"no engine '{name}'", where="--engine", hint=hint)


def host_and_port(name: str) -> tuple[str, int]:
    """The host and the port of ``KIND://HOST:PORT``.  Raises UsageError."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(name)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.path.strip("/") or parts.query or parts.fragment:
        kind = name.partition(":")[0]
        raise UsageError(f"'{name}' is not the address of a cluster", where="--engine", hint=f"use {kind}://HOST:PORT")
    if parts.username is not None:
        hint = "others can read a command line; put them into the settings of the cluster's own client"
        raise UsageError("credentials have no place in an address", where="--engine", hint=hint)
    return host, port
