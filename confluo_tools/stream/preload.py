"""Loads what a run needs later: after dropping privileges the files of its modules may not be readable."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules

# With all functions: what they load is then there for `confluo-stream set`.
SAMPLE = """
flows:
- {name: a, match: "tcp and port 1", functions: [{filter: len > 1}, {sample: 1/2}]}
- {name: b, functions: [{sample: {rate: 1/s}}, {sample: {share: 1/2, by: flow}}]}
- {name: c, functions: [{histogram: {field: len, bins: 0..10/5, every: 1s}}]}
- {name: d, functions: [{aggregate: {agg: "count, sum(len), mean(len)", by: src_ip, every: 1s}}]}
"""


def preload() -> None:
    """Read sample flows, and make their functions and the shapes of their messages."""
    from confluo_tools.formats.pcap import packet_schema
    from confluo_tools.kafka import client
    from confluo_tools.kafka.message import shape_of
    from confluo_tools.stream.flows_file import FlowsReader

    client.preload()
    for package in ("stream", "stream.operation", "kafka", "clickhouse"):
        paths = import_module(f"confluo_tools.{package}").__path__
        for module in iter_modules(paths, f"confluo_tools.{package}."):
            import_module(module.name)
    with suppress(ImportError):
        import_module("prometheus_client")
    for flow in FlowsReader(packet_schema(offset=False), "kafka://broker/topic").text(SAMPLE):
        schema = flow.batch
        for _, function in flow.functions:
            function.stage(schema)
            schema = function.after(schema)
        shape_of(schema, os.uname().nodename, 0, 0)
