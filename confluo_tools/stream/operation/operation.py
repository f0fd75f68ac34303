"""What a run offers while it goes on: its control socket and its endpoint of metrics."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from confluo_tools import cli
from confluo_tools.errors import BusyError, ConfluoError
from confluo_tools.stream.operation.control_server import ControlSocket
from confluo_tools.stream.operation.runtime_folder import MAX_NAME, checked_name, default_name

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from confluo_tools.stream.stage_counts import WatchedRun


class RunOperation:
    """Opens the sockets of a run; `serve` starts their threads, after the process has given up its privileges.

    ``name``: of the run (--name); without it that of its ``inputs``.  ``metrics``: [ADDRESS]:PORT.
    Raises BusyError when a run with this name goes on, UsageError and ConfluoError.  ``number``: without --name, the
    second run of the same inputs has the number of its process in its name instead.
    """

    def __init__(self, name: str | None, inputs: Sequence[str], metrics: str | None, *, number: bool = False) -> None:
        from confluo_tools.endpoint.metrics_endpoint import metrics_socket

        self.name = checked_name(name) if name is not None else default_name(inputs)
        self._stack = ExitStack()
        self._metrics: socket.socket | None = None
        with ExitStack() as stack:
            if metrics is not None:
                self._metrics = stack.enter_context(metrics_socket(metrics))
            try:
                self._control = _control_socket(self.name, needed=name is not None)
            except BusyError:
                if name is not None or not number:
                    raise
                self.name = f"{self.name[: MAX_NAME - 12]}-{os.getpid()}"
                self._control = _control_socket(self.name, needed=False)
            if self._control is not None:
                stack.callback(self._control.close)
            self._stack = stack.pop_all()

    def serve(self, run: WatchedRun) -> None:
        """Answer requests about ``run`` from now on.  Raises ConfluoError without the package prometheus_client."""
        if self._control is not None:
            self._control.serve(run)
        if self._metrics is not None:
            from confluo_tools.endpoint.metrics_endpoint import MetricsEndpoint
            from confluo_tools.stream.operation.metrics import StageMetrics

            self._stack.callback(MetricsEndpoint(self._metrics, StageMetrics(self.name, run)).close)

    def __enter__(self) -> RunOperation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()


def _control_socket(name: str, *, needed: bool) -> ControlSocket | None:
    """The socket; None, with a message, where there can be none and the user has not named the run."""
    try:
        return ControlSocket(name)
    except BusyError:
        raise
    except ConfluoError as e:
        if needed:
            raise
        cli.note(f"status cannot show this run: {e}")
        return None
